//! `kill -9` under traffic between two virtio NICs with packed rings: the next daemon goes on from what the
//! last one left in memory of the VMMs, and no chain is lost or comes back twice.

#[path = "common/nic.rs"]
mod nic;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nic::{Nic, PATIENCE, SIZE};

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

struct Daemon(Child);

impl Daemon {
    fn start(folder: &Path) -> Daemon {
        let child = Command::new(env!("CARGO_BIN_EXE_vmlane"))
            .arg("daemon")
            .arg("--config")
            .arg(folder.join("vmlane.toml"))
            .arg("--runtime-dir")
            .arg(folder.join("run"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Daemon(child.unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL; fails only if it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn killed(packed: bool, kills: usize) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("vmlane.toml"), CONFIG).unwrap();
    let socket = |vm: &str| folder.path().join("run/vm").join(vm).join("nic0.sock");
    let mut daemon = Daemon::start(folder.path());
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
        let (mut moved, deadline) = (0, Instant::now() + PATIENCE);
        while moved < 2000 + 77 * kill {
            moved += turn(&mut a, &mut b);
            assert!(Instant::now() < deadline, "frames do not move: {moved}");
        }
        if kill == kills {
            break;
        }
        let start = Instant::now();
        drop(daemon);
        daemon = Daemon::start(folder.path());
        b.attach(&socket("b"));
        a.attach(&socket("a"));
        while turn(&mut a, &mut b) == 0 {
            assert!(start.elapsed() < PATIENCE, "frames do not move again");
        }
        pauses.push(start.elapsed());
    }
    // All that was sent comes back.
    let deadline = Instant::now() + PATIENCE;
    while !a.sent.is_empty() {
        a.settle();
        b.receive();
        assert!(Instant::now() < deadline, "{} chains do not come back", a.sent.len());
    }
    drop(daemon);
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
