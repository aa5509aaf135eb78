//! Rows of a switch with several workers. Each worker's thread also drives the guests whose ports are that
//! worker's, since machines with two CPUs have none to spare for them.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use vmlane_switch::{Settings, Switch, Worker};

use super::drive::{Counts, POSTS};
use super::guest::{Guest, Load};
use super::{GBITS, MFRAMES, switched};
use crate::baseline::Cpus;
use crate::report::Registry;

/// Numbers of workers, of which those are measured that there are CPUs for; two always.
const WORKERS: [usize; 4] = [2, 4, 8, 16];

/// Adds the rows: two pairs of guests with one worker; with more, each pair with its own; with more, each
/// pair across two. Even guests send to odd ones.
pub fn register(registry: &mut Registry) {
    let cpus = Cpus::allowed().numbers().len();
    let mut add = |size: &str, unit, load, value: fn(&Counts) -> crate::report::Sample| {
        let one = format!("switch.workers.1{size}");
        registry.add(&one, unit, &[], move |length| Ok(value(&run(&[0; 4], load, length))));
        for count in WORKERS.into_iter().filter(|&count| count <= cpus.max(2)) {
            let apart: Vec<usize> = (0..2 * count).map(|guest| guest / 2).collect();
            let across: Vec<usize> = (0..2 * count).map(|guest| guest.div_ceil(2) % count).collect();
            let name = format!("switch.workers.{count}{size}");
            registry.add(&name, unit, &[&one], move |length| Ok(value(&run(&apart, load, length))));
            // The first of them has been there for longer than the others.
            let name = if count == 2 { String::new() } else { format!(".{count}") };
            let name = format!("switch.handover{name}{size}");
            registry.add(&name, unit, &[&one], move |length| Ok(value(&run(&across, load, length))));
        }
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
fn run(places: &[usize], load: Load, length: Duration) -> Counts {
    let (_switch, mut lanes) = connect(places, load);
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
    let mut counts = Counts { received: vec![(0, 0); places.len()], time: length };
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

/// New ports go where the switch puts them, and from there to where the row wants them.
fn connect(places: &[usize], load: Load) -> (Switch, Vec<Lane>) {
    let count = places.iter().max().map_or(1, |most| most + 1);
    let settings = Settings { workers: count, poll: true, ..Settings::default() };
    let (switch, mut workers) = Switch::unstarted_workers(settings);
    let mut lanes: Vec<Vec<(usize, Guest)>> = (0..count).map(|_| Vec::new()).collect();
    for (number, &place) in places.iter().enumerate() {
        let (guest, port) = switched::connect(&switch, number as u16, load, true);
        lanes[place].push((number, guest));
        let mut turn = || workers.iter_mut().for_each(|worker| assert!(worker.step()));
        turn();
        if let Some(mut moving) = switch.begin_move(port, place) {
            while moving.advance(&switch).is_none() {
                turn();
            }
        }
    }
    for view in switch.ports() {
        let number: usize = view.spec.name.trim_start_matches("vm-").parse().expect("a number");
        assert_eq!(view.worker, places[number], "{} is where the row wants it", view.spec.name);
    }
    let lanes = workers.into_iter().zip(lanes).map(|(worker, guests)| Lane { worker, guests }).collect();
    (switch, lanes)
}
