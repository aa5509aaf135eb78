//! What a machine is that measures for others to read, and what stands in the way of figures to quote.
//!
//! Nothing here names the machine, its users or its network: the description travels.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::host;
use crate::topology::Topology;

/// A machine at rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub cpu_model: String,
    pub microcode: String,
    pub sockets: usize,
    pub nodes: usize,
    pub cores: usize,
    pub cpus: usize,
    pub kernel: String,
    /// The distribution, as it calls itself.
    pub system: String,
    pub memory_bytes: u64,
    pub memory_available_bytes: u64,
    pub scaling_driver: String,
    pub governor: String,
    /// Whether clocks may rise above the nominal one; none where the kernel does not say.
    pub turbo: Option<bool>,
    pub smt: Option<bool>,
    /// When the kernel gives huge pages: always, madvise, never.
    pub huge_pages: String,
    /// Whether the kernel merges equal pages of VMs.
    pub merges_pages: bool,
    pub moves_pages_between_nodes: bool,
    /// It is a VM itself.
    pub is_virtual: bool,
    /// `/dev/kvm` can be opened.
    pub kvm: bool,
    pub root: bool,
    /// CPUs that other programs used, and that a hypervisor took away, while nothing was measured.
    pub busy: f64,
    pub steal: f64,
    pub other_vms: usize,
}

/// Something that makes figures worse, or other than they would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub name: String,
    /// Figures should not be quoted from such a machine.
    pub serious: bool,
    pub seen: String,
    pub remedy: String,
}

/// A machine beside the results that were measured on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described {
    pub machine: Machine,
    pub findings: Vec<Finding>,
}

impl Described {
    /// The file of a directory of results.
    const FILE: &'static str = "machine.json";

    /// Keeps it in `dir`, which is there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, dir: &Path) -> Result<()> {
        let path = dir.join(Self::FILE);
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// What is kept in `dir`; none where nothing is.
    ///
    /// # Errors
    /// The file is no such description.
    pub fn of(dir: &Path) -> Result<Option<Described>> {
        let path = dir.join(Self::FILE);
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).with_context(|| path.display().to_string())
    }
}

/// Processes that are VMs, by the beginnings of their names (which end at 15 characters).
const VMMS: [&str; 9] = [
    "qemu-",
    "kvm",
    "cloud-hyperviso",
    "firecracker",
    "crosvm",
    "VBoxHeadless",
    "VirtualBoxVM",
    "vmware-vmx",
    "bhyve",
];
/// CPUs' worth of other programs that are borne.
const BUSY: f64 = 0.2;
/// A share of all CPUs.
const STEAL: f64 = 0.01;
/// Memory of the largest lab, 32 guests of 256 MiB with what their VMMs need.
const MEMORY: u64 = 12 << 30;

impl Machine {
    /// This machine, watched for so long.
    pub fn read(watch: Duration) -> Machine {
        let mut machine = Machine::read_below(Path::new("/"), &Topology::read());
        machine.kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        machine.root = rustix::process::geteuid().is_root();
        (machine.busy, machine.steal) = host::watch(watch);
        machine
    }

