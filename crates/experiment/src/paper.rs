//! The whole set of experiments as the papers ran them, for a host with KVM: three runs of a minute, two minutes where
//! several sessions or VMs send at once, so that the skew of their starts does not count.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::pins::Pins;
use crate::plan::Plan;
use crate::topology::Topology;

/// The plans of `experiments/`, in the order in which they are run: the shortest first.
pub const PLANS: [(&str, &str); 12] = [
    ("vsock-siblings", include_str!("../../../experiments/vsock-siblings/plan.toml")),
    ("vmxnet3-moderation", include_str!("../../../experiments/vmxnet3-moderation/plan.toml")),
    ("esxi-throughput-2013", include_str!("../../../experiments/esxi-throughput-2013/plan.toml")),
    ("boots", include_str!("../../../experiments/boots/plan.toml")),
    ("devices", include_str!("../../../experiments/devices/plan.toml")),
    ("small-rings", include_str!("../../../experiments/small-rings/plan.toml")),
    ("workers", include_str!("../../../experiments/workers/plan.toml")),
    ("near-native", include_str!("../../../experiments/near-native/plan.toml")),
    ("vsphere-4.1-uplinks-2011", include_str!("../../../experiments/vsphere-4.1-uplinks-2011/plan.toml")),
    ("vmxnet3-2009", include_str!("../../../experiments/vmxnet3-2009/plan.toml")),
    ("vsphere-4.1-2011", include_str!("../../../experiments/vsphere-4.1-2011/plan.toml")),
    ("vmci-sockets-2009", include_str!("../../../experiments/vmci-sockets-2009/plan.toml")),
];

/// How a set is measured; kept beside its results, so that one set has one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub runs: u32,
    pub seconds: f64,
    pub several_seconds: f64,
    pub quick: bool,
}

/// Of `DIR/settings.json`.
const SETTINGS: &str = "settings.json";
/// What a lab takes to come and go beside its runs, and each of its guests.
const BOOT: f64 = 15.0;
const GUEST: f64 = 1.0;
/// What a run takes beyond its length.
const OVERHEAD: f64 = 1.5;

impl Default for Settings {
    /// As the papers did.
    fn default() -> Self {
        Settings { runs: 3, seconds: 60.0, several_seconds: 120.0, quick: false }
    }
}

impl Settings {
    /// The plans with these settings, those that `only` names, or all of them.
    ///
    /// # Errors
    /// No plan has such a name.
    pub fn plans(&self, only: &[String]) -> Result<Vec<Plan>> {
        if let Some(name) = only.iter().find(|name| !PLANS.iter().any(|(known, _)| known == name)) {
            let known = PLANS.map(|(name, _)| name).join(", ");
            bail!("--only {name}: no such experiment; there are {known}");
        }
        let chosen = PLANS.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|one| one == name));
        chosen
            .map(|(name, text)| {
                let mut plan = Plan::parse(text, self.quick).with_context(|| (*name).to_owned())?;
                self.set(&mut plan);
                Ok(plan)
            })
            .collect()
    }

    fn set(&self, plan: &mut Plan) {
        plan.set_runs(self.runs);
        plan.seconds = self.seconds;
        plan.several_seconds = Some(self.several_seconds);
    }

    /// Keeps the settings in `dir`, or makes sure that those kept there are the same.
    ///
    /// # Errors
    /// What is there was measured in another way.
    pub fn keep(&self, dir: &Path) -> Result<()> {
        let path = dir.join(SETTINGS);
        let Ok(text) = std::fs::read_to_string(&path) else {
            vmlane_lab::dirs::make(dir)?;
            let text = serde_json::to_string(self)? + "\n";
            return std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()));
        };
        let kept: Settings = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        ensure!(
            kept == *self,
            "{} was begun with {} runs of {} s and {} s{}: give the same, or another --out",
            dir.display(),
            kept.runs,
            kept.seconds,
            kept.several_seconds,
            if kept.quick { " and --quick" } else { "" }
        );
        Ok(())
    }
}

