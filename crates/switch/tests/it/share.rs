//! What hostile rings cost a saturated worker beside frames, in metered work: never more than their VM's
//! share. And how many frames a port's turn has.

use vmlane_guestsim::memory_port::LRO;
use vmlane_port::{BURST, Frames, Offload};
use vmlane_switch::{PortSpec, Settings};

use crate::common::tcp::Packet;
use crate::common::{Bench, Guest, frame, holding, mac};

/// What the ports of one VM may cause in a round, in bytes, what a descriptor costs, and what tables made
/// anew cost.
const QUOTA: usize = 256 << 10;
const DESCRIPTOR: usize = 96;
const REBUILD: usize = 64 << 10;
const ROUNDS: usize = 200;
/// Descriptors that a call of the attackers' ports reads in vain: 64 chains of 1,024 pieces.
const IN_VAIN: usize = 64 * 1024;

/// An honest pair that always has frames to move, beside `attack`, which is called before each round: bytes
/// that the pair moved.
fn beside(bench: &mut Bench, mut attack: impl FnMut(&mut Bench)) -> u64 {
    let (a, b) = (bench.guest(1), bench.guest(2));
    b.wire.forget_frames();
    let bytes = frame(mac(2), mac(1), 1500, 0);
    for _ in 0..ROUNDS {
        while a.wire.queued() < 300 {
            a.wire.send(&bytes, Offload::None, None);
        }
        attack(bench);
        bench.step();
    }
    b.stats.rx_bytes.get()
}

fn alone() -> u64 {
    beside(&mut Bench::exactly(holding()), |_| {})
}

/// The honest pair has all of its share, and what `vms` attackers cost in a round is theirs at the most: so
/// it keeps n of n + 1, less what one call more than a share may cost.
fn assert_fair(honest: u64, cost: usize, vms: usize) {
    assert!(honest * 10 >= alone() * 9, "{honest} bytes beside it, {} alone", alone());
    let a_round = cost / ROUNDS;
    assert!(
        a_round <= vms * QUOTA * 11 / 10,
        "{a_round} bytes' worth of work in a round, {QUOTA} are a share"
    );
    assert!(a_round >= QUOTA / 4, "the attack does nothing");
}

fn cost(guest: &Guest) -> usize {
    guest.wire.overhead_so_far() * DESCRIPTOR
}

#[test]
fn chains_that_are_no_frames_cost_their_sender() {
    let mut bench = Bench::exactly(holding());
    let attacker = bench.guest(9);
    attacker.wire.set_overhead(IN_VAIN);
    let honest = beside(&mut bench, |_| {});
    assert_fair(honest, cost(&attacker), 1);
}

#[test]
fn buffers_of_endless_pieces_cost_their_receiver() {
    let mut bench = Bench::exactly(holding());
    let (sender, attacker) = (bench.guest(8), bench.guest(9));
    attacker.wire.set_overhead(IN_VAIN);
    let bytes = frame(mac(9), mac(8), 60, 0);
    let honest = beside(&mut bench, |_| {
        while sender.wire.queued() < 64 {
            sender.wire.send(&bytes, Offload::None, None);
        }
    });
    assert_fair(honest, cost(&attacker), 1);
}

#[test]
fn tables_made_anew_cost_who_asks_for_them() {
    let mut bench = Bench::exactly(holding());
    let attacker = bench.guest(9);
    let before = attacker.wire.refreshes();
    // As many as a hundred queues of commands would.
    let honest = beside(&mut bench, |bench| (0..100).for_each(|_| bench.switch.refresh(attacker.id)));
    assert_fair(honest, (attacker.wire.refreshes() - before) * REBUILD, 1);
}

/// Segments that wait are summed at each look whether their receiver has room for all of them in one. That is
/// the work of the receiver, which has no buffers: the VM that it belongs to can send less for it, and their
/// sender as much as ever.
#[test]
fn segments_that_wait_cost_their_receiver() {
    const SEGMENTS: usize = 31;
    let sent = |waits: bool| {
        let mut bench = Bench::exactly(holding());
        let port = |bench: &mut Bench, number, name: &str| {
            let guest = bench.port(PortSpec { name: name.into(), ..Bench::spec(number) });
            guest.wire.set_capabilities(LRO);
            guest.wire.forget_frames();
            guest
        };
        let (sender, receiver) = (port(&mut bench, 1, "a/nic0"), port(&mut bench, 2, "b/nic0"));
        let other = port(&mut bench, 3, "b/nic1");
        let sinks = [port(&mut bench, 4, "c/nic0"), port(&mut bench, 5, "d/nic0")];
        receiver.wire.set_longest(Some(0));
        for packet in Packet::new(mac(2), mac(1), false, SEGMENTS * 1400).segments(1400) {
            sender.wire.send(&packet.bytes(), Offload::None, None);
        }
        if waits {
            (0..3).for_each(|_| bench.step());
            assert_eq!(sender.wire.outstanding(), SEGMENTS);
        } else {
            bench.switch.remove_port(receiver.id);
            bench.step();
        }
        let before = sinks.each_ref().map(|sink| sink.stats.rx_bytes.get());
        for _ in 0..ROUNDS {
            for (from, number, to) in [(&sender, 1, 4), (&other, 3, 5)] {
                let packet = Packet::new(mac(to), mac(number), false, 10_000);
                let offload = Offload::Segment { header: packet.header_len() as u16, mss: 1400 };
                while from.wire.queued() < 40 {
                    from.wire.send(&packet.partial(false), offload, None);
                }
            }
            bench.step();
        }
        let after = sinks.each_ref().map(|sink| sink.stats.rx_bytes.get());
        [after[0] - before[0], after[1] - before[1]]
    };
    let ([sender, other], [sender_alone, other_alone]) = (sent(true), sent(false));
    assert!(sender * 100 >= sender_alone * 98, "{sender} of {sender_alone} bytes");
    let missing = (other_alone - other) as usize / ROUNDS;
    assert!((SEGMENTS * 1400 * 8 / 10..QUOTA / 2).contains(&missing), "{missing} bytes a round");
}

/// Ports of a crowd are asked for few frames at once, and have their order and all of their turn
/// nevertheless; one whose segments are merged is asked for all that may be.
#[test]
fn in_a_crowd_bursts_are_short_but_where_segments_are_merged() {
    // None of them dozes.
    let mut bench = Bench::exactly(Settings { few: 1000, ..Settings::default() });
    let guests: Vec<Guest> = (1..=60).map(|number| bench.guest(number)).collect();
    let (a, b) = (&guests[0], &guests[1]);
    b.wire.set_capabilities(LRO);
    bench.refresh(b);
    assert_eq!(a.wire.asked_for(), BURST);
    let _others: Vec<Guest> = (61..=70).map(|number| bench.guest(number)).collect();
    assert!(a.wire.asked_for() < BURST, "{}", a.wire.asked_for());
    let frames: Vec<Vec<u8>> = (0..100).map(|number| frame(mac(2), mac(1), 100, number)).collect();
    frames.iter().for_each(|frame| a.send(frame));
    bench.run();
    assert!(b.frames() == frames, "all of them, in order");
    a.wire.verify();
    let packet = Packet::new(mac(2), mac(1), false, BURST * 1428).timestamped();
    for _ in 0..3 {
        packet.segments(1428).iter().for_each(|segment| a.send(&segment.bytes()));
        bench.run();
    }
    let last = b.wire.received().pop().and_then(|frame| frame.aggregate);
    assert_eq!(last.map(|aggregate| usize::from(aggregate.segments)), Some(BURST));
    assert_eq!(a.wire.asked_for(), BURST);
}
