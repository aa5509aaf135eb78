//! An AF_XDP uplink on one end of a veth pair, in a network namespace of its own; what is at the other end is
//! sent and received by a packet socket.
#![allow(unsafe_code)] // packet sockets

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType};
use vmlane_guestsim::OneByOne;
use vmlane_host::uplink::xdp::{Xdp, XdpError, XdpFiles, XdpHold, XdpOptions};
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    ChecksumStatus, DropReason, FramePort, Layers, Network, Offload, PartialChecksum, PortStats, RxFrame,
    Transport, WakeUp,
};
use vmlane_testkit::{eventually, skipped, wait_until};
use vmlane_wire::ethernet::Tci;

use crate::namespace::{self, ip};

const OURS: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
/// "Local experimental" (IEEE 802): nothing else on the wire has it.
const TYPE: [u8; 2] = [0x88, 0xb5];

fn outside() -> bool {
    let has_xdp = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None).is_ok();
    let can = if has_xdp { "ip link add vmlx0 type veth peer name vmlx1" } else { "false" };
    namespace::outside(can, "needs root, AF_XDP and veth")
}

/// Makes the pair: `vmlx0` for the uplink, `vmlx1` for [`Wire`].
fn pair(queues: u16) {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add vmlx0 {queues} type veth peer name vmlx1 {queues}"));
    ip("link set vmlx1 up");
    ip("link set vmlx0 up");
    // Until the kernel has noticed that it has a link, an end drops what is sent.
    let has_link = |end: &&str| ip(&format!("link show {end}")).contains("state UP");
    wait_until("both ends have a link", || ["vmlx0", "vmlx1"].iter().all(has_link));
}

/// The other end of the pair.
struct Wire(OwnedFd);

impl Wire {
    fn new() -> Wire {
        let index = std::fs::read_to_string("/proc/net/dev_mcast").ok().and_then(|text| {
            let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some("vmlx1"))?;
            line.split_whitespace().next()?.parse().ok()
        });
        // SAFETY: plain system calls; the address is one of its family, and outlives the call.
        unsafe {
            let protocol = u16::to_be(libc::ETH_P_ALL as u16);
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol.into());
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(fd);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = index.expect("the index of vmlx1");
            let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
            let limit = libc::timeval { tv_sec: 60, tv_usec: 0 };
            let len = size_of::<libc::timeval>() as libc::socklen_t;
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), len);
            Wire(socket)
        }
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the kernel reads the frame, which outlives the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// The next frame from us.
    fn receive(&self) -> Vec<u8> {
        loop {
            let mut frame = vec![0; 5000];
            // SAFETY: the kernel writes at most as many bytes as there are.
            let len = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
            assert!(len > 0, "{}", io::Error::last_os_error());
            frame.truncate(len as usize);
            if frame[6..12] == OURS {
                return frame;
            }
        }
    }
}

struct Uplink {
    port: Xdp,
    hold: XdpHold,
    spans: Spans,
    stats: Arc<PortStats>,
}

fn options(queues: Option<u16>) -> XdpOptions {
    XdpOptions { name: "vmlx0".into(), queues }
}

fn open(queues: Option<u16>) -> Result<XdpFiles, XdpError> {
    XdpFiles::open(&options(queues))
}

impl Uplink {
    fn new(files: XdpFiles) -> Uplink {
        let stats = Arc::new(PortStats::default());
        let (port, hold) = Xdp::new(&options(None), files, stats.clone()).unwrap();
        let len = 128 << 10;
        let fd = memfd("test", len).unwrap();
        let map = MemoryMap::default();
        let map = map.map(MapRequest { guest: 0, len, offset: 0, fd, writable: true }).unwrap();
        Uplink { port, hold, spans: Spans::new(map, true), stats }
    }

    /// The next frame from the wire that a test has sent.
    fn fetch(&mut self) -> Vec<u8> {
        eventually("a frame from the wire", || self.try_fetch())
    }

    /// The same, if it has come.
    fn try_fetch(&mut self) -> Option<Vec<u8>> {
        loop {
            let token = self.port.fetch_one()?;
            let in_flight = self.port.frame(token);
            assert_eq!((in_flight.offload, in_flight.tag), (Offload::None, None));
            let mut bytes = vec![0; in_flight.len()];
            in_flight.spans.read(0, &mut bytes);
            assert_eq!(in_flight.head, &bytes[..in_flight.head.len()]);
            self.port.finish(&[token]);
            self.port.flush(Instant::now());
            if bytes[..6] == OURS {
                return Some(bytes);
            }
        }
    }

