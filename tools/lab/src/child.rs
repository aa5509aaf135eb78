//! Children that end with the supervisor, whatever happens to it.
//!
//! A parent-death signal must be asked for by the child itself, so every child starts as
//! `vmlane lab child PARENT -- COMMAND...`, which asks for it and becomes the command. The kernel
//! sends it when the *thread* that forked ends, so only the supervisor's main thread starts any.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What a child gets beside its protection.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    /// The only processor that it runs on.
    pub cpu: Option<usize>,
    /// `KEY=VALUE` for the command, and not for the program that becomes it.
    pub env: Vec<String>,
}

/// What `vmlane lab child` runs.
pub fn run(parent: u32, extra: &Extra, command: &[OsString]) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask for a parent-death signal")?;
    // The parent may have ended before the signal was armed.
    if rustix::process::getppid().is_none_or(|p| p.as_raw_nonzero().get() as u32 != parent) {
        bail!("the supervisor {parent} is gone");
    }
    let (program, args) = command.split_first().context("no command")?;
    if let Some(cpu) = extra.cpu {
        ensure!(cpu < CpuSet::MAX_CPU, "processor {cpu}: this host's numbers end at {}", CpuSet::MAX_CPU - 1);
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        sched_setaffinity(None, &cpus).with_context(|| format!("cannot stay on processor {cpu}"))?;
    }
    let env = extra.env.iter().filter_map(|pair| pair.split_once('='));
    let error = Command::new(program).args(args).envs(env).exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
}

/// The processor for the guest with this number, of those that this process may use.
pub fn cpu_for(number: u32) -> Option<usize> {
    let mine = sched_getaffinity(None).ok()?;
    let mine: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| mine.is_set(cpu)).collect();
    mine.get(number.checked_sub(1)? as usize % mine.len().max(1)).copied()
}

/// A command that starts `inner` under this process's protection.
pub fn protected(vmlane: &Path, inner: &Command) -> Command {
    protected_with(vmlane, inner, &Extra::default())
}

/// The same with more.
pub fn protected_with(vmlane: &Path, inner: &Command, extra: &Extra) -> Command {
    let mut command = Command::new(vmlane);
    command.args(["lab", "child"]);
    command.args(extra.cpu.iter().flat_map(|cpu| ["--cpu".to_owned(), cpu.to_string()]));
    command.args(extra.env.iter().flat_map(|pair| ["--env", pair]));
    command.arg(std::process::id().to_string()).arg("--").arg(inner.get_program()).args(inner.get_args());
    if let Some(dir) = inner.get_current_dir() {
        command.current_dir(dir);
    }
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command
}

/// A process held by a pidfd, so that no signal can ever reach a stranger.
pub struct Handle {
    pub pid: u32,
    fd: OwnedFd,
}

impl Handle {
    pub fn of(child: &Child) -> Result<Self> {
        Self::open(child.id())
    }

    pub fn open(pid: u32) -> Result<Self> {
        let raw = Pid::from_raw(pid as i32).with_context(|| format!("{pid} is no process id"))?;
        let fd = rustix::process::pidfd_open(raw, PidfdFlags::empty())
            .with_context(|| format!("cannot hold process {pid}"))?;
        Ok(Self { pid, fd })
    }

    pub fn signal(&self, signal: Signal) {
        // Fails only when the process has ended, which is what signals here are for.
        let _ = rustix::process::pidfd_send_signal(self.fd.as_fd(), signal);
    }

    /// Waits until the process has ended; false when it has not in time.
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = std::time::Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&time)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(_) => {} // interrupted
            }
        }
    }

    /// A signal, a timeout, then SIGKILL.
    pub fn end(&self, signal: Signal, timeout: Duration) {
        self.signal(signal);
        if !self.wait(timeout) {
            self.signal(Signal::KILL);
            self.wait(Duration::from_secs(10));
        }
    }
}

/// Kills whatever still is a child of this process: orphans come here, it is a subreaper.
pub fn kill_all_children() {
    for _ in 0..50 {
        let children = children();
        if children.is_empty() {
            return;
        }
        for pid in children {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}

/// Takes note of the deaths of orphans of this name that came here.
pub fn bury(name: &str) {
    for pid in children() {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        if comm.is_ok_and(|comm| comm.trim_end() == name) {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
        }
    }
}

fn children() -> Vec<Pid> {
    let mut pids = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        pids.extend(list.split_whitespace().filter_map(|p| Pid::from_raw(p.parse().ok()?)));
    }
    pids
}
