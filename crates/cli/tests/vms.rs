//! The configuration in several files, and a running daemon that follows it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::eventually;
use serde_json::Value;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const WEB: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";

/// What a command did.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory with a configuration, and what a daemon makes in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new(config: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        // Any user that the daemon becomes gets through.
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o711)).unwrap();
        place.write("etc/vmlane.toml", config);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn daemon_command(&self) -> Command {
        let log = fs::File::options().append(true).create(true).open(self.path("log")).unwrap();
        let mut command = Command::new(VMLANE);
        command.args(["daemon", "--config"]).arg(self.path("etc/vmlane.toml"));
        command.arg("--runtime-dir").arg(self.path("run"));
        command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(log);
        command
    }

    /// Starts a daemon, confined, and waits until it answers.
    fn start(&self) -> Daemon {
        let daemon = Daemon(self.daemon_command().spawn().unwrap());
        let pid = u64::from(daemon.0.id());
        eventually("the daemon answers", || {
            let status = self.ask(&["status", "--json"]);
            (status.code == 0 && json(&status.out)["pid"] == pid).then_some(())
        });
        daemon
    }

    fn ask(&self, words: &[&str]) -> Ran {
        let mut command = Command::new(VMLANE);
        command.args(words).arg("--runtime-dir").arg(self.path("run"));
        run(command)
    }

    /// A command that has to succeed, and what it printed.
    fn must(&self, words: &[&str]) -> String {
        let ran = self.ask(words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran.out
    }

    /// Names of the VMs that are served.
    fn served(&self) -> String {
        let status = json(&self.must(&["status", "--json"]));
        let names = status["vms"].as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap());
        names.collect::<Vec<_>>().join(" ")
    }
}

fn run(mut command: Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[track_caller]
fn contains_all(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
}

#[test]
fn a_confined_daemon_follows_the_files_of_conf_d() {
    let place = Place::new(WEB);
    let _daemon = place.start();
    assert_eq!(place.served(), "web");
    // The directory comes when the daemon sees nothing of the host any more.
    place.write(
        "etc/conf.d/10-db.toml",
        "[[vm]]\nname = \"db\"\ncid = 4\nnic = [{ model = \"vmxnet3\", port_group = \"p\" }]\n",
    );
    place.write("etc/conf.d/20-net.toml", "[[port_group]]\nname = \"p\"\nvlan = 7\n");
    place.write("etc/conf.d/20-net.toml~", "[[vm]]\nname = \"old\"\ncid = 9\n");
    assert_eq!(place.must(&["reload"]), "vm \"db\": added\n");
    assert_eq!(place.served(), "web db");
    place.write("etc/conf.d/30.toml", "\n[[vm]]\nname = \"app\"\ncid = 4\n");
    let refused = place.ask(&["reload"]);
    assert_eq!(refused.code, 1);
    contains_all(
        &refused.err,
        &["conf.d/30.toml:4: vm \"app\": cid = 4 is taken by VM \"db\"", "conf.d/10-db.toml:3"],
    );
    contains_all(&refused.err, &["stays in force"]);
    fs::remove_file(place.path("etc/conf.d/30.toml")).unwrap();
    fs::remove_file(place.path("etc/conf.d/10-db.toml")).unwrap();
    assert_eq!(place.must(&["reload"]), "vm \"db\": removed\n");
    let mut arguments = Command::new(VMLANE);
    place.write("etc/conf.d/40.toml", "[[vm]]\nname = \"late\"\ncid = 5\n");
    arguments.args(["qemu-args", "late", "--config"]).arg(place.path("etc/vmlane.toml"));
    let arguments = run(arguments);
    assert_eq!(arguments.code, 0, "{arguments:?}");
}

#[test]
fn a_daemon_does_not_start_with_a_mistake_in_conf_d() {
    let place = Place::new(WEB);
    place.write("etc/conf.d/10.toml", "[[vm]]\nname = \"db\"\nsid = 4\n");
    let mut command = place.daemon_command();
    let ran = run({
        command.stderr(Stdio::piped());
        command
    });
    assert_ne!(ran.code, 0);
    contains_all(&ran.err, &["conf.d/10.toml:3: unknown field `sid`", "sid = 4"]);
}
