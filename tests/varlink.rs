//! systemd's `varlinkctl` (257, of Debian 13) reads the description of the control socket and asks a running daemon by it.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use vmlane_lab::setup::{self, Progress, varlinkctl::Varlinkctl};
use vmlane_tests::{kept, wait_until};

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nnic = [ { model = \"vmxnet3\" } ]\n";

struct Daemon {
    process: Child,
    varlinkctl: Varlinkctl,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL; fails only if it is gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    fn start() -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let (config, runtime) = (folder.path().join("vmlane.toml"), folder.path().join("run"));
        std::fs::write(&config, CONFIG).unwrap();
        let mut command = Command::new(vmlane_lab::find_vmlane().expect("the program was built"));
        command.args(["daemon", "--no-confine", "--config"]).arg(config).arg("--runtime-dir").arg(&runtime);
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let varlinkctl = setup::varlinkctl::ensure(&Progress(&|_| ())).unwrap();
        let socket = vmlane_api::control_socket(&runtime);
        let daemon = Daemon { process, varlinkctl, socket, _folder: folder };
        wait_until("the daemon answers", || daemon.run("info", &[]).status.success());
        daemon
    }

    fn run(&self, command: &str, words: &[&str]) -> Output {
        let mut varlinkctl = self.varlinkctl.command();
        varlinkctl.args(["--no-pager", command]).arg(&self.socket).args(words);
        varlinkctl.stdin(Stdio::null()).output().unwrap()
    }

    fn text(&self, command: &str, words: &[&str]) -> String {
        let output = self.run(command, words);
        assert!(output.status.success(), "{command} {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn call(&self, method: &str, parameters: &str) -> Value {
        let text = self.text("call", &["--json=short", &format!("io.vmlane.Control.{method}"), parameters]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

#[test]
fn varlinkctl_introspects_and_calls() {
    let daemon = Daemon::start();
    let info = daemon.text("info", &[]);
    assert!(info.contains("vmlane daemon") && info.contains("io.vmlane.Control"), "{info}");

    // It parses the description to show it, and complains of what it cannot parse.
    let shown = daemon.text("introspect", &["io.vmlane.Control"]);
    for part in ["interface io.vmlane.Control", "method VmAdd", "type VmStatus", "error Forbidden"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let file = daemon.socket.with_file_name("description");
    std::fs::write(&file, vmlane_api::varlink::description()).unwrap();
    let mut validate = daemon.varlinkctl.command();
    let valid = validate.arg("validate-idl").arg(&file).output().unwrap();
    assert!(valid.status.success() && valid.stderr.is_empty(), "{valid:?}");

    assert_eq!(daemon.call("Ping", "{}")["pid"], daemon.process.id());
    assert_eq!(daemon.call("Status", "{}")["vms"][0]["name"], "web");
    assert!(daemon.call("Stats", "{}")["vms"][0]["bounds"].as_array().is_some_and(|all| !all.is_empty()));
    let added = daemon.call("VmAdd", r#"{"description":"[[vm]]\nname = \"app\"\ncid = 7\n"}"#);
    assert_eq!(added["cid"], 7);
    assert_eq!(daemon.call("VmList", "{}")["vms"].as_array().map(Vec::len), Some(2));
    assert_eq!(daemon.call("Link", r#"{"vm":"web","nic":"nic0","up":false}"#)["link"], "down");
    assert_eq!(daemon.call("VmRemove", r#"{"name":"app"}"#)["name"], "app");

    for (method, parameters, error) in [
        ("VmRemove", r#"{"name":"app"}"#, "io.vmlane.Control."),
        ("Dance", "{}", "MethodNotFound"),
        ("Capture", "{}", "MethodNotImplemented"),
        ("Release", "{}", "io.vmlane.Control.BadRequest"),
    ] {
        let output = daemon.run("call", &[&format!("io.vmlane.Control.{method}"), parameters]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(error), "{method}: {output:?}");
    }
    kept(
        17,
        "varlinkctl of systemd 257 introspects the control socket, validates its description, and adds, lists and removes a VM",
    );
}
