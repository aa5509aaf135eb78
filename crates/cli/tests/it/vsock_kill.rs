//! `kill -9` under streams between virtio-vsock guests whose VMMs never connect again: the next daemon goes on where the last
//! one was, in the same session, and every byte arrives once.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vmlane_guestsim::vsock_vm::VsockVm;
use vmlane_testkit::{LONGEST, wait_until};

use crate::common::daemon;

const CONFIG: &str = "\
[[vm]]
name = \"a\"
cid = 3
vsock = \"virtio\"
[[vm]]
name = \"b\"
cid = 4
vsock = \"virtio\"
";
const STREAMS: u32 = 8;

fn killed(packed: bool, kills: u64) {
    let daemon = daemon(CONFIG);
    let attach = |cid, vm| VsockVm::attach(cid, &daemon.socket(vm, "vsock.sock"), packed);
    let (mut a, mut b) = (attach(3, "a"), attach(4, "b"));
    (0..STREAMS).for_each(|number| a.connect((1000 + number, 4, 2000 + number)));
    let turn = |a: &mut VsockVm, b: &mut VsockVm| {
        // More than the daemon moves before it is killed again.
        for end in a.ends.values_mut().chain(b.ends.values_mut()) {
            end.wanted = end.sent + (1 << 20);
            assert!(!end.reset, "a connection was reset");
        }
        let moved = a.turn() | b.turn();
        if !moved {
            std::thread::yield_now();
        }
        moved
    };
    let received = |vm: &VsockVm| vm.ends.values().map(|end| end.received).sum::<u64>();
    let mut longest = Duration::ZERO;
    for kill in 0..kills {
        let (before, since) = (received(&b), Instant::now());
        // Another amount each time, so that it dies elsewhere.
        while received(&b) < before + (64 << 10) + kill * 977 % (256 << 10) {
            turn(&mut a, &mut b);
            assert!(since.elapsed() < LONGEST, "streams do not go on after kill {kill}");
        }
        longest = longest.max(since.elapsed());
        daemon.kill();
        daemon.launch();
    }
    wait_until("all that was sent has arrived", || {
        a.turn();
        b.turn();
        let whole = |from: &VsockVm, to: &VsockVm| {
            let sent = from
                .ends
                .iter()
                .map(|(&(port, peer, peer_port), end)| ((peer_port, from.cid, port), peer, end.sent));
            sent.into_iter().all(|(name, _, sent)| to.ends.get(&name).is_some_and(|end| end.received == sent))
        };
        a.ends.values_mut().chain(b.ends.values_mut()).for_each(|end| end.wanted = end.sent);
        whole(&a, &b) && whole(&b, &a) && a.is_settled() && b.is_settled()
    });
    assert_eq!((a.ends.len(), b.ends.len()), (STREAMS as usize, STREAMS as usize));
    println!(
        "packed {packed}: {kills} kills, {} and {} bytes; longest round {longest:?}",
        received(&a),
        received(&b)
    );
}

#[test]
fn streams_of_virtio_vsock_guests_go_on() {
    killed(false, 60);
    killed(true, 20);
}

/// `hold` in `[daemon]`.
#[test]
fn a_session_for_which_no_daemon_comes_in_time_is_closed_and_others_are_not() {
    let held = Duration::from_secs(1);
    let config = format!("[daemon]\nhold = 1\n{CONFIG}[[vm]]\nname = \"c\"\ncid = 5\n");
    let daemon = daemon(&config);
    let state = |vm: &str| daemon.vm(vm)["state"].as_str().unwrap().to_owned();
    let connect = |vm, name| {
        let vmm = UnixStream::connect(daemon.socket(vm, name)).unwrap();
        vmm.set_read_timeout(Some(LONGEST)).unwrap();
        vmm
    };
    assert_eq!(["a", "b", "c"].map(state), ["absent"; 3]);
    let (mut virtio, vmci) = (connect("a", "vsock.sock"), connect("c", "vmci.sock"));
    wait_until("both are attached", || state("a") == "booting" && state("c") == "no driver");
    let left_at = Instant::now();
    daemon.kill();
    daemon
        .ask(&["status"])
        .fails(1, &["the keeper holds the sessions of a/vsock, c/vmci", "no daemon answers"]);
    assert_eq!(virtio.read(&mut [0]).unwrap(), 0);
    assert!(left_at.elapsed() >= held, "{:?}", left_at.elapsed());
    daemon.ask(&["status"]).fails(1, &["holds the sessions of c/vmci; ", "closed, the sessions of a/vsock"]);
    daemon.start();
    assert!(daemon.log().contains("the keeper has closed these"), "{}", daemon.log());
    assert_eq!(["a", "b", "c"].map(state), ["lost", "absent", "no driver"]);
    daemon.ask(&["connect", "a", "7"]).fails(1, &["has lost its device", "restart its QEMU"]);
    let _qemu = VsockVm::attach(3, &daemon.socket("a", "vsock.sock"), false);
    wait_until("its QEMU was restarted", || state("a") == "ready");
    // The next daemon finds nothing of it.
    daemon.kill();
    daemon.start();
    wait_until("it goes on", || state("a") == "ready" && state("c") == "no driver");
    drop(vmci);
    wait_until("its VMM is gone", || state("c") == "absent");
}
