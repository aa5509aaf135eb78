//! What happens when a thread of a confined daemon tries more than it may.

use std::fs;
use std::time::Duration;

use vmlane_api::call::DebugTrespass;
use vmlane_guestsim::vfio_user::Client as Vmm;
use vmlane_testkit::{Daemon, contains_all};

use crate::{CONTROL, call, daemon, panic, place, vmm};

const CONFIG: &str = "[daemon]\nfault_injection = true\n\
    [[vm]]\nname = \"web\"\ncid = 3\nnic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n";
/// Exit code after a violation.
const VIOLATED: i32 = 71;

/// A part of VM "web" tries a system call that it has no use for.
fn trespass(daemon: &Daemon, at: &str) -> Result<(), String> {
    call(daemon, &DebugTrespass { vm: "web".into(), at: at.into() })
}

#[test]
fn a_panic_of_a_confined_daemon_needs_no_more() {
    let daemon = daemon(CONFIG);
    panic(&daemon, "web", None).unwrap();
    let mut vmm = vmm(&daemon, "web");
    assert!(vmm.read_u32(1, CONTROL).is_err(), "a panic, backtrace and all");
    vmm.read_u32(1, CONTROL).unwrap();
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
}

#[test]
fn a_thread_that_tries_more_ends_the_daemon_and_is_named() {
    for (at, socket, thread) in [("vmci", "vmci.sock", "vfu-web/vmci"), ("nic0", "nic0.sock", "vfu-web/nic0")]
    {
        let daemon = daemon(CONFIG);
        let mut vmm = Vmm::connect(daemon.socket("web", socket)).unwrap();
        trespass(&daemon, at).unwrap();
        // Who keeps the daemon's files holds this socket, too.
        vmm.stream().set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        assert!(vmm.read_u32(1, 0).is_err(), "the daemon no longer answers");
        assert_eq!(daemon.wait().code(), Some(VIOLATED), "{}", daemon.log());
        let words = format!("confinement violated: thread {thread} attempted system call");
        contains_all(&daemon.log(), &[&words]);
    }
}

#[test]
fn without_confinement_the_same_is_harmless_and_a_warning_is_logged() {
    let daemon = place(CONFIG).with(&["--no-confine"]);
    daemon.start();
    let mut vmm = vmm(&daemon, "web");
    trespass(&daemon, "vmci").unwrap();
    vmm.read_u32(1, CONTROL).unwrap();
    contains_all(&daemon.log(), &["NOT CONFINED"]);
    contains_all(&daemon.must(&["status"]), &["confined: no"]);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert!(status.lines().any(|line| line == "Seccomp:\t0"), "{status}");
}
