//! The supervisor: one process a lab, `vmlane lab supervise`, that owns everything the lab runs.
//!
//! Its main thread starts every child (see `child`) and takes every decision, one event at a time;
//! other threads only carry bytes and post events. It ends on request, by a signal,
//! when its lab fails to come up, or when the one who started it is gone before letting go of it;
//! and with it ends all that it started, even when it is killed.

mod api;
mod daemon;
mod event;
pub mod host;
mod link;
mod machine;
pub mod net;
mod spawn;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::child::{self, Handle};
use crate::log_tail::tail;
use crate::plan::{DaemonStatus, Plan, Reply, Report, Request, Status};
use crate::qemu::Boot;
use crate::{dirs, uml, vhost_device_vsock};
use event::Event;
use machine::Machine;
use spawn::spawn;

pub use daemon::merge_config;

/// How long a daemon that died is gone at least.
const RESTART: Duration = Duration::from_millis(50);

/// How long one that another replaces may be gone.
const SUCCESSION: Duration = Duration::from_secs(60);

struct Supervisor {
    plan: Plan,
    machines: Vec<Machine>,
    daemon: Option<Handle>,
    /// Since when a daemon that ended by itself may be replaced.
    waits_for_daemon: Option<Instant>,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

/// What `vmlane lab supervise` runs: the plan comes on standard input, reports leave on standard
/// output.
pub fn run() -> Result<()> {
    // A session of its own: Ctrl-C is for the starter, which ends us by closing its end of our stdin.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become a subreaper")?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("cannot read the plan")?;
    let plan: Plan = serde_json::from_str(&line).context("the plan")?;
    let lock = lock(&plan)?;
    let (sender, events) = mpsc::channel();
    watch_signals(&sender)?;
    watch_starter(&sender);
    let machines = plan.spec.guests().into_iter().map(Machine::new).collect();
    let mut supervisor = Supervisor { plan, machines, daemon: None, waits_for_daemon: None, sender, events };
    let result = supervisor.live();
    supervisor.tear_down();
    drop(lock);
    result
}

/// Held as long as this process lives: the proof that a lab's directory is not stale.
fn lock(plan: &Plan) -> Result<File> {
    let file = File::create(plan.dir.join("lock")).context("cannot make the lab's lock")?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("lab {} is running already", plan.spec.name))?;
    Ok(file)
}

fn watch_signals(sender: &Sender<Event>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let sender = sender.clone();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let _ = sender.send(Event::Stop("a signal"));
        }
    });
    Ok(())
}

fn watch_starter(sender: &Sender<Event>) {
    let sender = sender.clone();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
        let detached = line.trim() == "detach";
        let _ = sender.send(if detached { Event::Detached } else { Event::Stop("its starter ended") });
    });
}

