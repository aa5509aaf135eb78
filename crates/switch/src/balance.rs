//! Ports go to other workers where all have less to do then.
//!
//! Whether anything is to be done is measured: the share of the time in which a worker had work
//! ([`vmlane_worker::Heartbeat`]). What would be better is estimated, from what each port sent and received
//! and where its last frame went. Ports that send to each other are best off with one worker: a frame between
//! two workers is looked up twice, and its bytes or its description travel between caches (the rows
//! `switch.handover` beside `switch.workers` of `make bench`). So those that do are brought together, and
//! those that do not apart.
//!
//! Traffic changes all the time. Nothing is done before the same was found several times in a row, and a port
//! that has gone stays for a while.

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
/// What a port costs whose frames go to another worker near its own, as a part of what it costs else.
const APART: f64 = 0.75;
/// Polls in a row that must find something before anything goes.
const POLLS: u32 = 3;
/// How long a port stays where it went, or where it could not go from.
const STAY: Duration = Duration::from_secs(10);
/// Ports that may go: those with the most work.
const BUSIEST: usize = 64;
/// A step that makes the cost smaller by less than this part of it is none.
const LEAST: f64 = 1e-6;

/// One port, as far as it matters for that.
#[derive(Clone, Copy, Debug)]
struct PortLoad {
    id: PortId,
    slot: Slot,
    worker: usize,
    /// What it has sent and received since the poll before, as [`DELIVERY_COST`] measures.
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

/// Polls now and then what the workers of a switch have to do.
#[derive(Default)]
pub struct Balancer {
    /// The poll before: when, nanoseconds in which each worker had worked, work that each port had caused.
    before: Option<(Instant, Vec<u64>, HashMap<PortId, u64>)>,
    /// Polls in a row that found something.
    found: u32,
    stays: HashMap<PortId, Instant>,
    distances: Vec<Vec<f64>>,
}

impl Balancer {
    /// What a frame costs that goes from one worker to another: from each to each, as a multiple of what it
    /// costs between workers that share a cache. Those that are not in the list do.
    pub fn over(distances: Vec<Vec<f64>>) -> Balancer {
        Balancer { distances, ..Balancer::default() }
    }

    /// To be called about once a second. What is to be moved now, with [`Switch::move_port`].
    pub fn poll(&mut self, switch: &Switch, now: Instant) -> Option<Relief> {
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
        let moves = match loads.iter().any(|load| *load >= MUCH) {
            true => better(loads.len(), &self.distances, ports),
            false => Vec::new(),
        };
        self.found = if moves.is_empty() { 0 } else { self.found + 1 };
        if self.found < POLLS {
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
        slot: entry.numbers.slot,
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

/// Which ports go to which workers, of `workers`, so that the cost becomes clearly smaller; none if it
/// cannot.
fn better(workers: usize, distances: &[Vec<f64>], ports: Vec<PortLoad>) -> Vec<(PortId, usize)> {
    let mut placing = Placing::new(workers, distances, ports);
    let (before, first) = (placing.cost(), placing.places());
    // Where all have as much to do, no single step makes a great difference: what counts is where they lead
    // to.
    let most = placing.ports.len();
    let steps = std::iter::from_fn(|| placing.best_step().map(|step| placing.take(&step))).take(most).count();
    if steps == 0 || placing.cost() >= before * (1.0 - GAIN) {
        return Vec::new();
    }
    let changed = placing.ports.iter().zip(first).filter(|(port, first)| port.worker != *first);
    changed.map(|(port, _)| (port.id, port.worker)).collect()
}

/// Ports and the workers that have them, as it is or as it could be.
struct Placing<'d> {
    workers: usize,
    distances: &'d [Vec<f64>],
    /// Those that may go, the one with the most work first.
    ports: Vec<PortLoad>,
    /// For each, where the one is that its frames go to.
    /// A hub, which many send to, has none of its own: its last frame went to any of them.
    peers: Vec<Option<usize>>,
    /// For each, whether it is one.
    hubs: Vec<bool>,
    /// What each worker has to do beside them.
    others: Vec<f64>,
}

/// Ports, by their places in the list, and the workers that get them.
type Changes = Vec<(usize, usize)>;

impl Placing<'_> {
    fn new(workers: usize, distances: &[Vec<f64>], mut ports: Vec<PortLoad>) -> Placing<'_> {
        ports.retain(|port| port.work > 0 && port.worker < workers);
        ports.sort_by_key(|port| (std::cmp::Reverse(port.work), port.id));
        let mut others = vec![0.0; workers];
        for port in ports.drain(ports.len().min(BUSIEST)..) {
            others.iter_mut().skip(port.worker).take(1).for_each(|load| *load += port.work as f64);
        }
        let places: HashMap<Slot, usize> =
            ports.iter().enumerate().map(|(at, port)| (port.slot, at)).collect();
        let mut peers: Vec<_> = ports.iter().map(|port| places.get(&port.last_to).copied()).collect();
        let is_hub = |at| peers.iter().filter(|peer| **peer == Some(at)).count() > 1;
        let hubs: Vec<bool> = (0..ports.len()).map(is_hub).collect();
        peers.iter_mut().zip(&hubs).filter(|(_, hub)| **hub).for_each(|(peer, _)| *peer = None);
        Placing { workers, distances, ports, peers, hubs, others }
    }

