//! Processes with a time limit. Each leads a process group, so that what it started ends with it: when its
//! time is over, or by a signal to this program, which a terminal sends to this program's own group only.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// The groups that run. Locked while a process is started and while one is signalled, so that none is missed.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn groups<T>(with: impl FnOnce(&mut Vec<Pid>) -> T) -> T {
    with(&mut GROUPS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a command to its end. None: it had not ended after `limit`, and its group was killed.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let (mut child, group) = groups(|groups| -> io::Result<_> {
        let child = command.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        groups.push(group);
        Ok((child, group))
    })?;
    let ended = ends(group, limit);
    groups(|groups| groups.retain(|other| *other != group));
    // Until the child is waited for, no other group can have this number.
    if !matches!(ended, Ok(true)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait()?;
    Ok(ended?.then_some(status))
}

/// Whether a process ends in time.
fn ends(process: Pid, limit: Duration) -> io::Result<bool> {
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut wanted = [PollFd::new(&process, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| poll(&mut wanted, Some(&limit)))? > 0)
}

/// From now on, what would end this program ends the groups as well.
pub fn pass_on_signals() -> io::Result<()> {
    let ignored = ignored();
    let caught = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(caught)?;
    thread::spawn(move || {
        for signal in signals.forever() {
            groups(|groups| {
                for group in groups.iter() {
                    let _ = Signal::from_named_raw(signal).map(|signal| kill_process_group(*group, signal));
                }
                let _ = emulate_default_handler(signal);
            });
        }
    });
    Ok(())
}

/// Signals that whoever started this program has it ignore, as `nohup` does: a bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_in_time_has_its_status() {
        let status = run(Command::new("sh").args(["-c", "exit 3"]), Duration::from_secs(600)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        assert!(run(&mut Command::new("/no/program"), Duration::from_secs(600)).is_err());
    }
}
