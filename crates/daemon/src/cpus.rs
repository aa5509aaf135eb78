//! Which CPUs the workers run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use vmlane_config::CpuList;

/// Why workers cannot run where they are to.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The process may not use one of the CPUs.
    #[error(
        "daemon: cpus = \"{wanted}\": CPU {missing} is not among those that this daemon may use ({allowed})"
    )]
    Missing {
        /// As configured.
        wanted: CpuList,
        /// The first that it may not use.
        missing: usize,
        /// Those that it may use.
        allowed: CpuList,
    },
    /// The kernel's word.
    #[error("daemon: cpus = \"{0}\": {1}")]
    Kernel(CpuList, std::io::Error),
}

/// Threads that are started while this lives run on some CPUs only, and the calling thread too.
pub struct Placed(Option<CpuSet>);

impl Placed {
    /// None: where the calling thread may run.
    pub fn on(cpus: Option<&CpuList>) -> Result<Placed, PlaceError> {
        let Some(list) = cpus else { return Ok(Placed(None)) };
        let failed = |error: rustix::io::Errno| PlaceError::Kernel(list.clone(), error.into());
        let before = sched_getaffinity(None).map_err(failed)?;
        if let Some(missing) = list.iter().find(|&cpu| !before.is_set(cpu)) {
            let allowed = CpuList::of((0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)));
            return Err(PlaceError::Missing { wanted: list.clone(), missing, allowed });
        }
        sched_setaffinity(None, &set_of(list)).map_err(failed)?;
        Ok(Placed(Some(before)))
    }
}

/// The same CPUs as the kernel takes them.
pub fn set_of(list: &CpuList) -> CpuSet {
    let mut set = CpuSet::new();
    list.iter().for_each(|cpu| set.set(cpu));
    set
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // It was in force before.
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_started_meanwhile_run_there_and_later_ones_do_not() {
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu)).unwrap();
        let list: CpuList = first.to_string().parse().unwrap();
        let placed = Placed::on(Some(&list)).unwrap();
        let there = std::thread::spawn(|| sched_getaffinity(None).unwrap()).join().unwrap();
        assert_eq!((there.count(), there.is_set(first)), (1, true));
        drop(placed);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let gone = (0..CpuSet::MAX_CPU).rev().find(|&cpu| !before.is_set(cpu)).unwrap();
        let list: CpuList = gone.to_string().parse().unwrap();
        let error = Placed::on(Some(&list)).err().unwrap().to_string();
        assert!(error.contains(&format!("CPU {gone} is not among")), "{error}");
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
