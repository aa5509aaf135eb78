//! Ports go to other workers where all have less to do then.
//!
//! Whether anything is to be done is measured: the share of the time in which a worker had work
//! ([`vmlane_worker::Heartbeat`]). What would be better is estimated, from what each port sent and received and where its last
//! frame went. Ports that send to each other are best off with one worker: a frame between two workers is looked up twice, and
//! its bytes or its description travel between caches (the rows `switch.handover` beside `switch.workers` of `make bench`). So
//! those that do are brought together, and those that do not apart.
//!
//! Traffic changes all the time. Nothing is done before the same was found several times in a row, and a port that has
//! gone stays for a while.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmlane_port::{PortId, PortStats};

use crate::Slot;
use crate::price::DELIVERY_COST;
use crate::switch::{Entry, Switch};

/// Where no worker has had work for a larger share of the time, all is well.
const MUCH: f64 = 0.5;
/// What is found must make the cost smaller by this part of it.
const GAIN: f64 = 0.1;
/// What a port costs whose frames go to another worker, as a part of what it costs else.
const APART: f64 = 0.75;
/// Looks in a row that must find something before anything goes.
const LOOKS: u32 = 3;
/// How long a port stays where it went, or where it could not go from.
const STAY: Duration = Duration::from_secs(10);
/// Ports that are looked at: those with the most work.
const BUSIEST: usize = 32;

/// One port, as far as it matters for that.
#[derive(Clone, Copy, Debug)]
struct PortLoad {
    id: PortId,
    slot: Slot,
    worker: usize,
    /// What it has sent and received since the look before, as [`DELIVERY_COST`] measures.
    work: u64,
    /// Where its last frame went; no port's slot if it has sent none to one receiver.
    last_to: Slot,
    may_move: bool,
}

/// What is to go where, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Relief {
    /// Ports and the workers that get them.
    pub moves: Vec<(PortId, usize)>,
    /// The share of the time in which each worker had work.
    pub loads: Vec<f64>,
}

/// Looks now and then at what the workers of a switch have to do.
#[derive(Default)]
pub struct Balancer {
    /// The look before: when, nanoseconds in which each worker had worked, work that each port had caused.
    before: Option<(Instant, Vec<u64>, HashMap<PortId, u64>)>,
    /// Looks in a row that found something.
    found: u32,
    stays: HashMap<PortId, Instant>,
}

impl Balancer {
    /// To be called about once a second. What is to be moved now, with [`Switch::move_port`].
    pub fn look(&mut self, switch: &Switch, now: Instant) -> Option<Relief> {
        let worked: Vec<u64> = switch.heartbeats().map(|heartbeat| heartbeat.read().worked).collect();
        let mut ports = loads_of(switch);
        let totals = ports.iter().map(|port| (port.id, port.work)).collect();
        let (then, worked_then, totals_then) = self.before.replace((now, worked.clone(), totals))?;
        let passed = now.saturating_duration_since(then).as_nanos().max(1) as f64;
        let loads: Vec<f64> = worked
            .iter()
            .zip(&worked_then)
            .map(|(now, then)| now.saturating_sub(*then) as f64 / passed)
            .collect();
        self.stays.retain(|_, since| now.saturating_duration_since(*since) < STAY);
        for port in &mut ports {
            port.work = port.work.saturating_sub(totals_then.get(&port.id).copied().unwrap_or(port.work));
            port.may_move &= !self.stays.contains_key(&port.id);
        }
        let moves =
            if loads.iter().any(|load| *load >= MUCH) { better(loads.len(), ports) } else { Vec::new() };
        self.found = if moves.is_empty() { 0 } else { self.found + 1 };
        if self.found < LOOKS {
            return None;
        }
        self.found = 0;
        self.stays.extend(moves.iter().map(|(id, _)| (*id, now)));
        Some(Relief { moves, loads })
    }
}

fn loads_of(switch: &Switch) -> Vec<PortLoad> {
    let entries = switch.entries().lock();
    let load = |(id, entry): (&PortId, &Entry)| PortLoad {
        id: *id,
        slot: entry.slot,
        worker: switch.owner(*id),
        work: work_of(&entry.stats),
        last_to: entry.state.last_to.load(Ordering::Relaxed),
        may_move: entry.may_move(),
    };
    entries.iter().map(load).collect()
}

/// What a port's frames have cost: of each frame a turn at both ends, and the copy at its receiver.
fn work_of(stats: &PortStats) -> u64 {
    let frames = stats.tx_frames.get() + stats.rx_frames.get();
    frames * DELIVERY_COST as u64 + stats.rx_bytes.get()
}

