//! `vmlane daemon --can-replace`: of the daemon that runs, of what one has left, and of daemons of other versions.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
/// Where a state file says which layout it has.
const LAYOUT_AT: u64 = 8;

/// A runtime directory, and a daemon in it that ends as an operator ends it, so that its keeper goes too.
struct Place {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = kill_process(Pid::from_child(&daemon), Signal::TERM);
            let _ = daemon.wait();
        }
    }
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), daemon: None };
        fs::write(place.folder.path().join("vmlane.toml"), "[[vm]]\nname = \"a\"\ncid = 3\n").unwrap();
        place
    }

    fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn start(&mut self) -> u32 {
        let mut command = Command::new(VMLANE);
        command.args(["daemon", "--config"]).arg(self.folder.path().join("vmlane.toml"));
        command.arg("--runtime-dir").arg(self.run()).env_remove("NOTIFY_SOCKET");
        let daemon = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = daemon.id();
        self.daemon = Some(daemon);
        eventually("the daemon answers", || (self.status()?["pid"] == pid).then_some(()));
        pid
    }

    fn status(&self) -> Option<Value> {
        let mut command = Command::new(VMLANE);
        let output = command.args(["status", "--json", "--runtime-dir"]).arg(self.run()).output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Exit code, and what it says.
    fn asks(&self) -> (Option<i32>, String) {
        let mut command = Command::new(VMLANE);
        let output =
            command.args(["daemon", "--can-replace", "--runtime-dir"]).arg(self.run()).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    fn can(&self, words: &str) {
        let (code, said) = self.asks();
        assert!(code == Some(0) && said.contains(words), "{code:?}: {said}");
    }

    fn cannot(&self, words: &[&str]) {
        let (code, said) = self.asks();
        assert!(code == Some(1) && words.iter().all(|word| said.contains(word)), "{code:?}: {said}");
    }
}

/// The layout of this program's state.
fn layout() -> u32 {
    let mut place = Place::new();
    place.start();
    let layout = place.status().unwrap()["layout"].as_u64().expect("status names the layout");
    u32::try_from(layout).unwrap()
}

#[test]
fn nothing_is_in_the_way_where_no_daemon_runs() {
    let place = Place::new();
    place.can("no daemon runs in");
    assert!(!place.run().exists(), "asking makes nothing");
}

#[test]
fn a_daemon_of_this_program_can_be_replaced_and_is_not_touched() {
    let mut place = Place::new();
    let pid = place.start();
    let line = format!("(process {pid}, version {})", env!("CARGO_PKG_VERSION"));
    place.can(&line);
    assert_eq!(place.status().unwrap()["pid"], pid);
}

/// The state that the keeper of a runtime directory holds.
fn state_file(run: &Path) -> fs::File {
    let keeper = fs::read_dir("/proc").unwrap().flatten().find(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let words: Vec<&str> = line.split('\0').collect();
        words.contains(&"keeper") && words.contains(&run.to_str().unwrap())
    });
    let descriptors = fs::read_dir(keeper.expect("a keeper").path().join("fd")).unwrap().flatten();
    let named = descriptors
        .map(|entry| entry.path())
        .find(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("vmlane-hypervisor")));
    fs::File::options().read(true).write(true).open(named.expect("the state")).unwrap()
}

#[test]
fn what_a_daemon_has_left_is_judged_by_its_own_layout() {
    let layout = layout();
    let mut place = Place::new();
    place.start();
    let mut daemon = place.daemon.take().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    place.can("no daemon runs; the state that one has left has layout");
    let state = state_file(&place.run());
    let write = |layout: u32| state.write_all_at(&layout.to_le_bytes(), LAYOUT_AT).unwrap();
    write(layout + 1);
    place.cannot(&[
        &format!("has layout {}", layout + 1),
        &format!("knows {layout}"),
        "systemctl stop vmlane vmlane-keeper",
    ]);
    state.write_all_at(&[0; 8], 0).unwrap();
    place.cannot(&["the layout of the state that one has left is not known"]);
    // The next daemon makes a new one.
    place.start();
    place.can("the daemon that runs");
}

/// A daemon that answers each method with a body or a refusal.
fn answers(place: &Place, answer: fn(&str) -> Value) {
    fs::create_dir_all(place.run()).unwrap();
    let listener = UnixListener::bind(place.run().join("control.sock")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
                let line = answer(request["method"].as_str().unwrap()).to_string() + "\n";
                stream.write_all(line.as_bytes()).unwrap();
            }
        }
    });
}

fn refusal(message: &str) -> Value {
    json!({"version": 1, "error": {"code": "failed", "message": message}})
}

#[test]
fn a_daemon_of_another_layout_is_left_alone() {
    let place = Place::new();
    answers(&place, |_| json!({"version": 1, "ok": {"pid": 7, "daemon": "9.9.9", "layout": 1_000_000}}));
    place.cannot(&["(process 7, version 9.9.9)", "layout 1000000", "Install a version that knows"]);
}

/// Daemons before the layout was in their answers: a refusal to hand over names it.
#[test]
fn daemons_that_do_not_say_their_layout_are_asked_for_it() {
    fn old(method: &str, layout: u32) -> Value {
        match method {
            "ping" => json!({"version": 1, "ok": {"pid": 7, "daemon": "0.1.0"}}),
            "hand_over" => refusal(&format!(
                "this daemon's state has layout {layout}, the one that asks knows 4294967295; this one stays"
            )),
            other => panic!("{other} is not asked"),
        }
    }
    let place = Place::new();
    answers(&place, |method| old(method, 3));
    place.cannot(&["layout 3"]);
    let place = Place::new();
    answers(&place, |method| old(method, 4));
    let (code, said) = place.asks();
    assert_eq!(code == Some(0), layout() == 4, "{said}");
}

#[test]
fn a_daemon_that_does_not_answer_so_is_not_called_replaceable() {
    let place = Place::new();
    answers(&place, |_| json!({"version": 1, "ok": "hello"}));
    place.cannot(&["is not known"]);
    let place = Place::new();
    answers(&place, |method| match method {
        "ping" => json!({"version": 1, "ok": {"pid": 7, "daemon": "0.1.0"}}),
        _ => refusal("no"),
    });
    place.cannot(&["is not known: no"]);
}