    fn deliver(
        &mut self,
        frame: &[u8],
        tag: Option<Tci>,
        checksum: Option<PartialChecksum>,
    ) -> Result<(), DropReason> {
        self.spans.clear();
        self.spans.push(0, frame.len()).unwrap();
        self.spans.write(0, frame);
        let head = frame.len().min(60);
        let layers = Layers {
            network: Network::Other,
            transport: Transport::Other,
            fragment: false,
            network_at: 14,
            transport_at: 34,
        };
        let packet = RxFrame {
            head: &frame[..head],
            body: &self.spans,
            body_at: head,
            body_len: frame.len() - head,
            tag,
            layers,
            checksum: ChecksumStatus::Good,
            aggregate: None,
            partial_checksum: checksum,
        };
        let outcome = self.port.deliver_one(&packet);
        self.port.flush(Instant::now());
        outcome
    }
}

/// A frame with a number in it.
fn frame(to: [u8; 6], from: [u8; 6], number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &TYPE, &number.to_be_bytes()].concat();
    frame.extend((0..).map(|at: u32| (at + number) as u8).take(len - frame.len()));
    frame
}

#[test]
fn frames_pass_both_ways_many_times_around_the_rings() {
    if outside() {
        return;
    }
    pair(1);
    let files = open(None).unwrap();
    assert_eq!((files.facts.mtu, files.queues.len()), (1500, 1));
    println!("native {}, zero-copy {}", files.facts.native, files.facts.zero_copy);
    let (mut uplink, wire) = (Uplink::new(files), Wire::new());
    for number in 0..10_000 {
        let len = [60, 64, 333, 1514][number as usize % 4];
        wire.send(&frame(OURS, THEIRS, number, len));
        assert!(uplink.fetch() == frame(OURS, THEIRS, number, len), "frame {number} from the wire");
        uplink.deliver(&frame(THEIRS, OURS, number, len), None, None).unwrap();
        assert!(wire.receive() == frame(THEIRS, OURS, number, len), "frame {number} to the wire");
    }
    // Bursts: in order, and none is lost while they fit into the rings.
    for number in 0..500 {
        wire.send(&frame(OURS, THEIRS, number, 60));
    }
    let mut tokens = [vmlane_port::Token(0); 32];
    let mut got = Vec::new();
    while got.len() < 500 {
        let count = uplink.port.fetch(&mut tokens);
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes[14..18].try_into().unwrap());
        let in_flight = tokens[..count].iter().map(|token| uplink.port.frame(*token));
        got.extend(
            in_flight.filter(|in_flight| in_flight.head[..6] == OURS).map(|in_flight| number(in_flight.head)),
        );
        uplink.port.finish(&tokens[..count]);
        uplink.port.flush(Instant::now());
    }
    assert!(got.iter().copied().eq(0..500), "{got:?}");
}