/// The directory of one plan's rows.
pub fn dir_of(dir: &Path, plan: &Plan) -> PathBuf {
    dir.join(&plan.name)
}

impl Plan {
    /// How long the runs that lack a row take, and how many they are.
    pub fn left(&self, is_made: &dyn Fn(&str, u32) -> bool) -> (usize, Duration) {
        let (mut runs, mut seconds) = (0, 0.0);
        for boot in self.boots() {
            let left = boot.steps.iter().filter(|step| !is_made(&step.factors.id(), step.run));
            let of_lab: Vec<f64> =
                left.map(|step| self.seconds_for(&step.factors) + self.warmup + OVERHEAD).collect();
            if !of_lab.is_empty() {
                seconds += BOOT + GUEST * f64::from(boot.like.guests) + of_lab.iter().sum::<f64>();
                runs += of_lab.len();
            }
        }
        (runs, Duration::from_secs_f64(seconds))
    }

    /// Where its labs' vCPUs and workers will run: a line for each kind of lab.
    pub fn pinned(&self, topology: &Topology) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for boot in self.boots() {
            let place = Pins::choose(topology, &boot.like).map_or_else(|why| why, |pins| pins.to_string());
            let line = format!("{} guests of {} vCPU: {place}", boot.like.guests, boot.like.cpus);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_that_can_be_run_is_in_the_set() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let entries = std::fs::read_dir(dir).unwrap().flatten();
        let mut there: Vec<String> = entries
            .filter(|entry| entry.path().join("plan.toml").is_file())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        let mut known: Vec<&str> = PLANS.map(|(name, _)| name).to_vec();
        there.sort();
        known.sort_unstable();
        assert_eq!(known, there);
        for plan in Settings::default().plans(&[]).unwrap() {
            assert!(known.contains(&plan.name.as_str()) && plan.needs.is_none(), "{}", plan.name);
        }
    }

    #[test]
    fn runs_are_as_long_as_the_papers() {
        let plans = Settings::default().plans(&["vmci-sockets-2009".into()]).unwrap();
        let [plan] = &plans[..] else { panic!("{plans:?}") };
        let seconds = |sessions| {
            let of = plan.combinations.iter().find(|factors| factors.sessions == sessions);
            plan.seconds_for(of.unwrap())
        };
        assert_eq!((plan.runs, seconds(1), seconds(5)), (3, 60.0, 120.0));
        let error = Settings::default().plans(&["vmci".into()]).unwrap_err().to_string();
        assert!(error.contains("--only vmci") && error.contains("vmci-sockets-2009"), "{error}");
    }

    #[test]
    fn the_time_that_is_left_falls_with_every_row() {
        let settings = Settings { quick: true, ..Settings::default() };
        let plan = &settings.plans(&["vsock-siblings".into()]).unwrap()[0];
        let (runs, all) = plan.left(&|_, _| false);
        assert_eq!(runs, plan.combinations.len() * 3);
        assert!(all > Duration::from_secs(60 * runs as u64), "{all:?}");
        let first = plan.combinations[0].id();
        let (fewer, less) = plan.left(&|id, run| id == first && run == 1);
        assert_eq!((fewer, (all - less).as_secs_f64().round()), (runs - 1, 62.0));
        assert_eq!(plan.left(&|_, _| true), (0, Duration::ZERO));
        assert_eq!(plan.pinned(&Topology::default()).len(), 1);
    }

    #[test]
    fn one_directory_has_one_way_of_measuring() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::default();
        settings.keep(dir.path()).unwrap();
        settings.keep(dir.path()).unwrap();
        let other = Settings { seconds: 1.0, ..settings };
        let error = other.keep(dir.path()).unwrap_err().to_string();
        assert!(error.contains("3 runs of 60 s and 120 s") && error.contains("--out"), "{error}");
    }
}