    fn places(&self) -> Vec<usize> {
        self.ports.iter().map(|port| port.worker).collect()
    }

    /// The work of the worker with the most, and the mean of all.
    fn cost(&self) -> f64 {
        let mut loads = self.others.clone();
        let mut charge = |worker: usize, work: f64| {
            loads.iter_mut().skip(worker).take(1).for_each(|load| *load += work);
        };
        for (port, peer) in self.ports.iter().zip(&self.peers) {
            let work = port.work as f64;
            charge(port.worker, work);
            let Some((peer, hub)) = peer.and_then(|at| Some((self.ports.get(at)?, *self.hubs.get(at)?)))
            else {
                continue;
            };
            if peer.worker == port.worker {
                continue;
            }
            // Both ends of its frames pay. The other one does so for itself, unless it has many such peers.
            let apart = work * APART * self.distance(port.worker, peer.worker);
            charge(port.worker, apart);
            if hub {
                charge(peer.worker, apart);
            }
        }
        loads.iter().copied().fold(0.0, f64::max) + loads.iter().sum::<f64>() / self.workers.max(1) as f64
    }

    fn distance(&self, from: usize, to: usize) -> f64 {
        self.distances.get(from).and_then(|row| row.get(to)).copied().unwrap_or(1.0)
    }

    /// The one step that makes the cost smallest: one port or all that send to each other to another worker,
    /// or two exchanged.
    fn best_step(&mut self) -> Option<Changes> {
        let mut best = (self.cost() * (1.0 - LEAST), None);
        let together = together(&self.ports);
        for to in 0..self.workers {
            for those in &together {
                self.consider(those.iter().map(|&at| (at, to)).collect(), &mut best);
            }
            (0..self.ports.len()).for_each(|at| self.consider(vec![(at, to)], &mut best));
        }
        let places = self.places();
        for (at, worker) in places.iter().enumerate() {
            for (other_at, other) in
                places.iter().enumerate().skip(at + 1).filter(|(_, other)| *other != worker)
            {
                self.consider(vec![(at, *other), (other_at, *worker)], &mut best);
            }
        }
        best.1
    }

    /// Takes the step for the best one if it is allowed, and better than that one.
    fn consider(&mut self, changes: Changes, best: &mut (f64, Option<Changes>)) {
        let stays = |&(at, to): &(usize, usize)| {
            self.ports.get(at).is_some_and(|port| port.worker != to && !port.may_move)
        };
        if changes.iter().any(stays) {
            return;
        }
        let before = self.take(&changes);
        let cost = self.cost();
        if cost < best.0 {
            *best = (cost, Some(changes));
        }
        self.take(&before);
    }

