//! Which CPUs the workers run on.

use std::fmt;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs, as the kernel writes lists of them: `2-5,8`. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// Why a text is no list of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no list of CPUs; write numbers and ranges from 0 to {}, for example \"2-5,8\"", CpuSet::MAX_CPU - 1)]
pub struct BadList;

impl FromStr for CpuList {
    type Err = BadList;

    fn from_str(text: &str) -> Result<CpuList, BadList> {
        let number = |text: &str| {
            let number: usize = text.trim().parse().map_err(|_| BadList)?;
            if number < CpuSet::MAX_CPU { Ok(number) } else { Err(BadList) }
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(BadList);
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.chunk_by(|a, b| a + 1 == *b).map(|range| match range {
            [first, .., last] => format!("{first}-{last}"),
            one => one.iter().map(usize::to_string).collect(),
        });
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

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
        if let Some(&missing) = list.0.iter().find(|&&cpu| !before.is_set(cpu)) {
            let allowed = CpuList((0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)).collect());
            return Err(PlaceError::Missing { wanted: list.clone(), missing, allowed });
        }
        let mut set = CpuSet::new();
        list.0.iter().for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set).map_err(failed)?;
        Ok(Placed(Some(before)))
    }
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
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, written) in [("3", "3"), ("2-5,8", "2-5,8"), (" 1, 0 ,2-2", "0-2"), ("4,4-6,9", "4-6,9")] {
            assert_eq!(text.parse::<CpuList>().map(|list| list.to_string()), Ok(written.into()), "{text}");
        }
        for wrong in ["", "a", "5-2", "1-", "-1", "1,,2", "99999", "1-99999"] {
            assert_eq!(wrong.parse::<CpuList>(), Err(BadList), "{wrong}");
        }
    }

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