/// Which ports go to which workers, of `workers`, so that the cost becomes clearly smaller; none if it cannot.
fn better(workers: usize, mut ports: Vec<PortLoad>) -> Vec<(PortId, usize)> {
    ports.retain(|port| port.work > 0);
    ports.sort_by_key(|port| (std::cmp::Reverse(port.work), port.id));
    ports.truncate(BUSIEST);
    let before = cost(workers, &ports);
    let mut best = (before * (1.0 - GAIN), ports.clone());
    let mut consider = |changes: &[(usize, usize)]| {
        let mut after = ports.clone();
        for &(at, to) in changes {
            let Some(port) = after.get_mut(at) else { continue };
            if port.worker != to && !port.may_move {
                return;
            }
            port.worker = to;
        }
        let cost = cost(workers, &after);
        if cost < best.0 {
            best = (cost, after);
        }
    };
    let together = together(&ports);
    for to in 0..workers {
        together.iter().for_each(|those| consider(&those.iter().map(|&at| (at, to)).collect::<Vec<_>>()));
        (0..ports.len()).for_each(|at| consider(&[(at, to)]));
    }
    for (at, one) in ports.iter().enumerate() {
        for (other_at, other) in ports.iter().enumerate().skip(at + 1) {
            consider(&[(at, other.worker), (other_at, one.worker)]);
        }
    }
    let changed = ports.iter().zip(&best.1).filter(|(before, after)| before.worker != after.worker);
    changed.map(|(_, after)| (after.id, after.worker)).collect()
}

/// The work of the worker with the most, and the mean of all.
fn cost(workers: usize, ports: &[PortLoad]) -> f64 {
    let mut loads = vec![0.0; workers];
    for port in ports {
        let peer = ports.iter().find(|other| other.slot == port.last_to);
        let apart = peer.is_some_and(|peer| peer.worker != port.worker);
        let work = port.work as f64 * if apart { 1.0 + APART } else { 1.0 };
        loads.iter_mut().skip(port.worker).take(1).for_each(|load| *load += work);
    }
    loads.iter().copied().fold(0.0, f64::max) + loads.iter().sum::<f64>() / workers.max(1) as f64
}

/// Those that send to each other, directly or through others: their places in the list.
fn together(ports: &[PortLoad]) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let mut left: Vec<(usize, &PortLoad)> = ports.iter().enumerate().collect();
    while let Some(first) = left.pop() {
        let (mut those, mut next) = (vec![first], 0);
        while let Some(&(_, one)) = those.get(next) {
            next += 1;
            let (joined, others) = left
                .into_iter()
                .partition(|(_, other)| other.last_to == one.slot || one.last_to == other.slot);
            left = others;
            those.extend::<Vec<_>>(joined);
        }
        if those.len() > 1 {
            all.push(those.into_iter().map(|(at, _)| at).collect());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::NOWHERE;

    /// Ports by worker, work and where their frames go; the slot is the place in the list.
    fn ports(list: &[(usize, u64, Slot)]) -> Vec<PortLoad> {
        let port = |(slot, &(worker, work, last_to)): (Slot, &(usize, u64, Slot))| PortLoad {
            id: PortId(u32::from(slot) + 1),
            slot,
            worker,
            work,
            last_to,
            may_move: true,
        };
        (0..).zip(list).map(port).collect()
    }

    /// The workers of all ports afterwards.
    fn placed(workers: usize, ports: &[PortLoad]) -> Vec<usize> {
        let moves: HashMap<_, _> = better(workers, ports.to_vec()).into_iter().collect();
        ports.iter().map(|port| moves.get(&port.id).copied().unwrap_or(port.worker)).collect()
    }

    #[test]
    fn pairs_that_share_a_worker_are_brought_apart_each_together() {
        let pairs = [(0, 50, 1), (0, 50, 0), (0, 50, 3), (0, 50, 2)];
        let after = placed(2, &ports(&pairs));
        assert!(after[0] == after[1] && after[2] == after[3] && after[0] != after[2], "{after:?}");
        // Also beside ports that have nothing to do, and if the pairs differ.
        let more = [(0, 90, 1), (0, 90, 0), (0, 50, 3), (0, 50, 2), (0, 0, 1), (1, 0, 0)];
        let after = placed(3, &ports(&more));
        assert!(after[0] == after[1] && after[2] == after[3] && after[0] != after[2], "{after:?}");
        assert_eq!(after[4..], [0, 1]);
    }

    #[test]
    fn pairs_across_workers_are_brought_together() {
        let after = placed(2, &ports(&[(0, 50, 1), (1, 50, 0), (0, 50, 3), (1, 50, 2)]));
        assert!(after[0] == after[1] && after[2] == after[3] && after[0] != after[2], "{after:?}");
        assert_eq!(placed(2, &ports(&[(0, 5, 1), (1, 50, 0)])), [0, 0]);
        // Of two that only receive, neither is taken for a peer of the first port.
        let sinks = [(0, 50, 1), (0, 50, 0), (0, 90, NOWHERE), (1, 90, NOWHERE)];
        assert_eq!(placed(2, &ports(&sinks))[..2], [0, 0]);
    }

    #[test]
    fn what_is_well_stays() {
        let well: [&[(usize, u64, Slot)]; 4] = [
            &[],
            &[(0, 50, 1), (0, 50, 0)],
            &[(0, 50, 1), (0, 50, 0), (1, 60, 3), (1, 60, 2)],
            &[(0, 60, 1), (0, 40, 0), (0, 40, 0), (0, 40, 0), (0, 40, 0), (0, 40, 0)],
        ];
        for list in well {
            assert_eq!(better(2, ports(list)), [], "{list:?}");
        }
    }

    #[test]
    fn what_may_not_move_stays() {
        let mut list = ports(&[(0, 50, 1), (1, 50, 0)]);
        list[0].may_move = false;
        assert_eq!(better(2, list.clone()), [(PortId(2), 0)]);
        list[1].may_move = false;
        assert_eq!(better(2, list), []);
    }
}
