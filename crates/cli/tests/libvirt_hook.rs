//! What libvirt's hook is told, by a running daemon's side and without one.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::eventually;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nowner = \"500:501\"\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\" }]\n";
const OTHER: &str = "<domain type='kvm'><name>other</name></domain>";

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Setup(tempfile::TempDir);

impl Setup {
    fn new() -> Setup {
        let setup = Setup(tempfile::tempdir().unwrap());
        // Any user that the daemon becomes gets through.
        fs::set_permissions(setup.0.path(), fs::Permissions::from_mode(0o711)).unwrap();
        setup.configure(CONFIG);
        setup
    }

    fn configure(&self, text: &str) {
        fs::write(self.path("vmlane.toml"), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(VMLANE);
        command.args(words).arg("--config").arg(self.path("vmlane.toml"));
        command.arg("--runtime-dir").arg(self.path("run"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn domain(&self) -> String {
        let output = self.command(&["libvirt-xml", "web"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// As libvirt calls it.
    fn hook(&self, domain: &str, operation: &str, part: &str, xml: &str) -> Output {
        let mut child = self
            .command(&["libvirt-hook", domain, operation, part, "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // It may have ended without reading.
        let _ = child.stdin.take().unwrap().write_all(xml.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn refuses(&self, domain: &str, xml: &str, words: &[&str]) {
        let output = self.hook(domain, "prepare", "begin", xml);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }

    fn lets(&self, domain: &str, operation: &str, part: &str, xml: &str) {
        let output = self.hook(domain, operation, part, xml);
        assert!(output.status.success(), "{output:?}");
        // libvirt would take what is printed for another domain.
        assert!(output.stdout.is_empty(), "{output:?}");
    }

    fn start(&self) -> Daemon {
        let daemon =
            Daemon(self.command(&["daemon"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        eventually("the daemon answers", || {
            let mut status = Command::new(VMLANE);
            status.arg("status").arg("--runtime-dir").arg(self.path("run"));
            status.output().unwrap().status.success().then_some(())
        });
        daemon
    }
}

#[test]
fn a_domain_starts_when_the_daemon_serves_its_vm_as_configured() {
    let setup = Setup::new();
    let xml = setup.domain();
    setup.refuses("web", &xml, &["\"web\" does not start", "systemctl start vmlane"]);
    let daemon = setup.start();
    setup.lets("web", "prepare", "begin", &xml);
    setup.refuses("other", &xml, &["of VM web", "domain = \"other\""]);
    for changed in [("cid = 3", "cid = 4"), ("virtio-net\"", "virtio-net\", mac = \"52:54:00:00:00:07\"")] {
        setup.configure(&CONFIG.replace(changed.0, changed.1));
        setup.refuses("web", &setup.domain(), &["vmlane reload"]);
    }
    setup.configure(&format!("{CONFIG}[[vm]]\nname = \"new\"\ncid = 9\n"));
    let new =
        xml.replace("vm/web/vsock.sock", "vm/new/vmci.sock").replace("vm/web/nic0.sock", "vm/new/vmci.sock");
    setup.refuses("new", &new, &["does not serve VM new yet"]);
    drop(daemon);
}

#[test]
fn domains_of_others_start_whatever_state_vmlane_is_in() {
    let setup = Setup::new();
    setup.lets("other", "prepare", "begin", OTHER);
    setup.lets("web", "release", "end", "no XML");
    setup.lets("web", "reconnect", "begin", &setup.domain());
    let xml = setup.domain();
    setup.configure("nonsense");
    setup.lets("other", "prepare", "begin", OTHER);
    setup.refuses("web", &xml, &["nonsense"]);
    setup.refuses("other", &" ".repeat((1 << 20) + 1), &[]);
}