/// Reports something to the starter, which may be gone.
fn report(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

impl Supervisor {
    fn live(&mut self) -> Result<()> {
        if let Err(error) = self.come_up() {
            report(&Report::Failed(format!("{error:#}")));
            return Err(error);
        }
        report(&Report::Ready(self.status()));
        while let Ok(event) = self.events.recv() {
            if !self.react(event) {
                break;
            }
        }
        Ok(())
    }

    fn come_up(&mut self) -> Result<()> {
        for machine in &self.machines {
            dirs::make(&self.plan.guest_dir(&machine.spec.name))?;
        }
        machine::write_initrds(&self.plan).context("write the guests' first root")?;
        net::prepare(&self.plan)?;
        if self.plan.spec.has_daemon() {
            self.start_daemon()?;
        }
        if let Some(command) = vhost_device_vsock::command(&self.plan)? {
            let log = self.plan.peer_log();
            let shown = log.clone();
            // Its guests see a dead device then, as they would anywhere.
            spawn(child::protected(&self.plan.vmlane, &command), &log, move |_, status| {
                eprintln!("vmlane lab: vhost-device-vsock ended ({status}):\n{}", tail(&shown));
            })?;
            vhost_device_vsock::wait(&self.plan)?;
        }
        if self.plan.spec.uplinks > 0 {
            host::prepare(&self.plan.spec)?;
        }
        let links: HashMap<_, _> =
            self.machines.iter().map(|m| (m.spec.name.clone(), m.link.clone())).collect();
        for index in 0..self.machines.len() {
            self.machines[index].start(&self.plan, &self.sender, Boot::Kernel)?;
        }
        let socket = self.plan.dir.join("api.sock");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        let shared = api::Shared { plan: self.plan.clone(), links, events: self.sender.clone() };
        api::serve(listener, Arc::new(shared));
        self.wait_for_guests()
    }

    fn start_daemon(&mut self) -> Result<()> {
        daemon::write_config(&self.plan)?;
        dirs::make(&self.plan.daemon_runtime())?;
        let log = self.plan.daemon_log();
        let sender = self.sender.clone();
        let mut command = child::protected(&self.plan.vmlane, &daemon::command(&self.plan)?);
        command.stdin(Stdio::null());
        let handle = spawn(command, &log, move |_, status| {
            let _ = sender.send(Event::DaemonEnded(status));
        })?;
        self.daemon = Some(handle);
        let deadline = Instant::now() + Duration::from_secs(120);
        while !daemon::answers(&self.plan) {
            match self.events.recv_timeout(Duration::from_millis(20)) {
                Ok(Event::DaemonEnded(status)) => {
                    bail!("the daemon ended ({status}):\n{}", tail(&log))
                }
                Ok(Event::Stop(why)) => bail!("stopped by {why}"),
                _ => {}
            }
            if Instant::now() > deadline {
                bail!("the daemon did not answer in 20 s:\n{}", tail(&log));
            }
        }
        Ok(())
    }

    fn restart_daemon_in(&self, delay: Duration, died: bool) {
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let _ = sender.send(Event::RestartDaemon { died });
        });
    }

    /// Starts the daemon again, or continues with one that took its place.
    fn restart_daemon(&mut self) -> Result<()> {
        let sender = self.sender.clone();
        if let Some(pid) = daemon::pid(&self.plan) {
            let (Ok(handle), Ok(watched)) = (Handle::open(pid), Handle::open(pid)) else {
                // It has ended since it answered: yet another may have taken its place.
                self.restart_daemon_in(RESTART, true);
                return Ok(());
            };
            std::thread::spawn(move || {
                while !watched.wait(Duration::from_secs(3600)) {}
                // How it ended is not for us to know: it is no child of ours.
                let _ = sender.send(Event::DaemonEnded(ExitStatus::from_raw(1 << 8)));
            });
            eprintln!("vmlane lab: the daemon is process {pid} now");
            self.daemon = Some(handle);
            return Ok(());
        }
        let mut command = child::protected(&self.plan.vmlane, &daemon::command(&self.plan)?);
        command.stdin(Stdio::null());
        let handle = spawn(command, &self.plan.daemon_log(), move |_, status| {
            let _ = sender.send(Event::DaemonEnded(status));
        })?;
        self.daemon = Some(handle);
        Ok(())
    }

    fn wait_for_guests(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(self.plan.spec.boot_seconds);
        let mut reported = vec![false; self.machines.len()];
        loop {
            for (machine, reported) in self.machines.iter().zip(&mut reported) {
                if let (link::Phase::Up(_), Some(seconds)) = machine.link.phase()
                    && !*reported
                {
                    *reported = true;
                    let name = &machine.spec.name;
                    report(&Report::Progress(format!("guest {name} is up after {seconds:.1} s")));
                }
            }
            if reported.iter().all(|t| *t) {
                return Ok(());
            }
            match self.events.recv_timeout(Duration::from_millis(500)) {
                Ok(Event::Stop(why)) => bail!("stopped by {why}"),
                Ok(Event::DaemonEnded(status)) => {
                    let log = tail(&self.plan.daemon_log());
                    bail!("the daemon ended ({status}) while guests booted:\n{log}");
                }
                Ok(Event::GuestEnded(pid, status)) => {
                    let guest = self.guest_of(pid).map(|m| &m.spec);
                    let name = guest.map_or("?", |spec| spec.name.as_str());
                    let (what, log) = if guest.is_none_or(|spec| spec.machine.is_qemu()) {
                        ("QEMU", self.plan.qemu_log(name))
                    } else {
                        ("User Mode Linux", self.plan.console(name))
                    };
                    let log = tail(&log);
                    bail!("the {what} of guest {name} ended ({status}) before the guest was up:\n{log}");
                }
                Ok(Event::Request(_, reply)) => {
                    let _ = reply.send(Reply::Error("the lab is still coming up".into()));
                }
                Ok(Event::GuestUp | Event::Detached | Event::RestartDaemon { .. })
                | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("no more events"),
            }
            let late = Instant::now() > deadline;
            for (machine, _) in self.machines.iter().zip(&reported).filter(|(_, reported)| !**reported) {
                let name = &machine.spec.name;
                let console = tail(&self.plan.console(name));
                if late {
                    let seconds = self.plan.spec.boot_seconds;
                    bail!("guest {name} did not answer in {seconds} s; its console ends:\n{console}");
                }
                if console.contains("Kernel panic") {
                    bail!("guest {name} panicked; its console ends:\n{console}");
                }
            }
        }
    }

    fn guest_of(&self, pid: u32) -> Option<&Machine> {
        self.machines.iter().find(|m| m.process.as_ref().is_some_and(|p| p.pid == pid))
    }

    /// One event of a lab that is up; false when it is to end.
    fn react(&mut self, event: Event) -> bool {
        match event {
            Event::Stop(why) => {
                eprintln!("vmlane lab: going down: {why}");
                return false;
            }
            Event::Detached | Event::GuestUp => {}
            Event::GuestEnded(pid, status) => {
                child::bury(uml::PROCESSES);
                for machine in &mut self.machines {
                    if machine.process.as_ref().is_some_and(|p| p.pid == pid) {
                        eprintln!("vmlane lab: the QEMU of guest {} ended: {status}", machine.spec.name);
                        machine.process = None;
                        machine.link.set_off(&format!("its QEMU ended ({status})"));
                    }
                }
            }
            Event::DaemonEnded(status) => {
                eprintln!("vmlane lab: the daemon ended: {status}");
                self.daemon = None;
                // One that was stopped stays so; one that died comes back, as under any supervisor.
                // Another may have taken its place.
                self.restart_daemon_in(RESTART, !status.success());
            }
            Event::RestartDaemon { died } => {
                if self.daemon.is_none() && !died && daemon::pid(&self.plan).is_none() {
                    // One that takes over needs a moment; one that was stopped is not replaced.
                    let waiting = self.waits_for_daemon.get_or_insert_with(Instant::now).elapsed();
                    if waiting < SUCCESSION {
                        self.restart_daemon_in(RESTART, false);
                    }
                    return true;
                }
                self.waits_for_daemon = None;
                if self.daemon.is_none()
                    && let Err(error) = self.restart_daemon()
                {
                    eprintln!("vmlane lab: the daemon cannot be started again: {error:#}");
                }
            }
            Event::Request(request, reply) => {
                let down = matches!(request, Request::Down);
                let answer = self.handle(request).unwrap_or_else(|e| Reply::Error(format!("{e:#}")));
                let _ = reply.send(answer);
                return !down;
            }
        }
        true
    }

    fn handle(&mut self, request: Request) -> Result<Reply> {
        match request {
            Request::Status => return Ok(Reply::Status(Box::new(self.status()))),
            Request::Kill { guest } => {
                let machine = self.machine(&guest)?;
                let Some(process) = machine.process.take() else {
                    bail!("guest {guest} is off; vmlane lab start brings it back");
                };
                machine.link.set_off("it was killed");
                process.end(Signal::KILL, Duration::from_secs(10));
            }
            Request::Start { guest, network } => {
                if self.machine(&guest)?.process.is_some() {
                    bail!("guest {guest} runs already; vmlane lab kill or reboot it");
                }
                let index = self.machines.iter().position(|m| m.spec.name == guest);
                let boot = if network { Boot::Network } else { Boot::Kernel };
                self.machines[index.unwrap_or_default()].start(&self.plan, &self.sender, boot)?;
            }
            // The connection's own thread did what the others need.
            Request::Down | Request::Reboot { .. } | Request::WaitUp { .. } | Request::Exec { .. } => {}
        }
        Ok(Reply::Done)
    }

    fn machine(&mut self, guest: &str) -> Result<&mut Machine> {
        self.machines.iter_mut().find(|m| m.spec.name == guest).with_context(|| format!("no guest {guest:?}"))
    }

    fn status(&self) -> Status {
        Status {
            version: 1,
            name: self.plan.spec.name.clone(),
            dir: self.plan.dir.clone(),
            supervisor_pid: std::process::id(),
            accelerator: self.plan.assets.accel.name().to_owned(),
            qemu_version: self.plan.assets.qemu_version().to_owned(),
            machine: self.machines.first().map(|m| m.spec.machine).unwrap_or_default(),
            guests: self.machines.iter().map(|m| m.status(&self.plan)).collect(),
            daemon: self.plan.spec.has_daemon().then(|| DaemonStatus {
                pid: self.daemon.as_ref().map(|d| d.pid),
                runtime_dir: self.plan.daemon_runtime(),
                config: self.plan.daemon_config(),
                log: self.plan.daemon_log(),
            }),
        }
    }

    /// Guests are thrown away, so they are killed; the daemon is given time to end.
    fn tear_down(&mut self) {
        for machine in &mut self.machines {
            machine.link.set_off("the lab is going down");
            if let Some(process) = &machine.process {
                process.signal(Signal::KILL);
            }
        }
        for process in self.machines.iter_mut().filter_map(|m| m.process.take()) {
            process.wait(Duration::from_secs(10));
        }
        if let Some(daemon) = self.daemon.take() {
            daemon.end(Signal::TERM, Duration::from_secs(3));
        }
        child::kill_all_children();
        net::remove(&self.plan.spec.name);
        host::remove(&self.plan.spec.name);
        let _ = fs::remove_dir_all(&self.plan.dir);
    }
}
