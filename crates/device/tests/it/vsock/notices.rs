//! When drivers are notified of what: at once of packets for them, late of packets that are sent.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vmlane_guestsim::vsock::{Bench, Guest, RING, vm};
use vmlane_wire::virtio_vsock::{kind, op};

/// A connected pair whose notices so far are forgotten.
fn pair(packed: bool) -> (Bench, Guest, Guest) {
    let (mut bench, mut a, mut b) = super::pair(packed);
    a.post_buffers(8, 4096);
    b.post_buffers(usize::from(RING) - 8, 4096);
    a.packet(1, (4, 2), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    b.packet(2, (3, 1), kind::STREAM, op::RESPONSE, &[]);
    assert!(bench.run());
    bench.now += Duration::from_secs(1);
    bench.run();
    for guest in [&mut a, &mut b] {
        guest.received();
        guest.taken();
        guest.calls.take();
    }
    (bench, a, b)
}

#[test]
fn a_sender_is_notified_late_and_a_receiver_at_once() {
    for packed in [false, true] {
        let (mut bench, mut a, mut b) = pair(packed);
        a.packet(1, (4, 2), kind::STREAM, op::RW, b"a packet");
        bench.run();
        assert_eq!((a.calls.take(), b.calls.take()), ((0, 0), (1, 0)));
        // It can see that the packet is sent, should it poll.
        assert_eq!((a.taken(), b.received().len()), (1, 1));
        bench.now += Duration::from_millis(1);
        bench.run();
        assert_eq!((a.calls.take(), b.calls.take()), ((0, 1), (0, 0)), "and only once");
        bench.now += Duration::from_secs(1);
        bench.run();
        assert_eq!(a.calls.take(), (0, 0));
    }
}

#[test]
fn a_sender_is_notified_when_half_of_its_ring_is_free() {
    for packed in [false, true] {
        let (mut bench, mut a, mut b) = pair(packed);
        for packet in 1..=RING / 2 {
            a.packet(1, (4, 2), kind::STREAM, op::RW, &[7]);
            bench.run();
            assert_eq!(a.calls.take().1, usize::from(packet == RING / 2), "after packet {packet}");
        }
        assert_eq!(b.received().len(), usize::from(RING / 2));
    }
}

#[test]
fn a_sender_whose_packets_hold_much_memory_is_notified_as_soon_as_nothing_moves() {
    for packed in [false, true] {
        let (mut bench, mut a, mut b) = pair(packed);
        a.packet(1, (4, 2), kind::STREAM, op::RW, &[7; 30 << 10]);
        bench.run();
        assert_eq!((a.calls.take(), b.received().len()), ((0, 0), 8), "it holds little");
        a.packet(1, (4, 2), kind::STREAM, op::RW, &[7; 30 << 10]);
        bench.run();
        assert_eq!(a.calls.take(), (0, 1));
        // It is notified no later than of what it may wait for: credit.
        b.packet(2, (3, 1), kind::STREAM, op::CREDIT_UPDATE, &[]);
        bench.run();
        assert_eq!((a.calls.take(), b.calls.take().1), ((1, 0), 0));
    }
}

#[test]
fn a_guest_that_sleeps_through_calls_is_called_again_a_few_times() {
    let (mut bench, mut a, mut b) = pair(false);
    b.calls.lossy.store(true, Ordering::Relaxed);
    bench.detach(&b);
    bench.attach(&b);
    b.calls.take();
    a.packet(1, (4, 2), kind::STREAM, op::RW, b"a packet");
    bench.run();
    assert_eq!(b.calls.take(), (1, 0));
    let mut again = Vec::new();
    for time in 1..200u32 {
        bench.now += Duration::from_micros(10);
        bench.run();
        if b.calls.take() == (1, 0) {
            again.push(time * 10);
        }
    }
    assert_eq!(again, [80, 160, 320, 640, 1280]);
    assert_eq!((a.calls.take(), b.received().len()), ((0, 1), 1), "a guest that is notified is called once");
}

#[test]
fn a_guest_is_called_again_although_others_are_busy() {
    let (mut bench, mut a, b) = pair(false);
    let (mut c, mut d) = (bench.guest(vm(5), false), bench.guest(vm(6), false));
    c.post_buffers(8, 4096);
    d.post_buffers(usize::from(RING) - 8, 4096);
    c.packet(1, (6, 2), kind::STREAM, op::REQUEST, &[]);
    bench.run();
    d.packet(2, (5, 1), kind::STREAM, op::RESPONSE, &[]);
    b.calls.lossy.store(true, Ordering::Relaxed);
    bench.detach(&b);
    bench.attach(&b);
    bench.run();
    b.calls.take();
    a.packet(1, (4, 2), kind::STREAM, op::RW, b"a packet");
    let mut called = Vec::new();
    for _ in 0..10 {
        c.packet(1, (6, 2), kind::STREAM, op::RW, b"of others");
        assert!(bench.round(), "something moves in every round");
        called.push(b.calls.take().0);
        bench.now += Duration::from_micros(30);
    }
    assert_eq!(called, [1, 0, 0, 1, 0, 0, 1, 0, 0, 0]);
    assert_eq!(d.received().len(), 11);
}

#[test]
fn nothing_is_due_when_the_rings_stop() {
    let (mut bench, mut a, _b) = pair(false);
    a.packet(1, (4, 2), kind::STREAM, op::RW, b"a packet");
    bench.run();
    assert_eq!(a.calls.take(), (0, 0));
    bench.detach(&a);
    assert_eq!(a.calls.take(), (0, 1));
}
