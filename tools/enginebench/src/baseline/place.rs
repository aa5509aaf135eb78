//! Threads that spin belong on CPUs of their own: two of them on one CPU measure the scheduler.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use, looked up before a thread is pinned: threads that a pinned
/// one starts inherit its single CPU, and leave it with this.
#[derive(Clone, Copy)]
pub struct Cpus(Option<CpuSet>);

/// The threads of a process stay on one CPU until this is dropped.
pub struct PlacedProcess {
    before: Vec<(Pid, CpuSet)>,
}

/// The calling thread stays on one CPU until this is dropped.
pub struct Placed {
    before: Option<CpuSet>,
    /// Affinity belongs to a thread: a raw pointer's type keeps this from moving to another.
    _here: std::marker::PhantomData<*const ()>,
}

impl Cpus {
    pub fn allowed() -> Cpus {
        Cpus(sched_getaffinity(None).ok())
    }

    /// Whether two threads can run at once.
    pub fn are_several(&self) -> bool {
        self.0.as_ref().is_none_or(|allowed| allowed.count() > 1)
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<usize> {
        let set = |allowed: &CpuSet| (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        self.0.as_ref().map(set).unwrap_or_default()
    }

    /// Puts the calling thread on the `index`th of them. Does nothing when there are not that many, or
    /// when the kernel will not: the number is then this machine's, not wrong.
    pub fn pin(&self, index: usize) -> Placed {
        Placed { before: self.try_pin(index), _here: std::marker::PhantomData }
    }

    /// Puts all threads that a process has now on the `index`th of them; threads that they start later stay
    /// there.
    pub fn pin_process(&self, pid: u32, index: usize) -> io::Result<PlacedProcess> {
        let mut placed = PlacedProcess { before: Vec::new() };
        let Some(only) = self.only(index) else { return Ok(placed) };
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let number = task?.file_name().to_str().and_then(|name| name.parse().ok());
            let thread = number.and_then(Pid::from_raw);
            // One that has ended meanwhile needs no CPU.
            let Ok(before) = sched_getaffinity(thread) else { continue };
            if sched_setaffinity(thread, &only).is_ok() {
                placed.before.extend(thread.map(|thread| (thread, before)));
            }
        }
        Ok(placed)
    }

    fn try_pin(&self, index: usize) -> Option<CpuSet> {
        let only = self.only(index)?;
        let before = sched_getaffinity(None).ok()?;
        sched_setaffinity(None, &only).ok()?;
        Some(before)
    }

    fn only(&self, index: usize) -> Option<CpuSet> {
        let allowed = self.0.as_ref()?;
        let cpu = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).nth(index)?;
        let mut only = CpuSet::new();
        only.set(cpu);
        Some(only)
    }
}

impl Drop for PlacedProcess {
    fn drop(&mut self) {
        for (thread, before) in &self.before {
            let _ = sched_setaffinity(Some(*thread), before); // it was allowed before, or the thread has ended
        }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before); // it was allowed before
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_and_gives_back() {
        let cpus = Cpus::allowed();
        let before = sched_getaffinity(None).unwrap();
        let placed = cpus.pin(0);
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        if before.count() > 1 {
            let inner = cpus.pin(1);
            assert!(sched_getaffinity(None).unwrap() != before);
            drop(inner);
        }
        drop(placed);
        assert!(sched_getaffinity(None).unwrap() == before);
        drop(cpus.pin(CpuSet::MAX_CPU)); // no machine has that many
        assert!(sched_getaffinity(None).unwrap() == before);
    }

    #[test]
    fn pins_all_threads_of_a_process_and_gives_back() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let thread = Pid::from_raw(child.id() as i32);
        let before = sched_getaffinity(thread).unwrap();
        let placed = Cpus::allowed().pin_process(child.id(), 0).unwrap();
        assert_eq!(sched_getaffinity(thread).unwrap().count(), 1);
        drop(placed);
        assert!(sched_getaffinity(thread).unwrap() == before);
        drop(child.stdin.take()); // its end
        child.wait().unwrap();
    }
}
