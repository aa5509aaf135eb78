//! `kill -9` under traffic between two virtio NICs with packed rings: the next daemon goes on from what the
//! last one left in memory of the VMMs, and no chain is lost or comes back twice.

use std::time::Instant;

use vmlane_guestsim::virtio_nic::{Nic, SIZE};
use vmlane_testkit::{LONGEST, wait_until};

use crate::common::daemon;

const CONFIG: &str = "\
[[vm]]
name = \"a\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", packed = true, mac = \"52:54:00:00:00:01\" } ]
[[vm]]
name = \"b\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", packed = true, mac = \"52:54:00:00:00:02\" } ]
";

fn killed(packed: bool, kills: usize) {
    let daemon = daemon(CONFIG);
    let socket = |vm: &str| daemon.socket(vm, "nic0.sock");
    let (mut a, mut b) = (Nic::new(packed), Nic::new(packed));
    b.attach(&socket("b"));
    a.attach(&socket("a"));
    let (mut next, mut twice, mut last, mut total) = (0u64, 0u64, None::<u64>, 0u64);
    let mut lost = 0u64;
    let mut pauses = Vec::new();
    let mut turn = |a: &mut Nic, b: &mut Nic| {
        while a.send(next) {
            next += 1;
        }
        a.settle();
        let came = b.receive();
        for &number in &came {
            match last {
                Some(last) if number <= last => twice += 1,
                _ => {
                    lost += number - last.map_or(0, |last| last + 1);
                    last = Some(number);
                }
            }
        }
        total += came.len() as u64;
        came.len()
    };
    for kill in 0..=kills {
        // Some thousand frames, then another number of them, so that it dies elsewhere each time.
        let (mut moved, deadline) = (0, Instant::now() + LONGEST);
        while moved < 2000 + 77 * kill {
            moved += turn(&mut a, &mut b);
            assert!(Instant::now() < deadline, "frames do not move: {moved}");
        }
        if kill == kills {
            break;
        }
        let start = Instant::now();
        daemon.kill();
        daemon.launch();
        b.attach(&socket("b"));
        a.attach(&socket("a"));
        while turn(&mut a, &mut b) == 0 {
            assert!(start.elapsed() < LONGEST, "frames do not move again");
        }
        pauses.push(start.elapsed());
    }
    // All that was sent comes back.
    wait_until("all chains come back", || {
        a.settle();
        b.receive();
        a.sent.is_empty()
    });
    // What was copied and not completed is sent again; nothing that was completed is.
    assert!(twice <= kills as u64 * 2 * u64::from(SIZE), "{twice} frames came twice");
    println!(
        "packed {packed}: {kills} kills, {total} frames, {twice} came twice, {lost} dropped; pauses {pauses:?}"
    );
    assert!(lost <= kills as u64 * 2 * u64::from(SIZE), "{lost} frames got lost");
}

#[test]
fn no_chain_is_lost_or_comes_back_twice() {
    killed(true, 8);
    killed(false, 8);
}
