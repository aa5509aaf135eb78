//! `times.json`: how long each phase and each job took, from which the next run takes its order.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// Seconds by name.
pub type Seconds = BTreeMap<String, f64>;

/// The times of a run, or of several: a job that did not run keeps what it took last.
#[derive(Debug, Default, PartialEq)]
pub struct Times {
    pub phases: Seconds,
    pub jobs: Seconds,
}

impl Times {
    /// Nothing where there is no such file, or none that can be read: then the order is another one.
    pub fn read(directory: &Path) -> Times {
        let text = fs::read_to_string(directory.join("times.json")).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let seconds = |key: &str| -> Seconds {
            let entries = value[key].as_object().into_iter().flatten();
            entries.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
        };
        Times { phases: seconds("phases"), jobs: seconds("jobs") }
    }

    pub fn write(&self, directory: &Path) -> std::io::Result<()> {
        let text = json!({ "version": 1, "phases": self.phases, "jobs": self.jobs });
        fs::write(directory.join("times.json"), format!("{text:#}\n"))
    }

    /// The longest first. One that is new may be long: it is in front, and before others if it has more
    /// tests.
    pub fn rank(&self, job: &str, tests: usize) -> impl Ord + use<> {
        let known = self.jobs.get(job).map(|seconds| (seconds * 1000.0) as u64);
        std::cmp::Reverse((known.is_none(), known.unwrap_or(tests as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_and_long_jobs_are_first() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Times::read(directory.path()), Times::default());
        let mut times = Times::default();
        times.phases.insert("build".into(), 60.5);
        times.jobs.extend([("short".to_owned(), 1.0), ("long".to_owned(), 2.5)]);
        times.write(directory.path()).unwrap();
        let times = Times::read(directory.path());
        assert_eq!(times.phases["build"], 60.5);
        let mut jobs = [("short", 3), ("new", 1), ("long", 2), ("other new", 5)];
        jobs.sort_by_key(|(job, tests)| times.rank(job, *tests));
        assert_eq!(jobs.map(|(job, _)| job), ["other new", "new", "long", "short"]);
    }
}
