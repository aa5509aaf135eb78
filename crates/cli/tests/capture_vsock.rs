//! `vmlane capture vsock:...` of a confined daemon: a connection between two virtio-vsock guests, and datagrams of VMCI guests, as
//! tshark reads them.

mod common;
#[path = "common/vsock.rs"]
mod vsock;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::eventually;
use rustix::process::{Pid, Signal, kill_process};
use vmlane_guestsim::{Driver, attached};
use vmlane_sock::{Address, Datagram, Host};
use vmlane_wire::virtio_vsock::op;
use vmlane_wire::vmci::Handle;
use vsock::Guest;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const CONFIG: &str = "\
[[vm]]
name = \"a\"
cid = 3
vsock = \"virtio\"
[[vm]]
name = \"b\"
cid = 4
vsock = \"virtio\"
[[vm]]
name = \"c\"
cid = 5
[[vm]]
name = \"d\"
cid = 6
";
/// What tshark is to say of each record.
const FIELDS: [&str; 13] = [
    "frame.interface_name",
    "frame.packet_flags_direction",
    "vsock.src_cid",
    "vsock.src_port",
    "vsock.dst_cid",
    "vsock.dst_port",
    "vsock.op",
    "vsock.trans",
    "vsock.trans_len",
    "vsock.virtio.op",
    "vsock.virtio.len",
    "vsock.payload",
    "frame.comment",
];

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL; fails only if it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    folder: tempfile::TempDir,
    _daemon: Running,
    a: Guest,
    b: Guest,
    c: Driver,
    d: Driver,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let (config, run) = (folder.path().join("vmlane.toml"), folder.path().join("run"));
        std::fs::write(&config, CONFIG).unwrap();
        let mut command = Command::new(VMLANE);
        command.arg("daemon").arg("--config").arg(&config).arg("--runtime-dir").arg(&run);
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(Stdio::null());
        let daemon = Running(command.spawn().unwrap());
        eventually("the daemon answers", || {
            let mut command = Command::new(VMLANE);
            let status = command.arg("status").arg("--runtime-dir").arg(&run).output().unwrap().status;
            status.success().then_some(())
        });
        let socket = |vm: &str, name: &str| run.join("vm").join(vm).join(name);
        let virtio = |vm, cid| Guest::attach(&socket(vm, "vsock.sock"), cid);
        let vmci = |vm| attached::attach(&socket(vm, "vmci.sock"), 16 << 20).unwrap();
        World { a: virtio("a", 3), b: virtio("b", 4), c: vmci("c"), d: vmci("d"), folder, _daemon: daemon }
    }

    fn runtime(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Begins a capture, and waits until it runs: its file has a begin.
    fn capture(&self, file: &Path, arguments: &[&str]) -> Running {
        let mut command = Command::new(VMLANE);
        command.arg("capture").args(arguments).arg("-w").arg(file).arg("--runtime-dir").arg(self.runtime());
        let capture = Running(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        eventually("the capture runs", || (std::fs::metadata(file).ok()?.len() > 0).then_some(()));
        capture
    }

    /// A connection from the first to its end, each step delivered before the next one.
    fn connection(&mut self, port: u32) {
        let World { a, b, .. } = self;
        a.send(port, (4, 22), op::REQUEST, &[]);
        b.expect(op::REQUEST);
        b.send(22, (3, port), op::RESPONSE, &[]);
        a.expect(op::RESPONSE);
        a.send(port, (4, 22), op::RW, b"hello");
        b.expect(op::RW);
        b.send(22, (3, port), op::CREDIT_UPDATE, &[]);
        a.expect(op::CREDIT_UPDATE);
        b.send(22, (3, port), op::RW, b"answer");
        a.expect(op::RW);
        a.send(port, (4, 22), op::SHUTDOWN, &[]);
        b.expect(op::SHUTDOWN);
        b.send(22, (3, port), op::RST, &[]);
        a.expect(op::RST);
    }
}

/// Ends it; what it said of its records.
fn end(mut capture: Running) -> String {
    kill_process(Pid::from_child(&capture.0), Signal::INT).unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut capture.0.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(capture.0.wait().unwrap().code(), Some(0), "{said}");
    said
}

/// The lines of tshark: a record's fields. None: there is no tshark to compare with (`make test` installs it).
fn tshark(file: &Path) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=|"]);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("tshark: {error}");
            return None;
        }
    };
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(!out.contains("Malformed"), "{out}");
    Some(out.lines().map(str::to_owned).collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn tshark_reads_connections_between_virtio_guests_and_datagrams() {
    let mut world = World::new();
    let host = Datagram::bind_by(&Host::at(&world.runtime()), 2000).unwrap();
    let file = world.folder.path().join("x.pcapng");
    let capture = world.capture(&file, &["vsock:a", "vsock:c"]);
    world.connection(1000);
    assert_eq!(world.c.send_to(Handle::new(6, 88), 55, b"guest to guest"), 38);
    assert_eq!(world.d.await_datagrams()[0].payload, b"guest to guest");
    assert_eq!(world.c.send_to(Handle::new(2, 2000), 55, b"to host"), 31);
    let mut bytes = [0; 100];
    let (len, from) = host.recv_from(&mut bytes).unwrap();
    assert_eq!((&bytes[..len], from), (&b"to host"[..], Address { cid: 5, port: 55 }));
    host.send_to(b"from host", Address { cid: 5, port: 55 }).unwrap();
    assert_eq!(world.c.await_datagrams()[0].payload, b"from host");
    assert_eq!(end(capture), "10 captured, 0 lost\n");
    world.connection(1001);
    assert_eq!(world.c.send_to(Handle::new(6, 88), 55, b"late"), 28);

    let (out, back) = ("vsock:a|0x00000002|3|1000|4|22", "vsock:a|0x00000001|4|22|3|1000");
    let expected = [
        format!("{out}|1|2|44|1|0||"),
        format!("{back}|1|2|44|2|0||"),
        format!("{out}|4|2|44|5|5|{}|", hex(b"hello")),
        format!("{back}|3|2|44|6|0||"),
        format!("{back}|4|2|44|5|6|{}|", hex(b"answer")),
        format!("{out}|2|2|44|4|0||"),
        format!("{back}|2|2|44|3|0||"),
        format!("vsock:c|0x00000002|5|55|6|88|4|1|0|||{}|datagram", hex(b"guest to guest")),
        format!("vsock:c|0x00000002|5|55|2|2000|4|1|0|||{}|datagram", hex(b"to host")),
        format!("vsock:c|0x00000001|2|2000|5|55|4|1|0|||{}|datagram", hex(b"from host")),
    ];
    if let Some(lines) = tshark(&file) {
        assert_eq!(lines, expected);
    }
}

#[test]
fn filters_and_the_count_take_packets_and_datagrams_by_their_ports() {
    let mut world = World::new();
    let file = world.folder.path().join("x.pcapng");
    let mut capture =
        world.capture(&file, &["--vm", "b", "--vm", "d", "--port", "88", "-c", "2", "-s", "36"]);
    world.connection(1000);
    for (port, payload) in [(87, b"no"), (88, b"on"), (88, b"tw")] {
        assert_eq!(world.c.send_to(Handle::new(6, port), 55, payload), 26);
    }
    assert_eq!(capture.0.wait().unwrap().code(), Some(0));
    let lines = |payload| format!("vsock:d|0x00000001|5|55|6|88|4|1|0|||{}|datagram", hex(payload));
    if let Some(read) = tshark(&file) {
        assert_eq!(read, [lines(b"on"), lines(b"tw")]);
    }
}
