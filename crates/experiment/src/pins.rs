//! Which CPU each vCPU and each of the daemon's workers runs on while a paper's runs are made.
//!
//! One CPU of each core is used, on one NUMA node, where they are enough; the first core is left to everything else:
//! interrupts, QEMU's own threads, programs on the host that a VM talks to. Where CPUs are too few nothing is pinned.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;

use crate::factors::Factors;
use crate::topology::Topology;
use vmlane_lab::{Lab, Status};

/// CPUs that the daemon's workers are spread over, where it has no more of them.
const MOST_WORKERS: usize = 2;
/// Its threads that move bytes, by the beginnings of their names.
const WORKERS: [&str; 3] = ["worker-", "switch", "vsock"];
/// Processes of one User Mode Linux that are looked for.
const MOST_PROCESSES: usize = 4096;

/// CPUs for the VMs of one lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    pub workers: Vec<usize>,
    /// For each guest, in their order, a CPU for each of its vCPUs.
    pub guests: Vec<Vec<usize>>,
    /// Where they are, in words.
    pub place: String,
}

impl Pins {
    /// Chooses, for a lab of these combinations.
    ///
    /// # Errors
    /// There are too few CPUs; the text says how many are needed.
    pub fn choose(topology: &Topology, like: &Factors) -> Result<Pins, String> {
        let (guests, vcpus) = (like.guests as usize, like.cpus as usize);
        let (all, workers) = (guests * vcpus, like.workers.unwrap_or(1) as usize);
        // The rest of the machine, the workers, the vCPUs.
        let needed = 1 + workers + all;
        let (node, near) = topology.largest_node();
        let firsts: Vec<usize> =
            topology.cores.iter().filter_map(|core| core.cpus.first().copied()).collect();
        let rest = topology.cores.iter().flat_map(|core| core.cpus.iter().skip(1).copied());
        let every: Vec<usize> = firsts.iter().copied().chain(rest).collect();
        let (cpus, place) = if near.len() >= needed {
            (near, format!("one CPU of each core, node {node}"))
        } else if firsts.len() >= needed {
            (firsts, "one CPU of each core, several nodes".to_owned())
        } else if every.len() >= needed {
            (every, "CPUs that share cores".to_owned())
        } else {
            let have = every.len();
            let workers = if workers == 1 { "a worker".into() } else { format!("{workers} workers") };
            return Err(format!(
                "nothing: {all} vCPUs, {workers} and the rest need {needed} CPUs, there are {have}"
            ));
        };
        let workers = (cpus.len() - 1 - all).min(workers.max(MOST_WORKERS));
        let (workers, others) = cpus[1..].split_at(workers);
        let guests = others.chunks(vcpus.max(1)).take(guests).map(<[usize]>::to_vec).collect();
        Ok(Pins { workers: workers.to_vec(), guests, place })
    }

