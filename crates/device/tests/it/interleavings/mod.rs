//! Every interleaving of the engine with a small writer and a small reader: do the rules M1 to M8 of
//! `docs/devices/vmci.md` hold in the code, and would it be noticed if they did not?
//!
//! One direction is explored: guest A writes, the real `Direction` moves bytes between two real queue
//! pair ports, guest B reads. A step is one access of the engine to something shared, one step of a
//! guest, or the delivery of a notice; every order of them is tried. It is a failure if no actor can
//! do anything while B lacks bytes, if the device can neither move bytes nor sleep, if an index
//! announces what is not there, or if the engine finds fault with guests that keep the rules.
//!
//! Not in the model: the other direction (it shares no index with this one), readers that wait for
//! more than one byte, how connections begin and end, guests that break the rules, and `GuestQueues`.
//!
//! | module | what |
//! | --- | --- |
//! | `memory` | the engine's memory: stops it before each access |
//! | `device` | the engine as a table of states |
//! | `broken` | engines that break a rule |
//! | `guests`, `world` | writer and reader, and all that is shared |
//! | `explore`, `seen` | the search |
//!
//! `VMLANE_MODEL=full` (`make soak`) explores all guests with more bytes and larger rings: minutes instead of
//! seconds.

mod broken;
mod device;
mod explore;
mod guests;
mod memory;
mod seen;
mod world;

use vmlane_port::queue_pair::Protocol;

use broken::{Make, Rule};
use device::Device;
use explore::{Explorer, Failure};
use guests::Habits;

/// Ring sizes; a ring of n holds n - 1 bytes.
fn sizes() -> std::ops::RangeInclusive<u8> {
    2..=if full() { 5 } else { 3 }
}

/// Two full rings and a writer that waits.
fn most(size: u8) -> u8 {
    if full() { 7 } else { (2 * size - 1).min(7) }
}

const CHUNKS: [u8; 3] = [1, 2, 4];

/// Guests of every kind: bytes per write and per read, and both extremes of the reader's window.
fn guests(size: u8, protocol: Protocol, total: u8, chunks: &[u8]) -> Vec<Habits> {
    let mut all = Vec::new();
    // More than the ring holds is never moved at once.
    let chunks: Vec<u8> = chunks.iter().map(|&chunk| chunk.min(size - 1)).collect();
    for &write in &chunks {
        for &read in &chunks {
            for limit in [0, size - 2] {
                let habits = Habits { size, protocol, total, write, read, limit };
                if !all.contains(&habits) {
                    all.push(habits);
                }
            }
        }
    }
    all
}

/// Explores all these guests against an engine that keeps the rules.
fn explore(name: &str, quota: usize, guests: Vec<Habits>) {
    let (mut configurations, mut states) = (0, 0);
    let mut device: Option<Device> = None;
    for habits in guests {
        let make = Make { size: habits.size, protocol: habits.protocol, quota, breaks: None };
        // The engine's states are the same for all guests with rings of this size.
        let mut fits =
            device.take().filter(|device| device.make == make).unwrap_or_else(|| Device::new(make));
        match (Explorer { device: &mut fits, habits }).run() {
            Ok(found) => states += found,
            Err(found) => panic!("{habits:?}: {found}"),
        }
        device = Some(fits);
        configurations += 1;
    }
    println!("{name}: {configurations} configurations, {states} states, no failure");
}

/// What the model reports of an engine that breaks a rule, with one byte at a time.
fn failure(rule: Rule, protocol: Protocol, size: u8) -> Failure {
    let mut device = Device::new(Make { size, protocol, quota: usize::MAX, breaks: Some(rule) });
    let failed = guests(size, protocol, most(size), &[1]).into_iter().find_map(|habits| {
        let found = Explorer { device: &mut device, habits }.run().err()?;
        println!("{rule:?}, {habits:?}: {found}");
        Some(found.failure)
    });
    failed.unwrap_or_else(|| panic!("nothing fails without {rule:?}"))
}

