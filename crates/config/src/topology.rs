//! How many workers there are, and where they run: `workers` in `[daemon]`.
//!
//! A number is taken as it is, and such workers run wherever the daemon (or `cpus`) may. With `"auto"`, the
//! kernel's description of the host decides ([`Machine`], read from `/sys`), cut to the CPUs that the daemon
//! may use (its cpuset, and `cpus`). All counts are of cores; hardware threads of one core count once.
//!
//! | cores that may be used | workers | where they run |
//! | --- | --- | --- |
//! | fewer than 7 | 1 | not pinned |
//! | 7 to 15 with one last-level cache | 1 | cores of its own |
//! | 16 and more with one cache | one for each 8 | cores of their own, among those 8 |
//! | several caches with 4 to 6 cores each | one for each cache | any core of its cache |
//! | several caches with 7 cores or more | as for one cache, for each of them | cores of their own |
//! | caches with fewer than 4 cores | those of a NUMA node count as one cache | as above |
//! | no cache that cores share, or none known | those of a NUMA node count as one cache | as above |
//! | it is not known which CPUs are threads of one core | 1 | not pinned |
//!
//! There are three threads for each worker: for streams, for frames and for virtio-vsock. *Cores of its own*
//! are three, one for each of these: the last ones of the eight, since the kernel's own work is mostly on the
//! first CPUs. So no two threads compete for a core, and more than half of the cores have none. Where three
//! would be too many, the three threads share all cores of their cache, as the scheduler sees fit.

mod machine;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};
use vmlane_switch::MOST_WORKERS;

use crate::cpus::CpuList;
use crate::daemon::{DaemonConfig, Workers};
use machine::{Core, Machine};

/// Cores of one cache that have a worker together.
const CORES_A_WORKER: usize = 8;
/// A cache with fewer cores has no worker of its own.
const FEWEST_CORES: usize = 4;
/// What it costs to pass frames to a worker with another cache, compared with one of the same cache.
/// Estimated: caches of one package exchange a line in three to four times the time that cores of one cache
/// need, and a part of the cost of a frame is such lines.
const OTHER_CACHE: f64 = 1.5;

/// The threads that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    Streams,
    Frames,
    Vsock,
}

/// How many workers there are, where each of them runs, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    pub workers: u16,
    /// Where they run, by their number; none: wherever the daemon may.
    places: Vec<Place>,
    /// Between every two of them ([`Placement::distances`]).
    distances: Vec<Vec<f64>>,
    /// For people: `auto: 2 caches of 8 cores, CPUs 5-7,13-15`.
    pub reason: String,
}

/// Where one worker's threads run.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    streams: CpuList,
    frames: CpuList,
    vsock: CpuList,
    at: Core,
}

impl Placement {
    /// As the configuration asks for it, on this host.
    pub fn of(daemon: &DaemonConfig) -> Placement {
        let allowed = sched_getaffinity(None).ok();
        let allowed = allowed.map(|set| CpuList::of((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu))));
        Placement::on(Path::new("/sys"), allowed, daemon)
    }

    /// The same on the host that the tree `sys` describes, of which the daemon may use the CPUs `allowed`.
    fn on(sys: &Path, allowed: Option<CpuList>, daemon: &DaemonConfig) -> Placement {
        let (workers, cpus) = match (daemon.workers, &daemon.cpus) {
            (Workers::Auto, cpus) => return Placement::auto(sys, allowed, cpus.as_ref()),
            (Workers::Count(workers), None) => (workers, String::new()),
            (Workers::Count(workers), Some(cpus)) => (workers, format!(", CPUs {cpus}")),
        };
        Placement::unpinned(workers, format!("configured{cpus}"))
    }

    fn auto(sys: &Path, allowed: Option<CpuList>, cpus: Option<&CpuList>) -> Placement {
        let Some(allowed) = allowed else {
            return Placement::unpinned(1, "auto: the CPUs are not known, not pinned".into());
        };
        let chosen = |&cpu: &usize| cpus.is_none_or(|list| list.iter().any(|one| one == cpu));
        let machine = Machine::read(sys, &CpuList::of(allowed.iter().filter(chosen)));
        let units = units(&machine.cores);
        let what = format!("auto: {}{}", shown(&units), machine.shown_unknown());
        let units = joined(units);
        let chunks = units.iter().flat_map(|unit| split(unit)).take(MOST_WORKERS);
        let places: Vec<Place> = chunks.filter_map(place).collect();
        let pinned = places.len() > 1 || places.iter().any(|place| place.streams != place.frames);
        if !pinned || !machine.knows_cores {
            return Placement::unpinned(1, format!("{what}, not pinned"));
        }
        let distances = places.iter().map(|from| distances(&machine, &places, from)).collect();
        let reason = format!("{what}, CPUs {}", all_cpus(&places));
        Placement { workers: places.len() as u16, places, distances, reason }
    }

    fn unpinned(workers: u16, reason: String) -> Placement {
        Placement { workers, places: Vec::new(), distances: Vec::new(), reason }
    }

    /// The CPUs of each worker's thread of that kind; none at all: wherever the daemon may run.
    pub fn cpus(&self, kind: WorkerKind) -> impl Iterator<Item = &CpuList> {
        self.places.iter().map(move |place| match kind {
            WorkerKind::Streams => &place.streams,
            WorkerKind::Frames => &place.frames,
            WorkerKind::Vsock => &place.vsock,
        })
    }

    /// What it costs to pass frames from each worker to each other one, compared with one of the same cache.
    /// Empty: there is no difference.
    pub fn distances(&self) -> &[Vec<f64>] {
        &self.distances
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.workers, self.reason)
    }
}

