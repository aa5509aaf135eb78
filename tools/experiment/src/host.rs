//! What the host is, and what its processes use.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vmlane_bench::cpu;

/// CPU seconds of the processes that serve the guests, and of the whole machine, at one moment.
#[derive(Clone, Debug)]
pub struct Cpu {
    served: Vec<(String, f64)>,
    machine: f64,
}

/// CPU seconds between two moments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Used {
    /// By name: `daemon`, and the guests' QEMUs.
    pub served: BTreeMap<String, f64>,
    pub other: f64,
}

impl Used {
    pub fn total(&self) -> f64 {
        round(self.served.values().sum())
    }
}

impl Cpu {
    /// Their children count as they do: a guest's programs are processes of their own under User Mode Linux.
    /// None when one of them is gone, or /proc does not show it.
    pub fn sample(processes: &[(String, u32)]) -> Option<Cpu> {
        let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let all = Processes::read()?;
        let mut served = Vec::new();
        for (name, pid) in processes {
            served.push((name.clone(), seconds(all.ticks(*pid)?)));
        }
        let machine = cpu::ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
        Some(Cpu { served, machine: seconds(machine.user + machine.system) })
    }

    /// CPU seconds since `before`: of each process, and of everything else.
    pub fn since(&self, before: &Cpu) -> Used {
        let earlier = |name: &str| before.served.iter().find(|(n, _)| n == name).map_or(0.0, |(_, s)| *s);
        let served: BTreeMap<String, f64> = self
            .served
            .iter()
            .map(|(name, seconds)| (name.clone(), round((seconds - earlier(name)).max(0.0))))
            .collect();
        let all: f64 = served.values().sum();
        Used { served, other: round((self.machine - before.machine - all).max(0.0)) }
    }
}

/// Ticks are hundredths; what is beyond them is noise of the arithmetic.
fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// The fields of a `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    /// Its own, and those of children that have ended.
    ticks: u64,
}

impl Process {
    /// The name in front of the numbers may have spaces and brackets.
    fn parse(stat: &str) -> Option<Process> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let ticks = (11..15).map(field).sum::<Option<u64>>()?;
        Some(Process { parent: field(1)?.try_into().ok()?, ticks })
    }
}

/// All processes of the machine, by id.
struct Processes(BTreeMap<u32, Process>);

impl Processes {
    fn read() -> Option<Processes> {
        let entries = std::fs::read_dir("/proc").ok()?.flatten();
        let process = |entry: std::fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // One that ends meanwhile is left out.
            Some((pid, Process::parse(&std::fs::read_to_string(entry.path().join("stat")).ok()?)?))
        };
        Some(Processes(entries.filter_map(process).collect()))
    }

    /// Those of a process and of all below it.
    fn ticks(&self, pid: u32) -> Option<u64> {
        let mut ticks = self.0.get(&pid)?.ticks;
        let mut below = vec![pid];
        while let Some(parent) = below.pop() {
            for (child, process) in self.0.iter().filter(|(_, process)| process.parent == parent) {
                ticks += process.ticks;
                below.push(*child);
            }
        }
        Some(ticks)
    }
}

/// The processor's name; with family and model where it has no number.
pub fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpu_name(&text).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The processor's name of a `/proc/cpuinfo`. Hypervisors give names that are those of all of a maker's
/// processors ("AMD EPYC"): one without a number gets family and model, by which results of two machines can
/// be distinguished.
fn cpu_name(cpuinfo: &str) -> Option<String> {
    let name = value_of(cpuinfo, "model name")?;
    let numbers = value_of(cpuinfo, "cpu family").zip(value_of(cpuinfo, "model"));
    let is_vague = !name.bytes().any(|byte| byte.is_ascii_digit());
    Some(match numbers.filter(|_| is_vague) {
        Some((family, model)) => format!("{name}, family {family} model {model}"),
        None => name,
    })
}

/// CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = value_of(&text, "MemTotal").and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

pub fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The value of `KEY: VALUE`.
fn value_of(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The commit of the source tree that `program` lies in, with `-dirty` when files differ from it; of a
/// program that was installed elsewhere, the one that `make package` made it of.
pub fn commit(program: &Path) -> Option<String> {
    let packaged = || option_env!("VMLANE_COMMIT").filter(|commit| !commit.is_empty());
    commit_of_tree(program).or_else(|| packaged().map(str::to_owned))
}

fn commit_of_tree(program: &Path) -> Option<String> {
    let tree = program.ancestors().find(|dir| dir.join("tools/lab").is_dir())?;
    let git = Command::new("git")
        .arg("-C")
        .arg(tree)
        .args(["describe", "--always", "--dirty", "--exclude=*", "--abbrev=10"])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&git.stdout).trim().to_owned();
    (git.status.success() && !text.is_empty()).then_some(text)
}

/// The time now, as `2025-01-31 17:05 UTC`.
pub fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of(seconds)
}

fn date_of(seconds: u64) -> String {
    let at = time::OffsetDateTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let (year, month, day) = at.to_calendar_date();
    format!("{year}-{:02}-{day:02} {:02}:{:02} UTC", u8::from(month), at.hour(), at.minute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let stat = "7 (a) b)) S 1 2 3 4 5 6 7 8 9 10 30 12 5 3 20 0";
        assert_eq!(Process::parse(stat), Some(Process { parent: 1, ticks: 50 }));
        assert_eq!(Process::parse("7 (x) S 1"), None);
    }

    #[test]
    fn what_a_process_has_started_counts_with_it() {
        let process = |parent, ticks| Process { parent, ticks };
        let all = [
            (1, process(0, 500)),
            (7, process(1, 10)),
            (8, process(7, 2)),
            (9, process(8, 30)),
            (10, process(1, 4)),
        ];
        let all = Processes(BTreeMap::from(all));
        assert_eq!([7, 8, 10, 11].map(|pid| all.ticks(pid)), [Some(42), Some(32), Some(4), None]);
    }

    #[test]
    fn the_rest_is_what_the_served_did_not_use() {
        let at =
            |daemon, a, machine| Cpu { served: vec![("daemon".into(), daemon), ("a".into(), a)], machine };
        let used = at(2.5, 1.0, 12.0).since(&at(1.0, 0.5, 9.5));
        assert_eq!((used.total(), used.other), (2.0, 0.5));
        assert_eq!((used.served["daemon"], used.served["a"]), (1.5, 0.5));
        assert!(Cpu::sample(&[("x".into(), std::process::id())]).is_some());
        assert!(Cpu::sample(&[("x".into(), u32::MAX)]).is_none());
    }

    #[test]
    fn processors_of_the_same_name_are_distinguished_by_their_numbers() {
        let of = |name| format!("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: {name}\n");
        assert_eq!(cpu_name(&of("AMD EPYC")).as_deref(), Some("AMD EPYC, family 25 model 17"));
        assert_eq!(cpu_name(&of("AMD EPYC 9B14")).as_deref(), Some("AMD EPYC 9B14"));
        assert_eq!(cpu_name("model name\t: x\n").as_deref(), Some("x"));
        assert_eq!(cpu_name("cpu family\t: 25\n"), None);
    }

    #[test]
    fn dates() {
        assert_eq!(date_of(0), "1970-01-01 00:00 UTC");
        assert_eq!(date_of(951_827_640), "2000-02-29 12:34 UTC");
        assert_eq!(date_of(1_735_689_599), "2024-12-31 23:59 UTC");
    }
}
