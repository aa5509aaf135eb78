//! Connections of virtio guests with programs of the host: one that reads nothing, and rings that stop.

use vmlane_guestsim::vsock::{Bench, Guest, loose_end, vm};
use vmlane_port::{Budget, StreamEnd};
use vmlane_wire::virtio_vsock::{kind, op};

use std::sync::Arc;

use super::hostile::with_host;
use super::{A, LOCAL};
use crate::host::{self, Host};

/// What a program has room for that reads nothing, and what the daemon keeps beyond.
const WINDOW: usize = 256 << 10;
const PACKET: usize = 4096;

/// The guest connects. Returns how many bytes come with the answer.
fn accepted(bench: &mut Bench, a: &mut Guest, host: &Arc<Host>, port: u32, end: StreamEnd) -> usize {
    a.packet(port, (2, 80), kind::STREAM, op::REQUEST, &[]);
    assert!(bench.run());
    let call = host.calls.lock().pop().expect("asked");
    assert!(bench.router.accept(call, end, host.clone()));
    assert!(bench.run());
    let received = a.received();
    assert_eq!(received.first().expect("an answer").0.op.get(), op::RESPONSE);
    received.iter().map(|(_, payload)| payload.len()).sum()
}

fn sends(bench: &mut Bench, a: &mut Guest, port: u32, bytes: &[u8]) {
    for packet in bytes.chunks(PACKET) {
        a.packet(port, (2, 80), kind::STREAM, op::RW, packet);
        assert!(bench.run());
        a.taken();
    }
}

#[test]
fn a_program_that_reads_nothing_delays_no_other_connection() {
    let (mut bench, host) = with_host();
    let mut a = bench.guest(vm(A), false);
    a.post_buffers(60, 4096);
    let slow = StreamEnd { port: loose_end(0), budget: Arc::new(Budget::new(0)), slow: false, worker: None };
    accepted(&mut bench, &mut a, &host, LOCAL, slow);
    let (end, file) = host::end(1 << 20, host.clone());
    let (_, mut incoming) = vmlane_sock::ring::map(file, 1 << 20).expect("a ring");
    accepted(&mut bench, &mut a, &host, LOCAL + 1, end);
    // All that it has credit for: a socket's worth with the program, and one with the daemon. No chain is
    // left waiting.
    sends(&mut bench, &mut a, LOCAL, &vec![7; 2 * WINDOW]);
    assert!(!a.received().iter().any(|(header, _)| header.op.get() == op::RST));
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at >> 4) as u8).collect();
    sends(&mut bench, &mut a, LOCAL + 1, &bytes);
    let mut got = vec![0; bytes.len() + 1];
    let moved = incoming.read(&mut got).expect("a ring in order");
    assert!(moved.len == bytes.len() && got[..moved.len] == bytes[..], "{} bytes came", moved.len);
    // One byte more than that is no longer within its credit.
    sends(&mut bench, &mut a, LOCAL, &[7]);
    assert!(
        a.received().iter().any(|(header, _)| header.op.get() == op::RST && header.dst_port.get() == LOCAL)
    );
    assert_eq!(bench.stats.panics.get(), 0);
}

#[test]
fn bytes_for_a_guest_wait_while_its_rings_are_stopped() {
    let (mut bench, host) = with_host();
    let mut a = bench.guest(vm(A), false);
    a.post_buffers(3, 1000);
    let sent = 200_000;
    let end =
        StreamEnd { port: loose_end(sent), budget: Arc::new(Budget::new(0)), slow: false, worker: None };
    let mut got = accepted(&mut bench, &mut a, &host, LOCAL, end);
    for round in 0.. {
        assert!(round < 1000, "{got} of {sent} bytes came");
        if round % 3 == 0 {
            bench.detach(&a);
            assert!(bench.run());
            bench.attach(&a);
        }
        a.post_buffers(5, 1000);
        assert!(bench.run());
        let received = a.received();
        got += received.iter().map(|(_, payload)| payload.len()).sum::<usize>();
        if got == sent {
            break;
        }
    }
    assert_eq!(bench.stats.panics.get(), 0);
}
