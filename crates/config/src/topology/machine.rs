//! The host as the kernel describes it: which CPUs are threads of one core, which cores share a last-level
//! cache, which are near the same memory. What cannot be read, or makes no sense, is not known; no error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::cpus::CpuList;

/// A core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// The first of its hardware threads that may be used.
    pub cpu: usize,
    /// Its NUMA node; its package where the kernel knows no nodes.
    pub node: usize,
    /// The first CPU of its last-level cache. None: that is its own, or not known.
    pub cache: Option<usize>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Machine {
    /// Those that may be used, in the order of their CPUs.
    pub cores: Vec<Core>,
    /// It is known which CPUs are threads of one core.
    pub knows_cores: bool,
    /// From each node to each other one; 10 is the distance within a node.
    distances: BTreeMap<(usize, usize), f64>,
    unknown: BTreeSet<&'static str>,
}

impl Machine {
    /// Reads the tree `sys`, as the kernel has it at `/sys`, as far as it describes the CPUs `allowed`.
    pub fn read(sys: &Path, allowed: &CpuList) -> Machine {
        let (cpus, nodes) = (sys.join("devices/system/cpu"), Nodes::read(&sys.join("devices/system/node")));
        // Without that file: the kernel lets nobody use a CPU that is offline.
        let online = list(&cpus.join("online"));
        let usable = |cpu: usize| online.as_ref().is_none_or(|online| online.has(cpu)) && allowed.has(cpu);
        let (mut cores, mut unknown) = (Vec::new(), BTreeSet::new());
        for cpu in allowed.iter().filter(|&cpu| usable(cpu)) {
            let of = cpus.join(format!("cpu{cpu}"));
            let mut known = |found: Option<_>, what| {
                if found.is_none() {
                    unknown.insert(what);
                }
                found
            };
            let threads = known(threads(&of, cpu), CORES).unwrap_or_else(|| CpuList::of([cpu].into_iter()));
            if threads.iter().find(|&cpu| usable(cpu)) != Some(cpu) {
                continue;
            }
            let cache = known(last_cache(&of, cpu), "caches");
            let cache = cache.filter(|cache| cache.iter().any(|cpu| !threads.has(cpu)));
            let node =
                nodes.of.get(&cpu).copied().or_else(|| number(&of.join("topology/physical_package_id")));
            if node.is_none() {
                unknown.insert("nodes");
            }
            let cache = cache.and_then(|cache| cache.iter().next());
            cores.push(Core { cpu, node: node.unwrap_or(0), cache });
        }
        let knows_cores = !unknown.contains(CORES);
        Machine { cores, knows_cores, distances: nodes.distances, unknown }
    }

    /// The distance between two nodes, compared with that within a node; not below that.
    pub fn distance(&self, from: usize, to: usize) -> f64 {
        let unknown = if from == to { WITHIN_NODE } else { 2.0 * WITHIN_NODE };
        (self.distances.get(&(from, to)).unwrap_or(&unknown) / WITHIN_NODE).max(1.0)
    }

    /// `, caches not known`, or nothing.
    pub fn shown_unknown(&self) -> String {
        let unknown: Vec<_> = self.unknown.iter().copied().collect();
        if unknown.is_empty() { String::new() } else { format!(", {} not known", unknown.join(" and ")) }
    }
}

const CORES: &str = "hardware threads";
/// As the kernel writes the distance of a node from itself.
const WITHIN_NODE: f64 = 10.0;

/// NUMA nodes.
#[derive(Default)]
struct Nodes {
    /// By CPU.
    of: BTreeMap<usize, usize>,
    distances: BTreeMap<(usize, usize), f64>,
}

impl Nodes {
    fn read(path: &Path) -> Nodes {
        let numbers: BTreeSet<usize> = entries(path, "node").filter_map(|name| name.parse().ok()).collect();
        let mut nodes = Nodes::default();
        for &node in &numbers {
            let of = path.join(format!("node{node}"));
            nodes.of.extend(list(&of.join("cpulist")).iter().flat_map(CpuList::iter).map(|cpu| (cpu, node)));
            // One for each node that is online, in the order of their numbers.
            let distances = text(&of.join("distance")).unwrap_or_default();
            let distances = distances.split_ascii_whitespace().map_while(|word| word.parse::<u8>().ok());
            let distances = distances.map(f64::from).zip(&numbers);
            nodes.distances.extend(distances.map(|(distance, &to)| ((node, to), distance)));
        }
        nodes
    }
}

/// The threads of a CPU's core.
fn threads(of: &Path, cpu: usize) -> Option<CpuList> {
    // The second is how kernels before 5.4 call it.
    let names = ["topology/core_cpus_list", "topology/thread_siblings_list"];
    names.iter().find_map(|name| list(&of.join(name))).filter(|threads| threads.has(cpu))
}

/// The CPUs that share a CPU's last-level cache. None if that is not known of one of its caches.
fn last_cache(of: &Path, cpu: usize) -> Option<CpuList> {
    let path = of.join("cache");
    let mut last = None;
    for index in entries(&path, "index") {
        let of = path.join(format!("index{index}"));
        let level: usize = number(&of.join("level"))?;
        if text(&of.join("type"))?.trim() != "Instruction"
            && last.as_ref().is_none_or(|(most, _)| level > *most)
        {
            last = Some((level, of));
        }
    }
    list(&last?.1.join("shared_cpu_list")).filter(|cpus| cpus.has(cpu))
}

/// The names of a directory's entries that begin with `prefix`, without that.
fn entries(path: &Path, prefix: &'static str) -> impl Iterator<Item = String> {
    let names = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(move |name| Some(name.to_str()?.strip_prefix(prefix)?.to_owned()))
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn list(path: &Path) -> Option<CpuList> {
    text(path)?.trim().parse().ok()
}

fn number(path: &Path) -> Option<usize> {
    text(path)?.trim().parse().ok()
}
