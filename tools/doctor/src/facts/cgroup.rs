//! The control group of this program: the CPU time that it may use, and how often it had to wait.

use serde::{Deserialize, Serialize};

use super::files;

/// Groups above one another that are examined.
const DEPTH: usize = 16;

/// A group's quota of CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    pub group: String,
    /// CPUs, as a part of one or more of them.
    pub cpus: f64,
}

/// The least quota of the groups that this program is in.
pub fn quota() -> Option<Quota> {
    let quotas = groups().into_iter().filter_map(|path| {
        let cpus = parse(&files::line(format!("{path}/cpu.max"))?)?;
        Some(Quota { group: path, cpus })
    });
    quotas.min_by(|one, other| one.cpus.total_cmp(&other.cpus))
}

/// "QUOTA PERIOD", in microseconds; no number is no quota.
fn parse(line: &str) -> Option<f64> {
    let (quota, period) = line.split_once(' ')?;
    let cpus = quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?;
    cpus.is_finite().then_some(cpus)
}

/// The paths of the groups of this program (version 2), the innermost first.
fn groups() -> Vec<String> {
    let text = files::text("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let root = roots.iter().find(|path| std::path::Path::new(path).join("cgroup.procs").exists());
    let Some(root) = root else { return Vec::new() };
    let above = std::path::Path::new(own.trim_start_matches('/')).ancestors();
    above
        .take(DEPTH)
        .map(|path| format!("{root}/{}", path.display()).trim_end_matches('/').to_owned())
        .collect()
}

/// What counts up while this program has to wait: for CPU time of its quota, for memory.
pub fn counters() -> impl Iterator<Item = (String, u64)> {
    let throttled =
        groups().into_iter().map(|path| sum(&files::text(format!("{path}/cpu.stat")), "throttled_usec"));
    let high = groups().into_iter().map(|path| sum(&files::text(format!("{path}/memory.events")), "high"));
    let all = [("Cgroup.ThrottledUsec", throttled.max()), ("Cgroup.MemoryHigh", high.max())];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
}

/// The number behind `name` at the beginning of a line.
fn sum(text: &Option<String>, name: &str) -> u64 {
    let lines = text.iter().flat_map(|text| text.lines());
    lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok()).sum()
}

/// Microseconds in which some task had to wait for memory (/proc/pressure).
pub fn memory_pressure(text: &str) -> Option<u64> {
    text.lines().find(|line| line.starts_with("some "))?.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_and_pressure_are_read() {
        assert_eq!((parse("10000 100000"), parse("max 100000"), parse("")), (Some(0.1), None, None));
        let text = Some("usage_usec 5\nthrottled_usec 77\nnr_throttled 3\n".to_owned());
        assert_eq!((sum(&text, "throttled_usec"), sum(&text, "nr")), (77, 0));
        assert_eq!(
            memory_pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=42\nfull total=1\n"),
            Some(42)
        );
    }
}
