//! Streams between every ordered pair of a VMCI guest, a virtio guest and a program of the host; forwards.

use serde_json::Value;
use vmlane_tests::alone::output;
use vmlane_tests::topology::{MIXED, Topology};
use vmlane_tests::{Bed, TIMEOUT, Process, Service, full, kept, python, python_on_host, serve};

use crate::host::lines_of;

vmlane_tests::tests! {
    guests in KINDS { streams_work_between_every_pair, forwards_of_virtio_guests_reach_their_targets }
    long { streams_work_between_every_pair_of_6_1 }
}

const PORT: u32 = 6100;
const HOST: u32 = 2;

fn bytes() -> u64 {
    if full() { 64 << 20 } else { 8 << 20 }
}

/// Runs every case from `from` (a guest, or "host") against the server at `cid` and `port`.
fn attempt(bed: &Bed, from: &str, (cid, port): (u32, u32)) -> Value {
    let words = format!("try {cid} {port} {}", bytes());
    if from != "host" {
        return python(&bed.guest(from), &format!("pairs {words}"));
    }
    let printed = output(python_on_host(bed, &["pairs.py"]).args(words.split(' ')));
    serde_json::from_str(printed.lines().last().unwrap_or_default()).unwrap()
}

/// In three guests, and on the host.
fn servers(bed: &Bed) -> (Vec<Service>, Process) {
    let guests = ["a", "b", "c"].map(|name| serve(&bed.guest(name), &format!("pairs serve {PORT}")));
    let (host, mut lines) = lines_of(&mut python_on_host(bed, &["pairs.py", "serve", &PORT.to_string()]));
    assert_eq!(lines.next().unwrap().unwrap(), "listening");
    (guests.into(), host)
}

fn pairs(bed: &Bed, kernel: &str) {
    let _servers = servers(bed);
    // SEQPACKET exists between two virtio guests only; their server listens for streams, so it is refused
    // there, too.
    for (from, to, cid) in [
        ("a", "b (virtio)", 4),
        ("a", "host", HOST),
        ("b", "a (VMCI)", 3),
        ("b", "c (virtio)", 5),
        ("b", "host", HOST),
        ("host", "a (VMCI)", 3),
        ("host", "b (virtio)", 4),
    ] {
        let result = attempt(bed, from, (cid, PORT));
        let seqpacket = result["seqpacket"].as_str().unwrap();
        assert_ne!(seqpacket, "connected", "{from} to {to}");
        kept(
            "pairs",
            &format!(
                "{from} to {to}, kernel {kernel}: {} MiB each way at once, SHA-256 equal, {:.0} Mbit/s; half-close, ends, 200 \
                 connections ({} retried), refused port; SEQPACKET: {seqpacket}",
                bytes() >> 20,
                result["mbit_per_s"].as_f64().unwrap(),
                result["again"]
            ),
        );
    }
}

fn streams_work_between_every_pair(bed: &Bed) {
    pairs(bed, "6.12");
}

fn streams_work_between_every_pair_of_6_1() {
    let bed = Bed::open(&Topology { kernels: &["6.1"; 4], ..MIXED });
    pairs(&bed, "6.1");
    bed.finish();
}

/// A virtio guest's connects to a forwarded port reach its target, those to other ports the host.
fn forwards_of_virtio_guests_reach_their_targets(bed: &Bed) {
    let _servers = servers(bed);
    for (from, to, what) in [
        ("b", (HOST, 7000), "virtio to VMCI"),
        ("b", (HOST, 7001), "virtio to virtio"),
        ("c", (9, PORT), "the host as an enclave's parent"),
        ("c", (9, 7002), "an enclave's parent forwards to a VMCI guest"),
    ] {
        let result = attempt(bed, from, to);
        let rate = result["mbit_per_s"].as_f64().unwrap();
        kept("pairs", &format!("forward, {what}: {} MiB each way equal, {rate:.0} Mbit/s", bytes() >> 20));
    }
    // c sees the host as its parent.
    let see = "import socket
s = socket.socket(40, 1); s.bind((0xffffffff, 6300)); s.listen()
print('listening', flush=True)
print(s.accept()[1][0], flush=True)";
    let running = bed.guest("c").spawn(["python3", "-c", see]).unwrap();
    running.wait_for("listening", TIMEOUT).unwrap();
    output(&mut python_on_host(bed, &["-c", "import vs; s = vs.connected(5, 6300, again=0)"]));
    assert_eq!(running.wait().unwrap().stdout().lines().last(), Some("9"));
}