fn full() -> bool {
    std::env::var("VMLANE_MODEL").is_ok_and(|value| value == "full")
}

#[test]
fn rules_hold() {
    let parts: &[(u8, u8, &[u8])] = if full() {
        &[(2, 7, &CHUNKS), (3, 7, &CHUNKS), (4, 7, &CHUNKS), (5, 7, &CHUNKS)]
    } else {
        &[(2, 7, &CHUNKS), (3, 5, &CHUNKS), (4, 7, &[4]), (5, 4, &[1]), (5, 7, &[4])]
    };
    let guests =
        parts.iter().flat_map(|&(size, total, chunks)| guests(size, Protocol::Qstate, total, chunks));
    explore("rules", usize::MAX, guests.collect());
}

#[test]
fn rules_hold_with_turns_cut_short() {
    let (total, chunks): (_, &[u8]) = if full() { (7, &CHUNKS) } else { (5, &[2]) };
    explore("short turns", 1, guests(3, Protocol::Qstate, total, chunks));
}

#[test]
fn rules_hold_with_announcements() {
    let parts: &[(u8, u8, &[u8])] = if full() {
        &[(2, 4, &CHUNKS), (3, 3, &CHUNKS), (4, 3, &CHUNKS), (5, 3, &CHUNKS)]
    } else {
        &[(2, 3, &CHUNKS), (3, 3, &[2])]
    };
    let guests = parts.iter().flat_map(|&(size, total, chunks)| guests(size, Protocol::Pkt, total, chunks));
    explore("older protocol", usize::MAX, guests.collect());
}

#[test]
fn breaking_m1_is_found() {
    assert!(matches!(failure(Rule::TailBeforeBytes, Protocol::Qstate, 3), Failure::Order(_)));
    assert!(matches!(failure(Rule::WrongPlace, Protocol::Qstate, 3), Failure::Broken(_)));
}

#[test]
fn breaking_m2_is_found() {
    for size in sizes() {
        assert_eq!(failure(Rule::NoWrote, Protocol::Qstate, size), Failure::Deadlock);
    }
}

#[test]
fn breaking_m3_is_found() {
    for size in sizes() {
        assert_eq!(failure(Rule::NoRead, Protocol::Qstate, size), Failure::Deadlock);
    }
}

/// What M2 and M3 need fences for is found by a later check, too: a guest may have none.
#[test]
fn a_store_that_passes_the_load_behind_it_loses_no_notice() {
    for (size, total) in [(2, 7), (3, if full() { 7 } else { 5 })] {
        let make = Make { size, protocol: Protocol::Qstate, quota: usize::MAX, breaks: Some(Rule::NoFence) };
        let mut device = Device::new(make);
        for habits in guests(size, Protocol::Qstate, total, &[1]) {
            if let Err(found) = (Explorer { device: &mut device, habits }).run() {
                panic!("{habits:?}: {found}");
            }
        }
    }
}

#[test]
fn breaking_m4_is_found() {
    // In a ring for one byte no end is ever late, and one byte short of full is empty.
    for size in [3, 4] {
        assert_eq!(failure(Rule::StaleTail, Protocol::Qstate, size), Failure::Deadlock);
        assert_eq!(failure(Rule::ShortOfFull, Protocol::Qstate, size), Failure::Deadlock);
    }
}

#[test]
fn breaking_m7_is_found() {
    for size in sizes() {
        assert_eq!(failure(Rule::LaggingHead, Protocol::Qstate, size), Failure::Deadlock);
    }
}

#[test]
fn never_sleeping_is_found() {
    assert_eq!(failure(Rule::Restless, Protocol::Qstate, 3), Failure::Restless);
}

#[test]
fn forwarding_notices_is_not_enough() {
    for size in sizes() {
        assert_eq!(failure(Rule::Forwarding, Protocol::Qstate, size), Failure::Deadlock);
    }
}

#[test]
fn sleeping_unannounced_is_found() {
    assert_eq!(failure(Rule::Unannounced, Protocol::Pkt, 2), Failure::Deadlock);
}
