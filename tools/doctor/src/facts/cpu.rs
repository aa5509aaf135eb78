//! Who uses the CPUs: the machine as a whole, and its busiest program.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vmlane_bench::cpu;

use super::{files, tcp};

/// Processes that are examined.
const MOST: usize = 16_384;

/// Ticks since the machine started, of all CPUs together.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuTime {
    pub busy: u64,
    pub steal: u64,
}

impl CpuTime {
    pub fn read() -> CpuTime {
        files::text("/proc/stat").map_or_else(CpuTime::default, |text| CpuTime::parse(&text))
    }

    fn parse(text: &str) -> CpuTime {
        let ticks = cpu::ticks(text).unwrap_or_default();
        CpuTime { busy: ticks.user + ticks.system, steal: ticks.steal }
    }
}

/// A program, and how much of one CPU it used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    /// 1.0 is one CPU.
    pub cpus: f64,
}

/// The machine at rest, before anything was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// CPUs that were busy, and that a hypervisor gave to others although this machine wanted them.
    pub busy: f64,
    pub steal: f64,
    /// The busiest programs, without this one.
    pub busiest: Vec<Process>,
    /// Pages of memory that all TCP connections have, which tcp_mem bounds.
    pub tcp_pages: Option<u64>,
}

impl Load {
    pub fn watch(period: Duration) -> Load {
        let mut load = Load::watch_all(period);
        load.busiest.truncate(3);
        load
    }

    fn watch_all(period: Duration) -> Load {
        let (before, snapshot) = (CpuTime::read(), Snapshot::take());
        std::thread::sleep(period);
        let seconds = snapshot.at.elapsed().as_secs_f64();
        let cpus = |ticks| cpus(ticks, seconds);
        let after = CpuTime::read();
        Load {
            busy: cpus(after.busy.saturating_sub(before.busy)),
            steal: cpus(after.steal.saturating_sub(before.steal)),
            busiest: snapshot.busiest_since(0.05),
            tcp_pages: files::text("/proc/net/sockstat").and_then(|text| tcp::pages(&text)),
        }
    }
}

fn cpus(ticks: u64, seconds: f64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64 / seconds
}

/// How much CPU time each program had used at a moment.
#[derive(Debug)]
pub struct Snapshot {
    at: Instant,
    processes: BTreeMap<u32, (String, u64)>,
}

impl Snapshot {
    pub fn take() -> Snapshot {
        Snapshot { at: Instant::now(), processes: processes() }
    }

    /// Programs that have used at least so many CPUs since then, the busiest first, without this one.
    pub fn busiest_since(&self, least: f64) -> Vec<Process> {
        let seconds = self.at.elapsed().as_secs_f64();
        let used = processes().into_iter().filter_map(|(pid, (name, ticks))| {
            let cpus = cpus(ticks.saturating_sub(self.processes.get(&pid)?.1), seconds);
            (cpus >= least && pid != std::process::id()).then_some(Process { pid, name, cpus })
        });
        let mut busiest: Vec<Process> = used.collect();
        busiest.sort_by(|one, other| other.cpus.total_cmp(&one.cpus));
        busiest
    }

    /// The same without the kernel's own threads, which have no command line, and other parts of vmlane.
    pub fn beside_us(&self) -> Vec<Process> {
        let mut all = self.busiest_since(0.1);
        all.retain(|process| {
            let line = files::text(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            !line.is_empty() && process.name != "vmlane"
        });
        all.truncate(3);
        all
    }
}

/// The name and the ticks of each process.
fn processes() -> BTreeMap<u32, (String, u64)> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten().take(MOST);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, ticks(&files::text(format!("/proc/{pid}/stat"))?)?))).collect()
}

/// proc_pid_stat(5): the name in parentheses may have any character in it; user and system time are fields 14
/// and 15.
fn ticks(stat: &str) -> Option<(String, u64)> {
    let (front, rest) = stat.rsplit_once(')')?;
    let (_, name) = front.split_once('(')?;
    let mut fields = rest.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    Some((name.to_owned(), fields.next()? + fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_whatever_a_program_is_called() {
        let stat = "12 (a) R 1 (x) S 1 12 12 0 -1 4194304 100 0 0 0 70 30 0 0 20 0 1 0 5 1 1";
        assert_eq!(ticks(stat), Some(("a) R 1 (x".to_owned(), 100)));
        assert_eq!(ticks("12 (a"), None);
        let time = CpuTime::parse("cpu  10 20 30 4000 500 1 2 77 10 0\ncpu0 1 1");
        assert_eq!((time.busy, time.steal), (63, 77));
    }

    #[test]
    fn a_program_that_spins_is_seen() {
        let mut spinner =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let seen = (0..50).any(|_| {
            // Tests that run beside this one may use more.
            Load::watch_all(Duration::from_millis(500))
                .busiest
                .iter()
                .any(|process| process.pid == spinner.id())
        });
        spinner.kill().unwrap();
        spinner.wait().unwrap();
        assert!(seen);
    }
}
