//! What guests do to each other and to the daemon by virtio-vsock packets, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vmlane_guestsim::virtio::{into, out};
use vmlane_guestsim::vsock::{Bench, Guest, RING, loose_end, vm};
use vmlane_port::{Budget, StreamEnd};
use vmlane_vsock::Vm as VsockVm;
use vmlane_vsock::{ConnectError, Forward, Key};
use vmlane_wire::virtio::desc;
use vmlane_wire::virtio_vsock::{HEADER, Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};

use super::{A, B, LOCAL, PORT, bench, pair};
use crate::host::Host;

fn ops(packets: &[(Header, Vec<u8>)]) -> Vec<u16> {
    packets.iter().map(|(header, _)| header.op.get()).collect()
}

/// a and b, connected.
fn connected(packed: bool, kind: u16) -> (Bench, Guest, Guest) {
    let (mut bench, mut a, mut b) = pair(packed);
    a.post_buffers(20, 4096);
    b.post_buffers(20, 4096);
    a.packet(LOCAL, (B, PORT), kind, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!(ops(&b.received()), [op::REQUEST]);
    b.packet(PORT, (A, LOCAL), kind, op::RESPONSE, &[]);
    assert!(bench.run());
    assert_eq!(ops(&a.received()), [op::RESPONSE]);
    a.taken();
    b.taken();
    (bench, a, b)
}

#[test]
fn a_packet_with_a_forged_source_cid_is_dropped() {
    for packed in [false, true] {
        let (mut bench, mut a, mut b) = connected(packed, kind::STREAM);
        for source in [0u64, 2, u64::from(B), 5, u64::from(u32::MAX), 1 << 32 | u64::from(A), u64::MAX] {
            for operation in [op::REQUEST, op::RW, op::RST, op::SHUTDOWN] {
                let header = Header::new((A, LOCAL), (B, PORT), kind::STREAM, operation);
                a.send(&Header { src_cid: source.into(), ..header }, &[]);
                assert!(bench.run());
            }
            assert_eq!(a.taken(), 4, "the chains come back");
        }
        assert_eq!((bench.stats.forged.get(), b.received().len(), a.received().len()), (28, 0, 0));
        // The connection is as it was.
        a.packet(LOCAL, (B, PORT), kind::STREAM, op::RW, b"still here");
        assert!(bench.run());
        assert_eq!(b.received()[0].1, b"still here");
    }
}

#[test]
fn lengths_beyond_the_chain_and_chains_that_are_no_packets() {
    for packed in [false, true] {
        let (mut bench, mut a, mut b) = connected(packed, kind::STREAM);
        for len in [1, 44, 65_536, u32::MAX / 2, u32::MAX] {
            let header = Header::new((A, LOCAL), (B, PORT), kind::STREAM, op::RW);
            a.send(&Header { len: len.into(), ..header }, &[]);
        }
        for short in [0, 1, HEADER - 1] {
            a.send_bytes(&vec![0; short]);
        }
        let page = a.tx.alloc(4096);
        a.tx.post(&[into(page, 100)]);
        a.tx.post(&[out(page, HEADER), out(1 << 50, 100)]);
        a.tx.post(&[out(u64::MAX - 10, HEADER)]);
        assert!(bench.run());
        assert_eq!((a.taken(), b.received().len()), (11, 0));
        assert_eq!(bench.stats.malformed.get(), 11);
    }
}

#[test]
fn a_descriptor_loop_stops_its_own_ring_alone() {
    let (mut bench, mut a, mut b) = connected(false, kind::STREAM);
    let page = a.tx.alloc(4096);
    a.tx.write_split(60, page, HEADER as u32, desc::NEXT, 60);
    a.tx.publish(60);
    assert!(bench.run());
    // Nothing from a passes any more; b continues with a third VM.
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::RW, b"lost");
    let mut c = bench.guest(vm(5), false);
    c.post_buffers(4, 4096);
    c.packet(7, (B, PORT), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!(ops(&b.received()), [op::REQUEST]);
    // A loop among b's buffers.
    b.rx.write_split(61, page, 100, desc::NEXT | 2, 61);
    b.rx.publish(61);
    for _ in 0..25 {
        c.packet(7, (B, PORT), kind::STREAM, op::RW, &[1; 4000]);
        assert!(bench.run());
    }
    bench.now += Duration::from_secs(3);
    assert!(bench.run());
    assert!(ops(&c.received()).contains(&op::RST), "b takes nothing any more, and c is notified of it");
}

#[test]
fn a_guest_that_never_reads_is_reset_and_does_not_stop_others() {
    let (mut bench, mut a, mut b) = pair(false);
    let mut c = bench.guest(vm(5), false);
    a.post_buffers(20, 4096);
    c.post_buffers(20, 4096);
    // b has posted no buffer at all.
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!(a.taken(), 0, "held");
    c.packet(9, (A, 77), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!(ops(&a.received()), [op::REQUEST], "others continue");
    bench.now += Duration::from_secs(3);
    assert!(bench.run());
    assert_eq!((a.taken(), ops(&a.received())), (1, vec![op::RST]));
    assert_eq!(bench.stats.stalled.get(), 1);
    // From now on at once, until it posts buffers.
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!(ops(&a.received()), [op::RST]);
    b.post_buffers(20, 4096);
    a.packet(LOCAL, (B, PORT), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert!(ops(&b.received()).contains(&op::REQUEST));
}

/// Connects `from` and `to`, both at `port`.
fn connect(bench: &mut Bench, from: &mut Guest, to: &mut Guest, port: u32) {
    from.packet(port, (to.cid, port), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!(ops(&to.received()), [op::REQUEST]);
    to.packet(port, (from.cid, port), kind::STREAM, op::RESPONSE, &[]);
    assert!(bench.run());
    assert_eq!(ops(&from.received()), [op::RESPONSE]);
    from.taken();
    to.taken();
}

/// In steps of 10 ms: `a` sends a packet to `slow` and one to `good` every 100 ms, as far as its ring has
/// room; `slow` posts a buffer every `gap` steps. How many packets `good` got, and how many connections were
/// reset.
fn beside_a_slow_receiver(gap: usize, steps: usize) -> (usize, u64) {
    let (mut bench, mut a, mut slow) = pair(false);
    let mut good = bench.guest(vm(5), false);
    [&mut a, &mut slow, &mut good].into_iter().for_each(|guest| guest.post_buffers(2, 200));
    connect(&mut bench, &mut a, &mut slow, 1);
    connect(&mut bench, &mut a, &mut good, 2);
    // One buffer of `slow` is left of its two.
    [&mut a, &mut good].into_iter().for_each(|guest| guest.post_buffers(20, 200));
    let (mut got, mut outstanding) = (0, 0);
    for step in 0..steps {
        bench.now += Duration::from_millis(10);
        if step % gap == 0 {
            slow.post_buffers(1, 200);
        }
        if step % 10 == 0 && outstanding < 20 {
            a.packet(1, (slow.cid, 1), kind::STREAM, op::RW, b"to the slow one");
            a.packet(2, (good.cid, 2), kind::STREAM, op::RW, b"to the good one");
            outstanding += 2;
        }
        assert!(bench.run());
        outstanding -= a.taken();
        let received = a.received().len();
        a.post_buffers(received, 200);
        let received = good.received();
        good.post_buffers(received.len(), 200);
        got += received.iter().filter(|(header, _)| header.op.get() == op::RW).count();
        slow.received();
    }
    (got, bench.stats.stalled.get())
}

#[test]
fn a_receiver_that_is_slow_does_not_stop_its_senders_packets_to_others() {
    let (got, resets) = beside_a_slow_receiver(190, 10_000);
    assert_eq!((got, resets), (1000, 0), "packets in 100 s, beside a receiver that takes one in 1.9 s");
    let (got, resets) = beside_a_slow_receiver(210, 10_000);
    assert!(got >= 999 && resets > 0, "{got} beside one that takes too few, {resets}");
}

/// A packet's number, and bytes that depend on it.
fn numbered(number: usize) -> Vec<u8> {
    let len = 200 + number % 5 * 1000;
    [&(number as u32).to_le_bytes()[..], &vec![number as u8; len]].concat()
}

/// Whether it is all of them, in order, in as many packets as there were buffers for.
fn is_numbered(bytes: &[u8], count: usize) -> bool {
    bytes == (0..count).flat_map(numbered).collect::<Vec<_>>()
}

fn payload(packets: Vec<(Header, Vec<u8>)>) -> Vec<u8> {
    packets.into_iter().filter(|(header, _)| header.op.get() == op::RW).flat_map(|(_, bytes)| bytes).collect()
}

/// More packets than the ring has chains wait for a receiver that has no buffers; connections beside them
/// move, both ways.
#[test]
fn packets_that_wait_stop_no_other_connection() {
    const WAITING: usize = 3 * RING as usize;
    for packed in [false, true] {
        let (mut bench, mut a, mut slow) = pair(packed);
        let mut good = bench.guest(vm(5), packed);
        a.post_buffers(20, 4096);
        slow.post_buffers(1, 4096);
        good.post_buffers(60, 4096);
        connect(&mut bench, &mut a, &mut slow, 1);
        connect(&mut bench, &mut a, &mut good, 2);
        let mut sent = 0;
        while sent < WAITING {
            (0..RING / 2).for_each(|at| {
                a.packet(1, (slow.cid, 1), kind::STREAM, op::RW, &numbered(sent + usize::from(at)));
            });
            sent += usize::from(RING / 2);
            bench.run();
            bench.now += Duration::from_millis(1);
            assert!(bench.run());
            assert_eq!(a.taken(), usize::from(RING / 2), "{sent}: no chain is left in the ring");
            a.packet(2, (5, 2), kind::STREAM, op::RW, b"there");
            good.packet(2, (A, 2), kind::STREAM, op::RW, b"back");
            assert!(bench.run());
            assert_eq!((payload(good.received()), payload(a.received())), (b"there".into(), b"back".into()));
            a.taken();
            a.post_buffers(1, 4096);
        }
        let mut got = Vec::new();
        for _ in 0..2 * WAITING {
            slow.post_buffers(4, 1000);
            assert!(bench.run());
            got.extend(payload(slow.received()));
        }
        assert!(is_numbered(&got, WAITING), "{} bytes", got.len());
        assert_eq!(bench.stats.stalled.get(), 0);
    }
}

/// A sender that minds no credit, and a receiver without buffers: what waits is bounded, and leaves places
/// for what waits for others.
#[test]
fn what_waits_of_one_guest_is_bounded_and_shared_by_its_receivers() {
    const LEN: usize = 60_000;
    let (mut bench, mut a, mut stuck) = pair(false);
    let mut good = bench.guest(vm(5), false);
    a.post_buffers(60, 200);
    stuck.post_buffers(1, 200);
    good.post_buffers(1, 200);
    connect(&mut bench, &mut a, &mut stuck, 1);
    connect(&mut bench, &mut a, &mut good, 2);
    let mut waiting = 0;
    while !ops(&a.received()).contains(&op::RST) {
        a.packet(1, (stuck.cid, 1), kind::STREAM, op::RW, &[1; LEN]);
        bench.run();
        bench.now += Duration::from_millis(1);
        bench.run();
        a.taken();
        waiting += LEN;
        assert!(waiting < 9 << 20, "{waiting} bytes wait");
    }
    assert!(waiting > 7 << 20, "{waiting} bytes");
    a.packet(2, (5, 2), kind::STREAM, op::RW, &[2; LEN]);
    bench.now += Duration::from_millis(1);
    bench.run();
    bench.now += Duration::from_millis(1);
    bench.run();
    good.post_buffers(40, 4096);
    assert!(bench.run());
    assert_eq!(payload(good.received()).len(), LEN);
    // What has waited for the connection that was reset is gone with it, and there is room again.
    a.packet(3, (stuck.cid, 3), kind::STREAM, op::RW, &[3; LEN]);
    bench.run();
    assert!(!ops(&a.received()).contains(&op::RST));
    stuck.post_buffers(60, 4096);
    assert!(bench.run());
    let got = stuck.received();
    assert_eq!(ops(&got)[0], op::RST);
    assert!(payload(got).iter().all(|&byte| byte == 3));
}

/// No connection with another VM is delayed by it.
#[test]
fn a_guest_that_talks_to_one_other_alone_waits_in_its_ring_when_much_waits_already() {
    let (mut bench, mut a, mut stuck) = pair(false);
    a.post_buffers(20, 200);
    stuck.post_buffers(1, 200);
    connect(&mut bench, &mut a, &mut stuck, 1);
    let mut sent = 0;
    loop {
        a.packet(1, (stuck.cid, 1), kind::STREAM, op::RW, &[1; 60_000]);
        bench.run();
        bench.now += Duration::from_millis(if sent == 0 { 25 } else { 1 });
        bench.run();
        if a.taken() == 0 {
            break;
        }
        sent += 1;
        assert!(sent < 200);
    }
    assert!(sent > 100 && a.received().is_empty(), "{sent}");
    bench.now += Duration::from_millis(200);
    assert!(bench.run());
    assert_eq!((a.taken(), ops(&a.received())), (1, vec![op::RST]));
}

/// It knows of no connection, so it gets nothing of an old one.
#[test]
fn what_waits_for_a_guest_does_not_reach_the_driver_that_comes_after_its_own() {
    let (mut bench, mut a, mut b) = pair(false);
    a.post_buffers(20, 4096);
    b.post_buffers(1, 4096);
    connect(&mut bench, &mut a, &mut b, 1);
    for _ in 0..10 {
        a.packet(1, (B, 1), kind::STREAM, op::RW, b"to the old one");
        bench.run();
        bench.now += Duration::from_millis(30);
        assert!(bench.run());
    }
    assert_eq!(a.taken(), 10);
    bench.gone(&b);
    b.post_buffers(20, 4096);
    assert!(bench.run());
    assert_eq!((ops(&a.received()), b.received().len()), (vec![op::RST], 0));
}

/// Refusals for a guest that takes none are bounded, and it is not listened to meanwhile.
#[test]
fn a_guest_that_asks_and_never_listens() {
    let (mut bench, mut a, _b) = pair(false);
    let mut given_back = 0;
    for _ in 0..40 {
        for port in 0..u32::from(RING) / 2 {
            a.packet(port, (99, 1), kind::STREAM, op::REQUEST, &[]);
        }
        bench.run();
        let back = a.taken();
        given_back += back;
        if back == 0 {
            break;
        }
    }
    assert!(given_back < 400, "{given_back} requests were taken though the answers are not read");
}

#[test]
fn groups_and_unknown_cids_are_refused() {
    let (mut bench, mut a, _) = pair(false);
    let other = VsockVm { group: "two".into(), ..vm(5) };
    let mut c = bench.guest(other, false);
    c.post_buffers(4, 4096);
    a.post_buffers(20, 4096);
    let refused = [u64::from(5u32), u64::from(A), 77, 0, 1, 2, u64::from(u32::MAX), 1 << 40];
    for to in refused {
        let header = Header::new((A, LOCAL), (B, PORT), kind::STREAM, op::REQUEST);
        a.send(&Header { dst_cid: to.into(), ..header }, &[]);
    }
    a.packet(LOCAL, (B, PORT), 3, op::REQUEST, &[]);
    a.packet(LOCAL, (B, PORT), kind::STREAM, 99, &[]);
    assert!(bench.run());
    assert_eq!(ops(&a.received()), vec![op::RST; refused.len() + 2]);
    assert_eq!(c.received().len(), 0);
    assert_eq!(bench.stats.refused.get(), refused.len() as u64 + 2);
}

/// A bench with a program of the host.
pub fn with_host() -> (Bench, Arc<Host>) {
    let (bench, host) = (bench(), Arc::new(Host::default()));
    bench.router.set_endpoint(2, host.clone());
    (bench, host)
}

fn lane_end() -> StreamEnd {
    sending_end(0)
}

fn sending_end(bytes: usize) -> StreamEnd {
    StreamEnd { port: loose_end(bytes), budget: Arc::new(Budget::new(1 << 20)), slow: false, worker: None }
}

/// A guest with an accepted connection to the host's port 80.
fn to_host(vm: VsockVm, to: u32) -> (Bench, Guest, Arc<Host>) {
    let (mut bench, host) = with_host();
    let mut a = bench.guest(vm, false);
    a.post_buffers(30, 4096);
    a.packet(LOCAL, (to, 80), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    let call = host.calls.lock().pop().expect("asked");
    assert_eq!(call.key, Key { client: (A, LOCAL), server: (2, 80) });
    assert!(bench.router.accept(call, lane_end(), host.clone()));
    assert!(bench.run());
    let received = a.received();
    assert_eq!(ops(&received), [op::RESPONSE]);
    assert_eq!(received[0].0.src_cid.get(), u64::from(to));
    (bench, a, host)
}

#[test]
fn a_guest_that_sends_beyond_its_credit_is_reset() {
    let (mut bench, mut a, _host) = to_host(vm(A), 2);
    let mut sent = 0;
    // There is no reader: the ring of 256 KiB (and what the stream took) fills.
    for _ in 0..200 {
        a.packet(LOCAL, (2, 80), kind::STREAM, op::RW, &[7; 16 << 10]);
        sent += 16 << 10;
        assert!(bench.run());
        a.taken();
        if ops(&a.received()).contains(&op::RST) {
            assert!(sent <= (1 << 20), "{sent} bytes were taken");
            return;
        }
    }
    panic!("{sent} bytes were taken though they were not read");
}

#[test]
fn lies_about_credit_hurt_the_liar_only() {
    let (mut bench, mut a, _host) = to_host(vm(A), 2);
    for (buf_alloc, fwd_cnt) in [(u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX), (0, 0), (1, 1 << 31)] {
        for operation in [op::CREDIT_UPDATE, op::CREDIT_REQUEST, op::RW] {
            let header = Header::new((A, LOCAL), (2, 80), kind::STREAM, operation);
            a.send(&Header { buf_alloc: buf_alloc.into(), fwd_cnt: fwd_cnt.into(), ..header }, &[]);
            assert!(bench.run());
            assert!(!ops(&a.received()).contains(&op::RST));
        }
        a.taken();
        a.post_buffers(1, 4096);
    }
}

#[test]
fn shutdowns_and_packets_in_every_state() {
    // Every operation, and two that there are not.
    for first in 0..=op::CREDIT_REQUEST + 1 {
        for second in 0..=op::CREDIT_REQUEST + 1 {
            let (mut bench, mut a, _host) = to_host(vm(A), 2);
            for operation in [first, second] {
                let header = Header::new((A, LOCAL), (2, 80), kind::STREAM, operation);
                a.send(&Header { flags: (SHUTDOWN_SEND | SHUTDOWN_RECEIVE).into(), ..header }, &[]);
            }
            assert!(bench.run(), "{first} then {second}");
            assert_eq!(a.taken(), 3);
        }
    }
    // SEQPACKET to the host: refused, whatever is connected.
    let (mut bench, mut a, _host) = to_host(vm(A), 2);
    a.packet(LOCAL, (2, 80), kind::SEQPACKET, op::RW, b"message");
    a.packet(LOCAL + 1, (2, 80), kind::SEQPACKET, op::REQUEST, &[]);
    assert!(bench.run());
    let received = a.received();
    assert_eq!(ops(&received), [op::RST, op::RST]);
    assert!(received.iter().all(|(header, _)| header.kind.get() == kind::SEQPACKET));
}

#[test]
fn connections_are_bounded_both_ways() {
    let few = VsockVm { connections: 4, ..vm(A) };
    let (mut bench, mut a, host) = to_host(few, 2);
    for port in 0..10 {
        a.packet(port, (2, 80), kind::STREAM, op::REQUEST, &[]);
    }
    assert!(bench.run());
    assert_eq!((host.calls.lock().len(), ops(&a.received())), (3, vec![op::RST; 7]));
    // The host asks, and the guest never answers.
    for port in 0..10 {
        let key = Key { client: (2, port), server: (A, 22) };
        bench.router.open(key, Some(lane_end()), host.clone()).unwrap();
    }
    assert!(bench.run());
    assert_eq!((host.failed.lock().len(), a.received().len()), (10, 0), "it has as many as it may");
}

#[test]
fn who_gives_up_leaves_nothing_behind() {
    let (mut bench, host) = with_host();
    let mut a = bench.guest(vm(A), false);
    a.post_buffers(30, 4096);
    // The host asks and gives up before the guest answers.
    let key = Key { client: (2, 7), server: (A, 22) };
    for _ in 0..3 {
        let call = bench.router.open(key, Some(lane_end()), host.clone()).unwrap();
        assert!(bench.run());
        assert_eq!(ops(&a.received()), [op::REQUEST]);
        bench.router.close(call);
        assert!(bench.run());
        assert_eq!(ops(&a.received()), [op::RST]);
        a.packet(22, (2, 7), kind::STREAM, op::RESPONSE, &[]);
        assert!(bench.run());
        assert_eq!(ops(&a.received()), [op::RST], "too late");
    }
    // The guest asks and gives up before the host answers.
    a.packet(LOCAL, (2, 80), kind::STREAM, op::REQUEST, &[]);
    a.packet(LOCAL, (2, 80), kind::STREAM, op::RST, &[]);
    assert!(bench.run());
    let call = host.calls.lock().pop().unwrap();
    assert_eq!(host.given_up.lock()[..], [call]);
    assert!(!bench.router.accept(call, lane_end(), host.clone()), "too late");
    // The host no longer answers.
    bench.router.clear_endpoint(2);
    a.packet(LOCAL, (2, 80), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!(ops(&a.received()), [op::RST]);
}

#[test]
fn forwards_and_parents() {
    // {2, 9000} of a is b's port 22.
    let forwards = vec![Forward { port: 9000, to_cid: B, to_port: 22 }];
    let mut bench = bench();
    let mut a = bench.guest(VsockVm { forwards, parent: Some(9), ..vm(A) }, false);
    let mut b = bench.guest(vm(B), false);
    a.post_buffers(30, 4096);
    b.post_buffers(30, 4096);
    for (at, port) in [(2, LOCAL), (9, LOCAL + 1)] {
        a.packet(port, (at, 9000), kind::STREAM, op::REQUEST, &[]);
        assert!(bench.run());
        let asked = b.received();
        assert_eq!(ops(&asked), [op::REQUEST]);
        let header = asked[0].0;
        assert_eq!((header.src_cid.get(), header.src_port.get(), header.dst_port.get()), (3, port, 22));
        b.packet(22, (A, port), kind::STREAM, op::RESPONSE, &[]);
        assert!(bench.run());
        let answer = a.received();
        assert_eq!((ops(&answer), answer[0].0.src_cid.get()), (vec![op::RESPONSE], u64::from(at)));
        a.packet(port, (at, 9000), kind::STREAM, op::RW, b"there");
        b.packet(22, (A, port), kind::STREAM, op::RW, b"back");
        assert!(bench.run());
        assert_eq!((&b.received()[0].1[..], &a.received()[0].1[..]), (&b"there"[..], &b"back"[..]));
    }
    // c of another group is no target, whatever the map contains.
    let forwards = vec![Forward { port: 1, to_cid: B, to_port: 22 }];
    let mut c = bench.guest(VsockVm { forwards, group: "two".into(), ..vm(5) }, false);
    c.post_buffers(4, 4096);
    c.packet(1, (2, 1), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    assert_eq!((ops(&c.received()), b.received().len()), (vec![op::RST], 0));
    // a goes: b is notified of its two.
    bench.gone(&a);
    assert!(bench.run());
    assert_eq!(ops(&b.received()).len(), 2);
}

/// The packets that a guest gets that now posts buffers, up to `most`.
fn packets_that_wait(bench: &mut Bench, guest: &mut Guest, most: usize) -> usize {
    let mut got = 0;
    while got < most {
        guest.post_buffers(16, 200);
        assert!(bench.run());
        let here = guest.received().len();
        got += here;
        if here < 16 {
            break;
        }
    }
    got
}

#[test]
fn opens_and_resets_towards_a_guest_without_buffers_leave_nothing_behind() {
    let (mut bench, host) = with_host();
    let mut a = bench.guest(VsockVm { connections: 4096, ..vm(A) }, false);
    for port in 0..20_000 {
        let key = Key { client: (2, port), server: (A, 22) };
        let call = bench.router.open(key, Some(lane_end()), host.clone()).expect("a request");
        if port % 64 == 0 {
            bench.round();
        }
        bench.router.close(call);
    }
    let got = packets_that_wait(&mut bench, &mut a, 5000);
    assert!(got <= 1000, "{got} packets waited for the guest");
    // The guest is served as ever.
    let key = Key { client: (2, 7), server: (A, 22) };
    bench.router.open(key, Some(lane_end()), host.clone()).expect("a request");
    assert_eq!(packets_that_wait(&mut bench, &mut a, 1), 1);
}

#[test]
fn requests_that_wait_for_a_guest_are_bounded_and_one_client_leaves_places_for_others() {
    let (mut bench, host) = with_host();
    let _a = bench.guest(VsockVm { connections: 4096, ..vm(A) }, false);
    let _b = bench.guest(vm(B), false);
    let open = |client: u32, port: u32| {
        let key = Key { client: (client, port), server: (A, 22) };
        bench.router.open(key, Some(lane_end()), host.clone()).map(|_| ())
    };
    let taken = (0..1000).filter(|&port| open(2, port).is_ok()).count();
    assert!(taken <= 512, "{taken} requests of one client wait");
    assert_eq!(open(2, 5000), Err(ConnectError::Busy));
    assert_eq!(open(B, 1), Ok(()), "another client's request");
}

#[test]
fn one_guest_with_all_the_connections_it_can_get_leaves_others_theirs() {
    let (mut bench, _host) = with_host();
    let mut a = bench.guest(VsockVm { connections: 4096, ..vm(A) }, false);
    let mut b = bench.guest(vm(B), false);
    [&mut a, &mut b].into_iter().for_each(|guest| guest.post_buffers(20, 200));
    let connects = |bench: &mut Bench, guest: &mut Guest, port: u32| {
        guest.packet(port, (2, 80), kind::STREAM, op::REQUEST, &[]);
        assert!(bench.run());
        guest.taken();
        let refused = guest.received().len();
        guest.post_buffers(refused, 200);
        refused == 0
    };
    let taken = (0..1500).filter(|&port| connects(&mut bench, &mut a, port)).count();
    assert_eq!(taken, 1024);
    assert!((0..10).all(|port| connects(&mut bench, &mut b, port)), "another guest's connections");
}

/// Much is to be reported at once, to a guest with few buffers: nothing is forgotten, whatever comes first.
#[test]
fn many_connections_at_once_and_few_buffers() {
    const MANY: u32 = 300;
    let (mut bench, host) = with_host();
    let mut a = bench.guest(VsockVm { connections: 2000, ..vm(A) }, false);
    for port in 0..MANY {
        let key = Key { client: (2, port), server: (A, 22) };
        bench.router.open(key, Some(lane_end()), host.clone()).unwrap();
    }
    let mut asked = Vec::new();
    for _ in 0..MANY / 4 {
        a.post_buffers(4, 200);
        assert!(bench.run());
        asked.extend(ops(&a.received()));
    }
    assert_eq!(asked, vec![op::REQUEST; MANY as usize]);
    // Answers and bytes of connections that the guest opened: bursts of them, and then buffers.
    let (mut answers, mut bytes, mut sent, mut back, mut buffers) = (0, 0, 0, 0, 0);
    for round in 0..2 * MANY {
        while sent < MANY && sent - back < 50 {
            a.packet(LOCAL + sent, (2, 80), kind::STREAM, op::REQUEST, &[]);
            sent += 1;
        }
        if round % 4 == 0 && buffers < 40 {
            a.post_buffers(16, 200);
            buffers += 16;
        }
        assert!(bench.run());
        while let Some(call) = host.calls.lock().pop() {
            assert!(bench.router.accept(call, sending_end(100), host.clone()));
        }
        assert!(bench.run());
        back += a.taken() as u32;
        for (header, payload) in a.received() {
            buffers -= 1;
            answers += u32::from(header.op.get() == op::RESPONSE);
            bytes += payload.len();
        }
    }
    assert_eq!((answers, bytes), (MANY, 100 * MANY as usize));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Packets of any content in any order: nothing panics, everything comes to rest, and every chain
    /// comes back.
    #[test]
    fn any_packets(packed in any::<bool>(), packets in prop::collection::vec(any_packet(), 1..40)) {
        let (mut bench, mut a, mut b) = pair(packed);
        let host = Arc::new(Host::default());
        bench.router.set_endpoint(2, host.clone());
        for (header, payload, buffers) in packets {
            a.post_buffers(buffers, 200);
            b.post_buffers(buffers, 5000);
            a.send(&header, &payload);
            while let Some(call) = host.calls.lock().pop() {
                bench.router.accept(call, lane_end(), host.clone());
            }
            prop_assert!(bench.run());
            a.received();
            b.received();
            a.taken();
        }
    }
}

fn any_packet() -> impl Strategy<Value = (Header, Vec<u8>, usize)> {
    let cids = prop_oneof![Just(2u64), Just(3), Just(4), Just(5), any::<u64>()];
    let fields = (cids, 0u32..3, 0u32..3, 0u16..4, 0u16..9, 0u32..4, any::<u32>(), any::<u32>());
    let payload = prop::collection::vec(any::<u8>(), 0..600);
    (fields, payload, prop_oneof![Just(None), any::<u32>().prop_map(Some)], 0usize..2).prop_map(
        |((to, port, dst_port, kind, operation, flags, buf_alloc, fwd_cnt), payload, len, buffers)| {
            let header = Header::new((A, port), (B, dst_port), kind, operation);
            let header = Header {
                dst_cid: to.into(),
                len: len.unwrap_or(payload.len() as u32).into(),
                flags: flags.into(),
                buf_alloc: buf_alloc.into(),
                fwd_cnt: fwd_cnt.into(),
                ..header
            };
            (header, payload, buffers)
        },
    )
}