/// Cores that share a cache, or a node's that share none, in the order of their CPUs.
type Unit = Vec<Core>;

/// By node, so that neighbours in the list are near each other.
fn units(cores: &[Core]) -> Vec<Unit> {
    let mut units = BTreeMap::<_, Unit>::new();
    for core in cores {
        units.entry((core.node, core.cache)).or_default().push(*core);
    }
    units.into_values().collect()
}

/// Those that are too small go with their neighbours: first with those of the same node.
fn joined(units: Vec<Unit>) -> Vec<Unit> {
    let is_small = |unit: &Unit| unit.len() < FEWEST_CORES;
    let join = |mut all: Vec<Unit>, unit: Unit| {
        match all.last_mut() {
            // The larger one comes last: cores of its own are found there.
            Some(last) if is_small(last) || is_small(&unit) => {
                let larger = if last.len() > unit.len() { std::mem::replace(last, unit) } else { unit };
                last.extend(larger);
            }
            _ => all.push(unit),
        }
        all
    };
    let node = |unit: &Unit| unit.first().map(|core| core.node);
    let of_nodes = units.chunk_by(|one, other| node(one) == node(other));
    let of_nodes = of_nodes.flat_map(|units| units.iter().cloned().fold(Vec::new(), join));
    of_nodes.fold(Vec::new(), join)
}

/// The cores of each worker.
fn split(unit: &[Core]) -> impl Iterator<Item = &[Core]> {
    let workers = (unit.len() / CORES_A_WORKER).max(1);
    unit.chunks(unit.len().div_ceil(workers).max(1))
}

/// Where the worker of these cores runs.
fn place(cores: &[Core]) -> Option<Place> {
    let at = *cores.last()?;
    let [streams, frames, vsock] = match cores {
        [guests @ .., a, b, c] if guests.len() > 3 => [a, b, c].map(std::slice::from_ref),
        all => [all; 3],
    }
    .map(|cores| CpuList::of(cores.iter().map(|core| core.cpu)));
    Some(Place { streams, frames, vsock, at })
}

fn distances(machine: &Machine, places: &[Place], from: &Place) -> Vec<f64> {
    let distance = |to: &Place| match (from.at.node, from.at.cache) == (to.at.node, to.at.cache) {
        true => 1.0,
        false => OTHER_CACHE * machine.distance(from.at.node, to.at.node),
    };
    places.iter().map(distance).collect()
}

fn all_cpus(places: &[Place]) -> CpuList {
    let lists = places.iter().flat_map(|place| [&place.streams, &place.frames, &place.vsock]);
    let mut cpus: Vec<usize> = lists.flat_map(CpuList::iter).collect();
    cpus.sort_unstable();
    cpus.dedup();
    CpuList::of(cpus.into_iter())
}

/// `2 caches of 4 to 8 cores`.
fn shown(units: &[Unit]) -> String {
    let has_cache = |unit: &Unit| unit.iter().all(|core| core.cache.is_some());
    let kind = if units.iter().all(has_cache) { "cache" } else { "node" };
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let most = units.iter().map(Vec::len).max().unwrap_or(0);
    let fewest = units.iter().map(Vec::len).min().filter(|&fewest| fewest < most);
    let fewest = fewest.map(|fewest| format!("{fewest} to ")).unwrap_or_default();
    format!("{} {kind}{} of {fewest}{most} core{}", units.len(), plural(units.len()), plural(most))
}
