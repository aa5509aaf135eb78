//! `vmlane daemon --can-replace`: of the daemon that runs, of what one has left, and of daemons of other
//! versions.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};
use vmlane_testkit::{Daemon, Ran};

use crate::common::{daemon, place};

const CONFIG: &str = "[[vm]]\nname = \"a\"\ncid = 3\n";
/// Where a state file has the version of its layout.
const LAYOUT_AT: u64 = 8;

fn asks(place: &Daemon) -> Ran {
    place.ask(&["daemon", "--can-replace"])
}

fn can(place: &Daemon, words: &str) {
    let ran = asks(place);
    assert!(ran.succeeded() && ran.printed().contains(words), "{ran:?}");
}

fn cannot(place: &Daemon, words: &[&str]) {
    let ran = asks(place);
    assert!(ran.code == 1 && words.iter().all(|word| ran.printed().contains(word)), "{ran:?}");
}

/// The layout of this program's state.
fn layout() -> u32 {
    let layout = daemon(CONFIG).json(&["status"])["layout"].as_u64().expect("status names the layout");
    u32::try_from(layout).unwrap()
}

#[test]
fn nothing_is_in_the_way_where_no_daemon_runs() {
    let place = place(CONFIG);
    can(&place, "no daemon runs in");
    assert!(!place.runtime().exists(), "asking makes nothing");
}

#[test]
fn a_daemon_of_this_program_can_be_replaced_and_is_not_touched() {
    let daemon = daemon(CONFIG);
    let pid = daemon.pid();
    can(&daemon, &format!("(process {pid}, version {})", env!("CARGO_PKG_VERSION")));
    assert_eq!(daemon.json(&["status"])["pid"], pid);
}

/// The state that the keeper holds.
fn state_file(daemon: &Daemon) -> fs::File {
    let keeper = daemon.beside("keeper").expect("a keeper").as_raw_nonzero();
    let descriptors = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().flatten();
    let named = descriptors
        .map(|entry| entry.path())
        .find(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("vmlane-hypervisor")));
    fs::File::options().read(true).write(true).open(named.expect("the state")).unwrap()
}

#[test]
fn what_a_daemon_has_left_is_judged_by_its_own_layout() {
    let layout = layout();
    let daemon = daemon(CONFIG);
    daemon.kill();
    can(&daemon, "no daemon runs; the state that one has left has layout");
    let state = state_file(&daemon);
    let write = |layout: u32| state.write_all_at(&layout.to_le_bytes(), LAYOUT_AT).unwrap();
    // An upgrade that changed the layout, and the way back.
    for have in [layout - 1, layout + 1] {
        write(have);
        let (has, knows) = (format!("has layout {have}"), format!("knows {layout}"));
        let install =
            format!("Install a version that knows layout {have}, or move these VMs away or stop them");
        cannot(&daemon, &[&has, &knows, &install, "systemctl stop vmlane vmlane-keeper"]);
    }
    state.write_all_at(&[0; 8], 0).unwrap();
    cannot(&daemon, &["the layout of the state that one has left is not known"]);
    // The next daemon makes a new one.
    daemon.start();
    can(&daemon, "the daemon that runs");
}

/// In place of a daemon, one that answers each method so.
fn answers(answer: fn(&str) -> Value) -> Daemon {
    let place = place(CONFIG);
    fs::create_dir_all(place.runtime()).unwrap();
    let listener = UnixListener::bind(place.run("control.sock")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for message in BufReader::new(stream.try_clone().unwrap()).split(0) {
                let request: Value = serde_json::from_slice(&message.unwrap()).unwrap();
                let message = answer(request["method"].as_str().unwrap()).to_string() + "\0";
                stream.write_all(message.as_bytes()).unwrap();
            }
        }
    });
    place
}

#[test]
fn a_daemon_of_another_layout_is_left_alone() {
    let earlier = answers(|_| json!({"parameters": {"pid": 7, "daemon": "0.0.1", "layout": 1}}));
    cannot(&earlier, &["(process 7, version 0.0.1)", "layout 1,", "Install a version that knows layout 1,"]);
    let later = answers(|_| json!({"parameters": {"pid": 7, "daemon": "9.9.9", "layout": 1_000_000}}));
    cannot(&later, &["(process 7, version 9.9.9)", "layout 1000000", "Install a version that knows"]);
}

#[test]
fn a_daemon_that_does_not_answer_so_is_not_called_replaceable() {
    let place = answers(|_| json!({"parameters": "hello"}));
    cannot(&place, &["is not known"]);
    let place = answers(|_| json!({"parameters": {"pid": 7, "daemon": "0.1.0"}}));
    cannot(&place, &["is not known", "missing field `layout`"]);
    let place = answers(|_| json!({"error": "io.vmlane.Control.Failed", "parameters": {"message": "no"}}));
    cannot(&place, &["is not known: no"]);
}