#[test]
fn tags_and_checksums_are_in_the_frame() {
    if outside() {
        return;
    }
    pair(1);
    let (mut uplink, wire) = (Uplink::new(open(None).unwrap()), Wire::new());
    let plain = frame(THEIRS, OURS, 7, 200);
    uplink.deliver(&plain, Some(Tci(0x2007)), None).unwrap();
    // A packet socket shows a tag that the kernel took out beside the frame, not in it.
    let got = wire.receive();
    let tagged = [&plain[..12], &[0x81, 0, 0x20, 7], &plain[12..]].concat();
    assert!(got == tagged || got == plain, "{got:?}");
    let checksum = PartialChecksum { start: 20, field: 24, never_zero: false, head_sum: None };
    let mut seeded = plain.clone();
    seeded[24..26].copy_from_slice(&[0, 9]);
    uplink.deliver(&seeded, None, Some(checksum)).unwrap();
    let got = wire.receive();
    let words = got[20..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    // What was summed, the seed among it, and its complement.
    let sum = words.sum::<u32>() + 9;
    let sum = (sum & 0xffff) + (sum >> 16);
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{got:?}");
    // Tagged frames from the wire are untouched.
    let tagged = [&OURS[..], &THEIRS, &[0x81, 0, 0x20, 7], &TYPE, &[1; 60]].concat();
    wire.send(&tagged);
    assert_eq!(uplink.fetch(), tagged);
}

#[test]
fn flows_share_several_queues_and_files_go_to_another_process() {
    if outside() {
        return;
    }
    pair(4);
    let (facts, files) = open(Some(4)).unwrap().pack();
    assert_eq!(files.len(), 6);
    assert!(XdpFiles::unpack(&options(Some(3)), facts.clone(), copies(&files)).is_err());
    let long = vmlane_host::uplink::xdp::XdpFacts { mtu: 9000, ..facts.clone() };
    assert!(XdpFiles::unpack(&options(None), long, copies(&files)).is_err());
    let files = match XdpFiles::unpack(&options(None), facts, files) {
        Err(XdpError::OldKernel { .. }) => return skipped("needs Linux 6.4"),
        files => files.unwrap(),
    };
    let (mut uplink, wire) = (Uplink::new(files), Wire::new());
    let mut got: Vec<Vec<u8>> = (0..64u8)
        .map(|flow| {
            let mut frame = frame(THEIRS, OURS, u32::from(flow), 100);
            frame[5] = flow;
            uplink.deliver(&frame, None, None).unwrap();
            frame
        })
        .map(|sent| {
            let got = wire.receive();
            assert_eq!(got.len(), sent.len());
            got
        })
        .collect();
    got.sort_unstable();
    got.dedup();
    assert_eq!(got.len(), 64, "each flow's frame arrived once");
    for number in 0..64 {
        wire.send(&frame(OURS, THEIRS, number, 80));
        assert_eq!(uplink.fetch(), frame(OURS, THEIRS, number, 80));
    }
}

fn copies(files: &[OwnedFd]) -> Vec<OwnedFd> {
    files.iter().map(|file| file.try_clone().unwrap()).collect()
}

#[test]
fn what_cannot_be_is_refused_with_the_way_out() {
    if outside() {
        return;
    }
    let refused = |queues| open(queues).err().map(|error| error.to_string()).expect("it is refused");
    let missing = refused(None);
    assert!(missing.contains("\"vmlx0\"") && missing.contains("none of this name"), "{missing}");
    pair(2);
    ip("link set vmlx0 mtu 4000");
    let mtu = refused(None);
    assert!(mtu.contains("MTU of 4000") && mtu.contains("ip link set vmlx0 mtu 3822"), "{mtu}");
    ip("link set vmlx0 mtu 3000");
    assert_eq!(open(None).unwrap().facts.chunk, 4096);
    ip("link set vmlx0 mtu 1500");
    let queues = refused(Some(3));
    assert!(queues.contains("2 receive queues") && queues.contains("`queues` is 3"), "{queues}");
    ip("link add vmlxbr type bridge");
    ip("link set vmlx0 master vmlxbr");
    let member = refused(None);
    assert!(member.contains("member of a bridge") && member.contains("nomaster"), "{member}");
    ip("link set vmlx0 nomaster");
    let first = open_again();
    let busy = refused(None);
    assert!(busy.contains("in use"), "{busy}");
    drop(first);
    open_again();
}

/// The kernel lets go of the queues in its own time.
fn open_again() -> XdpFiles {
    eventually("the queues are free", || match open(None) {
        Err(XdpError::Busy { .. }) => None,
        opened => Some(opened.unwrap()),
    })
}

#[test]
fn an_interface_that_is_down_or_gone_stops_nothing_else() {
    if outside() {
        return;
    }
    pair(1);
    let (mut uplink, wire) = (Uplink::new(open(None).unwrap()), Wire::new());
    assert!(!uplink.hold.is_gone());
    ip("link set vmlx0 down");
    let _ = uplink.deliver(&frame(THEIRS, OURS, 1, 60), None, None);
    assert_eq!(uplink.deliver(&frame(THEIRS, OURS, 2, 60), None, None), Err(DropReason::Uplink));
    assert!(!uplink.hold.is_gone());
    ip("link set vmlx0 up");
    wait_until("the interface is up again", || {
        uplink.port.tick(Instant::now());
        uplink.deliver(&frame(THEIRS, OURS, 3, 60), None, None).is_ok()
    });
    while wire.receive()[14..18] != 3u32.to_be_bytes() {}
    // Renamed: it is the same interface.
    ip("link set vmlx0 down");
    ip("link set vmlx0 name vmlx7");
    ip("link set vmlx7 up");
    // The kernel notifies the other end of the link in its own time, up to a second later, and drops what is
    // sent before.
    let fetched = eventually("the renamed interface receives", || {
        wire.send(&frame(OURS, THEIRS, 4, 60));
        uplink.try_fetch()
    });
    assert_eq!(fetched, frame(OURS, THEIRS, 4, 60));
    assert!(!uplink.hold.is_gone());
    ip("link del vmlx7");
    assert!(uplink.hold.is_gone());
    // What the kernel's IPv6 had sent from the other end may still lie in the ring; nothing comes after it.
    while let Some(token) = uplink.port.fetch_one() {
        uplink.port.finish(&[token]);
    }
    let _ = uplink.deliver(&frame(THEIRS, OURS, 5, 60), None, None);
    assert!(uplink.deliver(&frame(THEIRS, OURS, 6, 60), None, None).is_err());
    assert!(!uplink.port.arm());
    assert_eq!(uplink.stats.drop_bad_length.get(), 0);
}
