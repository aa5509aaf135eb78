//! Quotas of CPU time (cpu.max of control groups, version 2) of this program, or of a VMM's threads.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::facts::files;

/// Where version 2 of control groups is mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// Threads of a process that are examined.
pub const MOST_THREADS: usize = 1024;

/// A quota, and how often it stopped the group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// The group's path below /sys/fs/cgroup.
    pub group: String,
    /// How many CPUs' time it may use.
    pub cpus: f64,
    /// Periods in which it ran, and those in which its time was used up.
    pub periods: u64,
    pub throttled: u64,
    /// Microseconds for which it was stopped.
    pub throttled_us: u64,
    /// Periods while it was watched.
    pub lately_periods: u64,
    pub lately_throttled: u64,
}

impl Quota {
    /// Of the periods while it was watched, which part was cut short.
    pub fn lately(&self) -> f64 {
        self.lately_throttled as f64 / self.lately_periods.max(1) as f64
    }
}

/// Those of this program.
pub fn own() -> Vec<Quota> {
    of_groups(Path::new(ROOT), &files::text("/proc/self/cgroup").into_iter().collect::<Vec<_>>())
}

/// Those of a process's threads: libvirt gives each virtual CPU a group of its own.
pub fn of_process(pid: u32) -> Vec<Quota> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(MOST_THREADS);
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("cgroup")).ok());
    of_groups(Path::new(ROOT), &texts.collect::<Vec<_>>())
}

/// With what was counted since `before`.
pub fn since(before: &[Quota], mut now: Vec<Quota>) -> Vec<Quota> {
    for quota in &mut now {
        if let Some(before) = before.iter().find(|before| before.group == quota.group) {
            quota.lately_periods = quota.periods.saturating_sub(before.periods);
            quota.lately_throttled = quota.throttled.saturating_sub(before.throttled);
        }
    }
    now
}

/// `texts`: what /proc/PID/task/TID/cgroup contains. A group is under the quotas of all above it.
fn of_groups(root: &Path, texts: &[String]) -> Vec<Quota> {
    let paths = texts.iter().filter_map(|text| text.lines().find_map(|line| line.strip_prefix("0::/")));
    // Where groups are those of another namespace, their paths lead out of the root.
    let paths = paths.filter(|path| !path.split('/').any(|part| part == ".."));
    let groups: BTreeSet<&Path> = paths.flat_map(|path| Path::new(path).ancestors()).collect();
    groups.into_iter().filter_map(|group| quota(root, group)).collect()
}

fn quota(root: &Path, group: &Path) -> Option<Quota> {
    let limit = files::line(root.join(group).join("cpu.max"))?;
    let (time, period) = limit.split_once(' ')?;
    // "max" is no number.
    let (time, period): (f64, f64) = (time.parse().ok()?, period.parse().ok()?);
    let counts = fs::read_to_string(root.join(group).join("cpu.stat")).ok()?;
    let count = |name: &str| {
        let value = counts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    Some(Quota {
        group: group.to_string_lossy().into_owned(),
        cpus: time / period.max(1.0),
        periods: count("nr_periods"),
        throttled: count("nr_throttled"),
        throttled_us: count("throttled_usec"),
        ..Quota::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_thread_is_under_the_quotas_of_all_groups_above_it() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, max: &str, throttled: u64| {
            testing::write(root.path(), &format!("{path}/cpu.max"), max);
            let stat = format!("usage_usec 5\nnr_periods 100\nnr_throttled {throttled}\nthrottled_usec 9\n");
            testing::write(root.path(), &format!("{path}/cpu.stat"), &stat);
        };
        group("machine.slice", "max 100000\n", 0);
        group("machine.slice/qemu-1.scope", "150000 100000\n", 30);
        group("machine.slice/qemu-1.scope/libvirt/vcpu0", "50000 100000\n", 7);
        group("other.slice", "1000 100000\n", 99);
        let texts = ["qemu-1.scope/libvirt/vcpu0", "qemu-1.scope/libvirt/emulator", "../../other.slice"]
            .map(|path| format!("1:name=systemd:/x\n0::/machine.slice/{path}\n"));
        let found = of_groups(root.path(), &texts);
        let seen: Vec<_> =
            found.iter().map(|quota| (quota.group.as_str(), quota.cpus, quota.throttled)).collect();
        assert_eq!(
            seen,
            [("machine.slice/qemu-1.scope", 1.5, 30), ("machine.slice/qemu-1.scope/libvirt/vcpu0", 0.5, 7)]
        );
        group("machine.slice/qemu-1.scope", "150000 100000\n", 55);
        let watched = since(&found, of_groups(root.path(), &texts));
        assert_eq!((watched[0].lately_throttled, watched[1].lately_throttled), (25, 0));
        assert!(of_groups(root.path(), &["0::/none\n".to_owned()]).is_empty());
    }
}
