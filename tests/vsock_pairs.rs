//! Streams between every ordered pair of a VMCI guest, a virtio guest and a program of the host; forwards.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vmlane_lab::LabSpec;
use vmlane_tests::{Bed, PATIENCE, Service, full, json, kept, python_on_host, serve};

const PORT: u32 = 6100;
const HOST: u32 = 2;

/// a has VMCI, b and c have virtio-vsock. b's connects to ports 7000 and 7001 of the host reach a and c;
/// for c the host has CID 9, as the parent has for an enclave.
const CONFIG: &str = "\
[[vm]]
name = \"b\"
vsock = \"virtio\"
forward = [ { port = 7000, to = \"a:6100\" }, { port = 7001, to = \"c:6100\" } ]
[[vm]]
name = \"c\"
vsock = \"virtio\"
parent_cid = 9
forward = [ { port = 7002, to = \"a:6100\" } ]
";

fn bed(what: &str, kernels: [&str; 3]) -> Bed {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), CONFIG).unwrap();
    let mut spec = LabSpec::new(&format!("{what}-{}", std::process::id())).device("vmci").unwrap();
    spec.kernels = kernels.map(str::to_owned).to_vec();
    spec.guests = 3;
    spec.boot_seconds = 300;
    spec.daemon_config = Some(file.path().to_owned());
    Bed::up(&spec)
}

/// The script, as a program of the host.
fn on_host(bed: &Bed, words: &str) -> Command {
    let mut command = python_on_host(bed, &["pairs.py"]);
    command.args(words.split(' '));
    command
}

/// A server of the host that does not outlive its test.
struct HostServer(Child);

impl HostServer {
    fn start(bed: &Bed) -> HostServer {
        let mut child = on_host(bed, &format!("serve {PORT}")).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "listening\n");
        HostServer(child)
    }
}

impl Drop for HostServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bytes() -> u64 {
    if full() { 64 << 20 } else { 8 << 20 }
}

/// Runs every case from `from` (a guest, or "host") against the server at `cid` and `port`.
fn attempt(bed: &Bed, from: &str, (cid, port): (u32, u32)) -> Value {
    let words = format!("try {cid} {port} {}", bytes());
    if from != "host" {
        let guest = bed.guest(from);
        let argv = ["python3".to_owned(), "/t/pairs.py".to_owned()];
        let output = guest.exec(argv.into_iter().chain(words.split(' ').map(str::to_owned))).unwrap();
        return json(&guest, &words, &output);
    }
    let output = on_host(bed, &words).stdin(Stdio::null()).output().unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "host: {words}: {said}{complained}");
    serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap()
}

fn servers(bed: &Bed) -> (Vec<Service>, HostServer) {
    let guests = ["a", "b", "c"].map(|name| serve(&bed.guest(name), &format!("pairs serve {PORT}")));
    (guests.into(), HostServer::start(bed))
}

fn pairs(kernels: [&str; 3]) {
    let bed = bed("pairs", kernels);
    let servers = servers(&bed);
    // SEQPACKET exists between two virtio guests only; their server listens for streams, so it is refused there, too.
    for (from, to, cid) in [
        ("a", "b (virtio)", 4),
        ("a", "host", HOST),
        ("b", "a (VMCI)", 3),
        ("b", "c (virtio)", 5),
        ("b", "host", HOST),
        ("host", "a (VMCI)", 3),
        ("host", "b (virtio)", 4),
    ] {
        let result = attempt(&bed, from, (cid, PORT));
        let seqpacket = result["seqpacket"].as_str().unwrap();
        assert_ne!(seqpacket, "connected", "{from} to {to}");
        kept(
            2,
            &format!(
                "{from} to {to}, kernel {}: {} MiB each way at once, SHA-256 equal, {:.0} Mbit/s; half-close, ends, 200 \
                 connections ({} retried), refused port; SEQPACKET: {seqpacket}",
                kernels[0],
                bytes() >> 20,
                result["mbit_per_s"].as_f64().unwrap(),
                result["again"]
            ),
        );
    }
    drop(servers);
    bed.finish();
}

#[test]
fn streams_work_between_every_pair() {
    pairs(["6.12"; 3]);
    if full() {
        pairs(["6.1"; 3]);
    }
}

/// A virtio guest's connects to a forwarded port reach its target, those to other ports the host.
#[test]
fn forwards_of_virtio_guests_reach_their_targets() {
    let bed = bed("pairfwd", ["6.12"; 3]);
    let servers = servers(&bed);
    for (from, to, what) in [
        ("b", (HOST, 7000), "virtio to VMCI"),
        ("b", (HOST, 7001), "virtio to virtio"),
        ("c", (9, PORT), "the host as an enclave's parent"),
        ("c", (9, 7002), "an enclave's parent forwards to a VMCI guest"),
    ] {
        let result = attempt(&bed, from, to);
        let rate = result["mbit_per_s"].as_f64().unwrap();
        kept(2, &format!("forward, {what}: {} MiB each way equal, {rate:.0} Mbit/s", bytes() >> 20));
    }
    // c sees the host as its parent.
    let see = "import socket
s = socket.socket(40, 1); s.bind((0xffffffff, 6300)); s.listen()
print('listening', flush=True)
print(s.accept()[1][0], flush=True)";
    let running = bed.guest("c").spawn(["python3", "-c", see]).unwrap();
    running.wait_for("listening", PATIENCE).unwrap();
    let connect = "import vs; s = vs.connected(5, 6300, again=0)";
    assert!(python_on_host(&bed, &["-c", connect]).status().unwrap().success());
    assert_eq!(running.wait().unwrap().stdout().lines().last(), Some("9"));
    drop(servers);
    bed.finish();
}