    /// Pins what runs in a lab.
    ///
    /// # Errors
    /// A thread is gone, or may not be pinned.
    pub fn apply(&self, lab: &Lab, status: &Status) -> Result<()> {
        if let Some(pid) = status.daemon.as_ref().and_then(|daemon| daemon.pid) {
            for (place, thread) in workers_of(pid).into_iter().enumerate() {
                pin(thread, &[self.workers[place % self.workers.len()]])?;
            }
        }
        for (guest, cpus) in status.guests.iter().zip(&self.guests) {
            if guest.machine.is_qemu() {
                let vcpus = lab.guest(&guest.name).qmp("query-cpus-fast", None)?;
                for (thread, cpu) in threads_of(&vcpus).into_iter().zip(cpus) {
                    pin(thread, &[*cpu])?;
                }
            } else if let Some(pid) = guest.pid {
                family(pid).into_iter().try_for_each(|thread| pin(thread, cpus))?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Pins {
    /// `workers: CPUs 1, 2; a: 3; b: 4 (...)`; of many guests the first and the last.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |cpus: &[usize]| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "workers: CPU {}", list(&self.workers))?;
        match &self.guests[..] {
            [first, .., last] if self.guests.len() > 4 => {
                write!(f, "; {} guests: CPU {} to {}", self.guests.len(), list(first), list(last))?;
            }
            guests => {
                for (number, cpus) in (b'a'..).zip(guests) {
                    write!(f, "; {}: CPU {}", char::from(number), list(cpus))?;
                }
            }
        }
        write!(f, " ({})", self.place)
    }
}

fn pin(thread: u32, cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    let pid = i32::try_from(thread)
        .ok()
        .filter(|thread| *thread > 0)
        .and_then(Pid::from_raw)
        .with_context(|| format!("{thread} is no thread"))?;
    sched_setaffinity(Some(pid), &set).with_context(|| format!("cannot keep thread {thread} on CPU {cpus:?}"))
}

/// The threads of a process.
fn tasks(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tasks: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    tasks.sort_unstable();
    tasks
}

fn workers_of(pid: u32) -> Vec<u32> {
    let is_worker = |task: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/task/{task}/comm")).unwrap_or_default();
        WORKERS.iter().any(|known| name.starts_with(known))
    };
    tasks(pid).into_iter().filter(is_worker).collect()
}

/// vCPUs' threads as QMP names them, in the order of the vCPUs.
fn threads_of(vcpus: &Value) -> Vec<u32> {
    let mut threads: Vec<(u64, u32)> = vcpus
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|vcpu| Some((vcpu["cpu-index"].as_u64()?, vcpu["thread-id"].as_u64()?.try_into().ok()?)))
        .collect();
    threads.sort_unstable();
    threads.into_iter().map(|(_, thread)| thread).collect()
}

/// All threads of a User Mode Linux, whose guest's programs run in processes of their own. New ones are where their
/// parent is.
fn family(pid: u32) -> Vec<u32> {
    let (mut all, mut at) = (tasks(pid), 0);
    while let Some(task) = all.get(at).copied().filter(|_| all.len() < MOST_PROCESSES) {
        let path = format!("/proc/{task}/task/{task}/children");
        let children = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::machine;

    fn of(nodes: usize, cores: usize, threads: usize) -> Topology {
        Topology::read_below(machine(nodes, cores, threads).path(), &|_| true)
    }

    fn like(guests: u32, cpus: u32, workers: Option<u32>) -> Factors {
        Factors { guests, cpus, workers, ..Factors::default() }
    }

    #[test]
    fn cores_of_one_node_come_first_and_siblings_stay_idle() {
        let topology = of(2, 8, 2);
        let pins = Pins::choose(&topology, &like(2, 1, None)).unwrap();
        assert_eq!((pins.workers.clone(), pins.guests.clone()), (vec![1, 2], vec![vec![3], vec![4]]));
        assert_eq!(pins.to_string(), "workers: CPU 1, 2; a: CPU 3; b: CPU 4 (one CPU of each core, node 0)");
        let four = Pins::choose(&topology, &like(1, 4, None)).unwrap();
        assert_eq!(four.guests, [[3, 4, 5, 6]]);
        let many = Pins::choose(&topology, &like(8, 1, None)).unwrap();
        assert!(many.place.contains("several nodes") && many.guests.len() == 8, "{many:?}");
        let more = Pins::choose(&topology, &like(16, 1, None)).unwrap();
        let workers = Pins::choose(&of(1, 8, 1), &like(2, 1, Some(4))).unwrap();
        assert_eq!((workers.workers, workers.guests), (vec![1, 2, 3, 4], vec![vec![5], vec![6]]));
        assert!(more.place.contains("share cores") && more.to_string().contains("16 guests"), "{more}");
    }

    #[test]
    fn no_cpu_is_given_twice_and_the_first_core_is_left_alone() {
        for (cores, guests, vcpus) in [(4, 2, 1), (8, 2, 2), (34, 32, 1), (6, 1, 4)] {
            let pins = Pins::choose(&of(1, cores, 1), &like(guests, vcpus, None)).unwrap();
            let mut all: Vec<usize> = pins.guests.concat();
            assert_eq!(all.len(), (guests * vcpus) as usize);
            all.extend(&pins.workers);
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert!(all.len() == count && !all.contains(&0) && !pins.workers.is_empty(), "{pins:?}");
        }
    }

    #[test]
    fn too_few_cpus_pin_nothing_and_say_how_many_are_needed() {
        let why = Pins::choose(&of(1, 2, 1), &like(2, 1, None)).unwrap_err();
        assert_eq!(why, "nothing: 2 vCPUs, a worker and the rest need 4 CPUs, there are 2");
        let why = Pins::choose(&of(1, 4, 1), &like(2, 1, Some(2))).unwrap_err();
        assert_eq!(why, "nothing: 2 vCPUs, 2 workers and the rest need 5 CPUs, there are 4");
    }

    #[test]
    fn a_thread_is_where_it_was_put() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mine = Topology::read().cores[0].cpus[0];
        for thread in family(child.id()) {
            pin(thread, &[mine]).unwrap();
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(status.contains(&format!("Cpus_allowed_list:\t{mine}\n")), "{status}");
        assert!(pin(u32::MAX, &[0]).is_err());
    }

    #[test]
    fn vcpus_come_in_their_order() {
        let said = serde_json::json!([
            { "cpu-index": 1, "thread-id": 12 }, { "cpu-index": 0, "thread-id": 11 }, { "cpu-index": 2 }
        ]);
        assert_eq!(threads_of(&said), [11, 12]);
    }
}