    /// Takes a step. What takes it back.
    fn take(&mut self, changes: &Changes) -> Changes {
        let change = |&(at, to): &(usize, usize)| {
            Some((at, std::mem::replace(&mut self.ports.get_mut(at)?.worker, to)))
        };
        changes.iter().filter_map(change).collect()
    }
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
    use crate::port_state::NOWHERE;

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
        let moves: HashMap<_, _> = better(workers, &[], ports.to_vec()).into_iter().collect();
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
    fn many_pairs_across_workers_are_brought_together() {
        for workers in [2, 3, 4, 8, 16, 32] {
            // Two of each pair are neighbours' ports, as they are where ports go to the worker with the
            // fewest.
            let pair = |number: usize| {
                let slot = 2 * number as Slot;
                [(number, 50, slot + 1), ((number + 1) % workers, 50, slot)]
            };
            let pairs: Vec<_> = (0..workers).flat_map(pair).collect();
            let after = placed(workers, &ports(&pairs));
            assert!(after.chunks(2).all(|pair| pair[0] == pair[1]), "{after:?}");
            let mut count = vec![0; workers];
            after.iter().for_each(|&worker| count[worker] += 1);
            assert!(count.iter().all(|&count| count == 2), "{count:?}");
        }
    }

    #[test]
    fn what_is_not_moved_counts() {
        // The busiest lie evenly, but worker 1 has many others beside them.
        let busiest = (0..BUSIEST).map(|at| (at % 2, 100, NOWHERE));
        let others = (0..200).map(|_| (1, 50, NOWHERE));
        let after = placed(2, &ports(&busiest.chain(others).collect::<Vec<_>>()));
        assert_eq!(after[..BUSIEST], [0; BUSIEST]);
        assert_eq!(after[BUSIEST..], [1; 200]);
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
        let well: [&[(usize, u64, Slot)]; 5] = [
            &[],
            &[(0, 50, 1), (0, 50, 0)],
            &[(0, 50, 1), (0, 50, 0), (1, 60, 3), (1, 60, 2)],
            // Frames to and from a port that all others send to cost twice as much from another worker.
            &[(0, 60, 1), (0, 40, 0), (0, 40, 0), (0, 40, 0), (0, 40, 0), (0, 40, 0)],
            &[(0, 200, 1), (0, 40, 0), (0, 40, 0), (0, 40, 0), (0, 40, 0), (0, 40, 0)],
        ];
        for list in well {
            assert_eq!(better(2, &[], ports(list)), [], "{list:?}");
        }
    }

    #[test]
    fn what_may_not_move_stays() {
        let mut list = ports(&[(0, 50, 1), (1, 50, 0)]);
        list[0].may_move = false;
        assert_eq!(better(2, &[], list.clone()), [(PortId(2), 0)]);
        list[1].may_move = false;
        assert_eq!(better(2, &[], list), []);
    }

    #[test]
    fn of_two_workers_the_near_one_is_taken_and_a_far_one_only_where_it_pays() {
        // The second port sends to the first, which stays.
        let mut list = ports(&[(0, 300, NOWHERE), (0, 100, 0), (1, 50, NOWHERE), (2, 50, NOWHERE)]);
        for fixed in [0, 2, 3] {
            list[fixed].may_move = false;
        }
        let moves = |[one, other]: [f64; 2]| {
            let rows = [vec![1.0, one, other], vec![one, 1.0, 1.0], vec![other, 1.0, 1.0]];
            better(3, &rows, list.clone())
        };
        for (distances, moved) in
            [([1.0, 1.0], Some(1)), ([2.0, 1.0], Some(2)), ([1.0, 2.0], Some(1)), ([4.0, 4.0], None)]
        {
            assert_eq!(moves(distances), Vec::from_iter(moved.map(|to| (PortId(2), to))), "{distances:?}");
        }
    }
}
