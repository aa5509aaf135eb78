//! Ports whose guests forward no frames: where those believe what is reported of checksums, none is computed
//! for them alone.

use std::sync::Arc;

use vmlane_capture::{Filter, Ring, Tap};
use vmlane_guestsim::memory_port::{PLAIN, Received};
use vmlane_port::{ChecksumStatus, Offload, RxCapabilities};
use vmlane_switch::{PortSpec, Traffic};
use vmlane_wire::ethernet::Mac;

use crate::common::tcp::{Ip, Packet};
use crate::common::{Bench, Guest, mac};

const BELIEVES: RxCapabilities = RxCapabilities { verdicts: true, ..PLAIN };
const MSS: u16 = 1428;

fn spec(number: u8, endpoint: bool) -> PortSpec {
    PortSpec { traffic: Traffic { endpoint, ..Traffic::default() }, ..Bench::spec(number) }
}

/// A sender at port 1, and a receiver at port 2.
fn pair(endpoint: bool, capabilities: RxCapabilities) -> (Bench, Guest, Guest) {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.port(spec(2, endpoint)));
    b.wire.set_capabilities(capabilities);
    (bench, a, b)
}

fn packet(v6: bool, payload: usize) -> Packet {
    Packet::new(mac(2), mac(1), v6, payload).timestamped()
}

/// Where the TCP checksum is.
fn field(packet: &Packet) -> usize {
    packet.header_len() - packet.tcp.header_len() + 16
}

/// A packet whose checksum is left out, then one to be cut; returned: what complete frames have to arrive.
fn send_both(from: &Guest, v6: bool) -> Vec<Packet> {
    let (single, whole) = (packet(v6, 700), packet(v6, 3000));
    let at = field(&single) as u16;
    from.wire.send(&single.partial(true), Offload::Checksum { start: at - 16, field: at }, None);
    let header = whole.header_len() as u16;
    from.wire.send(&whole.partial(false), Offload::Segment { header, mss: MSS }, None);
    [vec![single], whole.segments(MSS.into())].concat()
}

fn complete(received: &[Received], sent: &[Packet]) -> bool {
    received.iter().map(|one| one.bytes.clone()).eq(sent.iter().map(Packet::bytes))
}

#[test]
fn an_endpoint_gets_frames_with_partial_checksums_as_right() {
    for v6 in [false, true] {
        let (mut bench, a, b) = pair(true, BELIEVES);
        let sent = send_both(&a, v6);
        bench.run();
        let received = b.wire.received();
        assert!(received.iter().all(|one| one.checksum == ChecksumStatus::Good && one.aggregate.is_none()));
        let unsummed = |packet: &Packet| {
            let (mut bytes, at) = (packet.bytes(), field(packet));
            bytes[at..at + 2].copy_from_slice(&packet.partial(true)[at..at + 2]);
            bytes
        };
        assert!(received.iter().map(|one| one.bytes.clone()).eq(sent.iter().map(unsummed)), "v6 {v6}");
        assert_eq!((b.stats.rx_checksums.get(), b.stats.rx_segments.get()), (0, 3));
        assert_eq!((b.stats.rx_frames.get(), a.wire.outstanding()), (4, 0));
    }
}

#[test]
fn who_is_no_endpoint_or_believes_no_verdict_gets_complete_frames() {
    for (endpoint, capabilities) in [(false, BELIEVES), (true, PLAIN), (false, PLAIN)] {
        let (mut bench, a, b) = pair(endpoint, capabilities);
        let sent = send_both(&a, false);
        bench.run();
        assert!(complete(&b.wire.received(), &sent), "{endpoint} {capabilities:?}");
        assert_eq!(b.stats.rx_checksums.get(), 4);
    }
}

#[test]
fn an_uplink_a_mirror_and_a_capture_get_complete_frames() {
    let (mut bench, a, b) = pair(true, BELIEVES);
    let up = bench.port(PortSpec { uplink: true, mac: Mac::default(), ..spec(9, false) });
    let mut watching = spec(3, true);
    watching.policy.promiscuous = true;
    let c = bench.port(watching);
    c.wire.set_capabilities(BELIEVES);
    c.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&c);
    let sent = send_both(&a, false);
    bench.run();
    assert!(!complete(&b.wire.received(), &sent) && complete(&c.wire.received(), &sent));
    let ring = Arc::new(Ring::new(1 << 20, 1).unwrap());
    let tap = Arc::new(Tap::new(ring, 0, usize::MAX, Filter::default()));
    bench.switch.add_tap(&Bench::spec(2).name, tap.clone());
    bench.step();
    let sent = send_both(&a, false);
    bench.run();
    assert!(complete(&b.wire.received(), &sent), "captured, it is as if it were none");
    let mut away = packet(false, 700);
    away.ethernet.destination = mac(77).0;
    let at = field(&away) as u16;
    a.wire.send(&away.partial(true), Offload::Checksum { start: at - 16, field: at }, None);
    bench.run();
    assert!(complete(&up.wire.received(), &[away]));
}

#[test]
fn a_sum_that_no_verdict_speaks_of_is_computed() {
    let (mut bench, a, b) = pair(true, BELIEVES);
    let mut fragment = packet(false, 700);
    let Ip::V4(header) = &mut fragment.ip else { panic!("IPv4") };
    header.more_fragments = true;
    let mut bytes = fragment.bytes();
    bytes[50..52].fill(0);
    // Another place than TCP's, and a packet of no transport protocol.
    for (frame, start, field) in [(packet(false, 700).bytes(), 34, 36), (bytes, 34, 50)] {
        a.wire.send(&frame, Offload::Checksum { start, field }, None);
        bench.run();
        let [received] = &b.wire.received()[..] else { panic!("one frame") };
        let at = usize::from(field);
        assert_ne!(received.bytes[at..at + 2], frame[at..at + 2]);
    }
    assert_eq!(b.stats.rx_checksums.get(), 2);
}