    /// What the files below `root` tell.
    pub fn read_below(root: &Path, topology: &Topology) -> Machine {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let line = |path: &str| text(path).trim().to_owned();
        let flag = |path: &str| match line(path).as_str() {
            "0" => Some(false),
            "" => None,
            _ => Some(true),
        };
        let cpuinfo = text("proc/cpuinfo");
        let of_cpu = |key: &str| host::value_of(&cpuinfo, key).unwrap_or_default();
        let memory = |key: &str| {
            let value = host::value_of(&text("proc/meminfo"), key);
            value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        let cpu = "sys/devices/system/cpu";
        let boost = flag(&format!("{cpu}/intel_pstate/no_turbo")).map(|off| !off);
        let release = text("etc/os-release");
        let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let pages = line("sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = pages.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0.to_owned()));
        Machine {
            cpu_model: host::cpu_name(&cpuinfo).unwrap_or_default(),
            microcode: of_cpu("microcode"),
            sockets: topology.sockets(),
            nodes: topology.nodes(),
            cores: topology.cores.len(),
            cpus: topology.cpus(),
            kernel: line("proc/sys/kernel/osrelease"),
            system: system.unwrap_or_default().trim_matches('"').to_owned(),
            memory_bytes: memory("MemTotal"),
            memory_available_bytes: memory("MemAvailable"),
            scaling_driver: line(&format!("{cpu}/cpu0/cpufreq/scaling_driver")),
            governor: governors(root).join(", "),
            turbo: boost.or_else(|| flag(&format!("{cpu}/cpufreq/boost"))),
            smt: flag(&format!("{cpu}/smt/active")),
            huge_pages: chosen.unwrap_or_default(),
            merges_pages: line("sys/kernel/mm/ksm/run") == "1",
            moves_pages_between_nodes: flag("proc/sys/kernel/numa_balancing") == Some(true),
            is_virtual: of_cpu("flags").split(' ').any(|flag| flag == "hypervisor"),
            other_vms: vms(root),
            ..Machine::default()
        }
    }

    /// What is wrong with it, the serious first.
    pub fn judge(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut find = |is: bool, serious: bool, name: &str, seen: String, remedy: &str| {
            if is {
                found.push(Finding { name: name.into(), serious, seen, remedy: remedy.into() });
            }
        };
        find(
            !self.kvm,
            true,
            "kvm",
            "/dev/kvm cannot be opened: guests would be emulated".into(),
            "load kvm_intel or kvm_amd, switch virtualization on in the firmware, or run as a user of the group kvm",
        );
        find(
            !self.root,
            true,
            "root",
            "not root: labs with uplinks cannot be made".into(),
            "run it with sudo, or leave those experiments out with --only",
        );
        find(
            self.is_virtual,
            true,
            "virtual",
            "this machine is a VM itself: its guests are nested".into(),
            "measure on a physical machine",
        );
        let saves = !self.governor.is_empty() && self.governor != "performance";
        find(
            saves,
            true,
            "governor",
            format!("the governor of cpufreq is {}", self.governor),
            "cpupower frequency-set -g performance",
        );
        let steal = self.steal > STEAL * self.cpus as f64;
        find(
            steal,
            true,
            "steal",
            format!("a hypervisor took {:.2} CPUs away", self.steal),
            "measure where no other VM shares the processors",
        );
        find(
            self.busy > BUSY,
            true,
            "load",
            format!("other programs used {:.2} CPUs", self.busy),
            "end them; `top` shows which they are",
        );
        find(
            self.other_vms > 0,
            true,
            "vms",
            format!("{} other VMs are running", self.other_vms),
            "shut them down while this measures",
        );
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        find(
            self.memory_available_bytes < MEMORY,
            true,
            "memory",
            format!("{:.1} GiB of memory are free", gib(self.memory_available_bytes)),
            "free 12 GiB, or leave the plans with 32 VMs out with --only",
        );
        find(
            self.smt == Some(true),
            false,
            "smt",
            format!("cores serve two threads ({} cores, {} CPUs)", self.cores, self.cpus),
            "none needed: one CPU of each core is used where cores are enough; nosmt on the kernel's command line is surer",
        );
        find(
            self.turbo == Some(true),
            false,
            "turbo",
            "clocks may rise with the temperature's leave".into(),
            "for steadier figures, not higher ones: echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo, or echo 0 > \
             /sys/devices/system/cpu/cpufreq/boost",
        );
        find(
            self.huge_pages == "never",
            false,
            "huge pages",
            "transparent huge pages are off: guests' memory is in pages of 4 KiB".into(),
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
        find(
            self.merges_pages,
            false,
            "ksm",
            "the kernel merges equal pages of VMs (KSM)".into(),
            "echo 0 > /sys/kernel/mm/ksm/run",
        );
        find(
            self.moves_pages_between_nodes && self.nodes > 1,
            false,
            "numa",
            "the kernel moves pages between nodes while VMs run".into(),
            "sysctl kernel.numa_balancing=0",
        );
        found.sort_by_key(|finding| !finding.serious);
        found
    }

    /// What others should call it: processor, cores, memory.
    pub fn name(&self) -> String {
        let sockets = if self.sockets > 1 { format!("{} x ", self.sockets) } else { String::new() };
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        format!("{sockets}{}, {} cores, {gib:.0} GiB", self.cpu_model, self.cores)
    }
}

/// The governors of all CPUs, each once.
fn governors(root: &Path) -> Vec<String> {
    let dir = std::fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join("cpufreq/scaling_governor")).ok()?;
        Some(text.trim().to_owned())
    };
    let mut all: Vec<String> = dir.filter_map(of).collect();
    all.sort();
    all.dedup();
    all
}

/// VMs that are running.
fn vms(root: &Path) -> usize {
    let dir = std::fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let is_vm = |entry: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        // Threads of the kernel that serve VMs are called kvm-... and have no program.
        let has_program = entry.path().join("exe").symlink_metadata().is_ok()
            && std::fs::read(entry.path().join("cmdline")).is_ok_and(|words| !words.is_empty());
        has_program && VMMS.iter().any(|known| name.starts_with(known))
    };
    dir.filter(is_vm).count()
}

#[cfg(test)]
mod tests;
