//! A VM whose VMM has a hybrid socket, under daemons of two versions that replace each other without systemd.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use vmlane_api::{Client, call};
use vmlane_testkit::hybrid_vmm::{Vmm, is_closed};
use vmlane_tests::{Process, wait_until};

const OTHERS: &str = "[[vm]]\nname = \"a\"\ncid = 3\n";
const HYBRID: &str = "\
[[vm]]
name = \"fn1\"
cid = 5
vsock = \"hybrid\"
forward = [ { port = 5002, to = \"fn2:22\" } ]
[[vm]]
name = \"fn2\"
cid = 6
vsock = \"hybrid\"
";

struct Place {
    folder: tempfile::TempDir,
    daemon: Option<Process>,
}

impl Drop for Place {
    /// As an operator ends a daemon, so that its keeper goes too.
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.signal(Signal::TERM);
            daemon.wait();
        }
    }
}

impl Place {
    /// A version before there were hybrid sockets gets a configuration without them, as an administrator
    /// would have to write it. Whether this one knows them.
    fn configure(&self, program: &Path) -> bool {
        let config = self.folder.path().join("vmlane.toml");
        fs::write(&config, OTHERS.to_owned() + HYBRID).expect("a configuration");
        fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).expect("its mode");
        let checked = Command::new(program).arg("check").arg(&config).output().expect("vmlane check");
        if !checked.status.success() {
            let printed = String::from_utf8_lossy(&checked.stderr);
            assert!(printed.contains("hybrid"), "{}: {printed}", program.display());
            fs::write(&config, OTHERS).expect("a configuration");
        }
        checked.status.success()
    }

    /// Starts a daemon in place of the one that runs, which must end well.
    fn replace(&mut self, program: &Path) {
        let log = fs::File::options().create(true).append(true).open(self.folder.path().join("log"));
        let mut command = Command::new(program);
        command.args(["daemon", "--replace", "--config"]).arg(self.folder.path().join("vmlane.toml"));
        command.arg("--runtime-dir").arg(self.run()).env_remove("NOTIFY_SOCKET");
        let next = command.stdin(Stdio::null()).stderr(log.expect("a log")).spawn();
        let next = Process(next.expect("a daemon"));
        let pid = next.id();
        let before = self.daemon.replace(next);
        wait_until("the next daemon answers", || {
            let pong = Client::connect(&self.run()).and_then(|mut client| client.call(&call::Ping {}));
            pong.is_ok_and(|pong| pong.pid == pid)
        });
        if let Some(mut before) = before {
            assert!(before.wait().success(), "it hands over");
        }
    }

    fn run(&self) -> std::path::PathBuf {
        self.folder.path().join("run")
    }

    fn vmm(&self, vm: &str) -> Vmm {
        Vmm::start_for_daemon(&self.run().join("vm").join(vm).join("hybrid/v.sock"))
    }
}

/// What one end writes arrives at the other, both ways.
fn talk(a: &UnixStream, b: &UnixStream) {
    let mut bytes = [0; 4];
    for (mut from, mut to) in [(a, b), (b, a)] {
        from.write_all(b"ping").expect("written");
        to.read_exact(&mut bytes).expect("read");
        assert_eq!(&bytes, b"ping");
    }
}

/// Both programs take turns. How many connections ended with their daemon.
pub fn replaced(old: &Path, new: &Path, rounds: u32) -> u32 {
    let folder = tempfile::tempdir().expect("a folder");
    // Any user that the daemon becomes gets through.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).expect("its mode");
    let mut place = Place { folder, daemon: None };
    let (mut vmms, mut open, mut ended) = (None::<[Vmm; 2]>, None::<(UnixStream, UnixStream)>, 0);
    // The new program also replaces itself, with connections in both.
    for program in (0..rounds).flat_map(|_| [old, new, new]) {
        let knows = place.configure(program);
        place.replace(program);
        if let Some((mut near, mut far)) = open.take() {
            assert!(is_closed(&mut near) && is_closed(&mut far), "a daemon's connections end with it");
            ended += 1;
        }
        if !knows {
            assert!(vmms.iter().all(|[first, _]| first.connect(5002).is_err()), "no daemon listens there");
            continue;
        }
        // VMMs go on through all daemons.
        let [first, second] = vmms.get_or_insert_with(|| ["fn1", "fn2"].map(|vm| place.vmm(vm)));
        let near = first.connect(5002).expect("the next daemon listens at the socket of the forward");
        let far = second.accept(22);
        talk(&near, &far);
        open = Some((near, far));
    }
    assert!(ended >= rounds);
    ended
}
