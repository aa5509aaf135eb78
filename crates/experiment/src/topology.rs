//! The processors of this machine: which CPUs share a core, and which memory is near to them.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// CPUs of one core, in order; the first is the one that is given work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    pub cpus: Vec<usize>,
    pub socket: u32,
    /// The NUMA node.
    pub node: u32,
}

/// The cores that this process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub cores: Vec<Core>,
}

impl Topology {
    /// Of this machine.
    pub fn read() -> Topology {
        let mine = sched_getaffinity(None).ok();
        let may = |cpu: usize| mine.as_ref().is_none_or(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu));
        Topology::read_below(Path::new("/"), &may)
    }

    /// From the files below `root`; CPUs that `may` refuses do not count, nor the slow cores of a processor that has
    /// two kinds.
    pub fn read_below(root: &Path, may: &dyn Fn(usize) -> bool) -> Topology {
        let line = |path: &str| {
            let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
            text.trim().to_owned()
        };
        let slow = cpu_list(&line("sys/devices/cpu_atom/cpus"));
        let nodes: Vec<(u32, Vec<usize>)> = (0..1024)
            .map(|node| (node, cpu_list(&line(&format!("sys/devices/system/node/node{node}/cpulist")))))
            .filter(|(_, cpus)| !cpus.is_empty())
            .collect();
        let mut cores: BTreeMap<(u32, u32, String), Core> = BTreeMap::new();
        for cpu in cpu_list(&line("sys/devices/system/cpu/online")) {
            if !may(cpu) || slow.contains(&cpu) {
                continue;
            }
            let about = |name: &str| line(&format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}"));
            let socket = about("physical_package_id").parse().unwrap_or(0);
            let node = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map_or(0, |(node, _)| *node);
            // Cores of different dies may have one number.
            let siblings = about("thread_siblings_list");
            let siblings = if siblings.is_empty() { cpu.to_string() } else { siblings };
            let core = Core { cpus: Vec::new(), socket, node };
            cores.entry((node, socket, siblings)).or_insert(core).cpus.push(cpu);
        }
        let mut cores: Vec<Core> = cores.into_values().collect();
        cores.sort_by_key(|core| core.cpus.first().copied());
        Topology { cores }
    }

    pub fn cpus(&self) -> usize {
        self.cores.iter().map(|core| core.cpus.len()).sum()
    }

    pub fn sockets(&self) -> usize {
        distinct(self.cores.iter().map(|core| core.socket))
    }

    pub fn nodes(&self) -> usize {
        distinct(self.cores.iter().map(|core| core.node))
    }

    /// The first CPUs of the cores of one node, the one that has most of them.
    pub fn largest_node(&self) -> (u32, Vec<usize>) {
        let mut nodes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for core in &self.cores {
            nodes.entry(core.node).or_default().extend(core.cpus.first());
        }
        // Of several alike the first.
        nodes.into_iter().rev().max_by_key(|(_, cpus)| cpus.len()).unwrap_or_default()
    }
}

fn distinct(values: impl Iterator<Item = u32>) -> usize {
    values.collect::<std::collections::BTreeSet<u32>>().len()
}

/// `0-3,8` of sysfs.
fn cpu_list(text: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend(first..=last.min(CpuSet::MAX_CPU));
        }
    }
    cpus
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Files like those of a machine: cores of each node, with so many CPUs each; siblings are numbered as Linux
    /// numbers them, all first ones before all second ones.
    pub fn machine(nodes: usize, cores: usize, threads: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let all = nodes * cores;
        let write = |path: String, text: String| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text + "\n").unwrap();
        };
        let cpu = "sys/devices/system/cpu";
        write(format!("{cpu}/online"), format!("0-{}", all * threads - 1));
        for node in 0..nodes {
            let of_node: Vec<String> = (0..threads)
                .map(|thread| {
                    format!("{}-{}", thread * all + node * cores, thread * all + (node + 1) * cores - 1)
                })
                .collect();
            write(format!("sys/devices/system/node/node{node}/cpulist"), of_node.join(","));
        }
        for number in 0..all * threads {
            let core = number % all;
            let siblings: Vec<String> =
                (0..threads).map(|thread| (core + thread * all).to_string()).collect();
            let topology = format!("{cpu}/cpu{number}/topology");
            write(format!("{topology}/physical_package_id"), (core / cores).to_string());
            write(format!("{topology}/thread_siblings_list"), siblings.join(","));
        }
        dir
    }

    #[test]
    fn siblings_are_one_core_and_nodes_are_told_apart() {
        let dir = machine(2, 4, 2);
        let topology = Topology::read_below(dir.path(), &|_| true);
        assert_eq!(
            (topology.cores.len(), topology.cpus(), topology.sockets(), topology.nodes()),
            (8, 16, 2, 2)
        );
        assert_eq!(topology.cores[5], Core { cpus: vec![5, 13], socket: 1, node: 1 });
        assert_eq!(topology.largest_node(), (0, vec![0, 1, 2, 3]));
        let some = Topology::read_below(dir.path(), &|cpu| cpu > 1);
        // Of cores 0 and 1 only the siblings are left.
        assert_eq!((some.cpus(), some.cores[2].cpus.clone()), (14, vec![4, 12]));
    }

    #[test]
    fn slow_cores_do_not_count() {
        let dir = machine(1, 4, 1);
        std::fs::create_dir_all(dir.path().join("sys/devices/cpu_atom")).unwrap();
        std::fs::write(dir.path().join("sys/devices/cpu_atom/cpus"), "2-3\n").unwrap();
        assert_eq!(Topology::read_below(dir.path(), &|_| true).largest_node(), (0, vec![0, 1]));
    }

    #[test]
    fn this_machine_has_a_core_and_lists_may_be_damaged() {
        assert!(Topology::read().cpus() > 0);
        assert_eq!(cpu_list("0-2,5,x,7-"), [0, 1, 2, 5]);
        assert!(cpu_list("0-99999999999").len() < 10_000);
    }
}
