//! Rows of a switch with several workers. Each worker's thread also drives the guests whose ports are that worker's,
//! since machines with two CPUs have none to spare for them.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use vmlane_port::Frames;
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode, Worker};

use super::drive::Counts;
use super::guest::{Guest, Load, mac};
use super::{GBITS, MFRAMES};
use crate::baseline::Cpus;
use crate::report::Registry;

/// Frames that a guest posts in one turn.
const POSTS: usize = 64;

/// Guests 0 and 2 send to 1 and 3.
const GUESTS: usize = 4;

/// Adds the rows: two pairs of guests with one worker; with two, each pair with its own; with two, each pair across both.
pub fn register(registry: &mut Registry) {
    let mut add = |size: &str, unit, load, value: fn(&Counts) -> crate::report::Sample| {
        let one = format!("switch.workers.1{size}");
        registry.add(&one, unit, &[], move |length| Ok(value(&run([0; GUESTS], load, length))));
        let apart = move |length| Ok(value(&run([0, 0, 1, 1], load, length)));
        registry.add(&format!("switch.workers.2{size}"), unit, &[&one], apart);
        let across = move |length| Ok(value(&run([0, 1, 1, 0], load, length)));
        registry.add(&format!("switch.handover{size}"), unit, &[&one], across);
    };
    add("", MFRAMES, Load::Small, Counts::mframes);
    add(".1500", GBITS, Load::Full, Counts::gbits);
}

/// One thread: a worker, and its guests with their numbers.
struct Lane {
    worker: Worker,
    guests: Vec<(usize, Guest)>,
}

/// The guests' ports are those of these workers.
fn run(places: [usize; GUESTS], load: Load, length: Duration) -> Counts {
    let count = places.iter().max().map_or(1, |most| most + 1);
    let (_switch, mut lanes) = connect(places, count, load);
    // Each worker learns of the others' ports.
    (0..8).for_each(|_| lanes.iter_mut().for_each(|lane| assert!(lane.worker.step())));
    let (cpus, start) = (Cpus::allowed(), Barrier::new(lanes.len()));
    let received: Vec<Vec<(usize, u64, u64, Duration)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .into_iter()
            .enumerate()
            .map(|(number, lane)| {
                let (cpus, start) = (&cpus, &start);
                scope.spawn(move || {
                    let _placed = cpus.pin(number);
                    start.wait();
                    drive(lane, length)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut counts = Counts { received: vec![(0, 0); GUESTS], time: length };
    for (number, frames, bytes, time) in received.into_iter().flatten() {
        counts.received[number] = (frames, bytes);
        counts.time = counts.time.max(time);
    }
    counts
}

fn drive(lane: Lane, length: Duration) -> Vec<(usize, u64, u64, Duration)> {
    let Lane { mut worker, mut guests } = lane;
    let mut received = vec![(0, 0); guests.len()];
    let start = Instant::now();
    while start.elapsed() < length {
        for ((number, guest), total) in guests.iter_mut().zip(&mut received) {
            if *number % 2 == 0 {
                guest.send(POSTS);
            }
            let (frames, bytes) = guest.receive();
            *total = (total.0 + frames, total.1 + bytes);
        }
        (0..2).for_each(|_| assert!(worker.step()));
    }
    let time = start.elapsed();
    guests.iter().zip(received).map(|((number, _), (frames, bytes))| (*number, frames, bytes, time)).collect()
}

/// The switch gives each new port to the worker with the fewest, so ports are made in an order that puts them where
/// they are to be.
fn connect(places: [usize; GUESTS], count: usize, load: Load) -> (Switch, Vec<Lane>) {
    let settings = Settings { workers: count, poll: true, ..Settings::default() };
    let (switch, workers) = Switch::unstarted_workers(settings);
    let mut lanes: Vec<Lane> =
        workers.into_iter().map(|worker| Lane { worker, guests: Vec::new() }).collect();
    let mut left: Vec<usize> = (0..GUESTS).collect();
    while !left.is_empty() {
        for (worker, lane) in lanes.iter_mut().enumerate() {
            let Some(at) = left.iter().position(|&guest| places[guest] == worker) else { continue };
            let number = left.remove(at);
            let port = switch.add_port(PortSpec {
                name: format!("vm-{number}"),
                group: "test".into(),
                mac: mac(number as u16),
                vlan: VlanMode::Untagged,
                policy: Policy::default(),
                traffic: Traffic::default(),
                uplink: false,
                direct: false,
                notify: false,
            });
            let stats = Frames::stats(&switch, port);
            let (guest, nic) = Guest::new(number as u16, number as u16 ^ 1, load, true, stats);
            switch.attach(port, Box::new(nic));
            lane.guests.push((number, guest));
        }
    }
    for view in switch.ports() {
        let number: usize = view.spec.name.trim_start_matches("vm-").parse().expect("a number");
        assert_eq!(view.worker, places[number], "{} is where the row wants it", view.spec.name);
    }
    (switch, lanes)
}
