//! `vmlane capture vsock:...` of a confined daemon: a connection between two virtio-vsock guests, and
//! datagrams of VMCI guests, as tshark reads them.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use vmlane_guestsim::{Driver, attached};
use vmlane_sock::{Address, Datagram, Host};
use vmlane_testkit::{Daemon, Process, skipped, wait_until};
use vmlane_wire::virtio_vsock::op;
use vmlane_wire::vmci::Handle;

use crate::common;
use crate::common::vsock::Guest;

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
/// What tshark is to print of each record.
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

struct World {
    daemon: Daemon,
    a: Guest,
    b: Guest,
    c: Driver,
    d: Driver,
}

impl World {
    fn new() -> World {
        let daemon = common::daemon(CONFIG);
        let virtio = |vm, cid| Guest::attach(&daemon.socket(vm, "vsock.sock"), cid);
        let vmci = |vm| attached::attach(&daemon.socket(vm, "vmci.sock"), 16 << 20).unwrap();
        World { a: virtio("a", 3), b: virtio("b", 4), c: vmci("c"), d: vmci("d"), daemon }
    }

    /// Begins a capture, and waits until it runs: its file has a begin.
    fn capture(&self, file: &Path, arguments: &[&str]) -> Process {
        let mut command = self.daemon.command(&[&["capture"], arguments].concat());
        let capture = Process(command.arg("-w").arg(file).stderr(Stdio::piped()).spawn().unwrap());
        wait_until("the capture runs", || std::fs::metadata(file).is_ok_and(|file| file.len() > 0));
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

/// The lines of tshark: a record's fields. None: there is no tshark to compare with.
fn tshark(file: &Path) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=|"]);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let Ok(output) = command.output() else {
        skipped("there is no tshark, which `make test` installs");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
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
    let host = Datagram::bind_by(&Host::at(&world.daemon.runtime()), 2000).unwrap();
    let file = world.daemon.path("x.pcapng");
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
    capture.signal(Signal::INT);
    let ran = capture.finish();
    assert_eq!((ran.code, &*ran.err), (0, "10 captured, 0 lost\n"));
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
    let file = world.daemon.path("x.pcapng");
    let capture = world.capture(&file, &["--vm", "b", "--vm", "d", "--port", "88", "-c", "2", "-s", "36"]);
    world.connection(1000);
    for (port, payload) in [(87, b"no"), (88, b"on"), (88, b"tw")] {
        assert_eq!(world.c.send_to(Handle::new(6, port), 55, payload), 26);
    }
    capture.finish().good();
    let lines = |payload| format!("vsock:d|0x00000001|5|55|6|88|4|1|0|||{}|datagram", hex(payload));
    if let Some(read) = tshark(&file) {
        assert_eq!(read, [lines(b"on"), lines(b"tw")]);
    }
}
