//! The daemon put together: workers, the fabric, a served VM for each configured one.
//!
//! The state lock orders the operator's requests; no session and no worker ever takes it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_api::{
    Call, Connection, CounterList, Done, ErrorCode, Failure, Pong, Ports, Reloaded, Reply, Stats, Status,
    VmStats, VmStatus,
};
use vmlane_device::vmci::{Fabric, VmView};
use vmlane_lane::{Settings, Workers};
use vmlane_stats::Counters;

use crate::config::{Config, Mode};
use crate::control::Answers;
use crate::paths::Paths;
use crate::plan::plan;
use crate::vm::{ServedVm, VmError, spec};

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error("starting the workers: {0}")]
    Workers(std::io::Error),
}

/// What others ask of the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Stop,
    Reload,
}

/// A running daemon. Stopping or dropping it withdraws every VM.
pub struct Daemon {
    paths: Paths,
    config_path: PathBuf,
    started: Instant,
    fabric: Arc<Fabric>,
    workers: Arc<Workers>,
    events: Sender<Event>,
    state: Mutex<State>,
}

struct State {
    /// In force.
    config: Config,
    vms: Vec<ServedVm>,
    /// No VM may be offered any more.
    stopped: bool,
}

impl Daemon {
    /// Serves the VMs of `config`. `config_path` is read again on reload.
    pub fn start(
        paths: Paths,
        config_path: PathBuf,
        config: Config,
        events: Sender<Event>,
    ) -> Result<Daemon, AssemblyError> {
        let settings = Settings {
            workers: config.daemon.workers,
            spin: Duration::from_micros(config.daemon.spin_us),
            poll: config.daemon.mode == Mode::Poll,
            ..Settings::default()
        };
        let workers = Arc::new(Workers::start(settings).map_err(AssemblyError::Workers)?);
        let fabric = Fabric::new(workers.clone());
        let state = Mutex::new(State { config: config.clone(), vms: Vec::new(), stopped: false });
        let daemon = Daemon { paths, config_path, started: Instant::now(), fabric, workers, events, state };
        for vm in &config.vms {
            daemon.state.lock().offer(&daemon, &config, &vm.name)?;
        }
        Ok(daemon)
    }

    /// To be called every few seconds.
    pub fn housekeeping(&self) {
        self.fabric.expire();
    }

    /// Ends every session and removes every VM's socket.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        for vm in std::mem::take(&mut state.vms) {
            vm.withdraw(&self.fabric, &self.paths);
        }
        state.stopped = true;
        let _ = std::fs::remove_dir(self.paths.vms());
    }

    /// Reads the configuration again and applies the difference.
    pub fn reload(&self) -> Result<Reloaded, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::internal(format!("{error}\nthe configuration before stays in force"))
        };
        let new = Config::load(&self.config_path).map_err(|error| failed(&error))?;
        let mut state = self.state.lock();
        if state.stopped {
            return Err(failed(&"the daemon is stopping"));
        }
        let attached = |name: &str| state.vms.iter().any(|vm| vm.name() == name && vm.attached());
        let plan = plan(&state.config, &new, attached).map_err(|error| failed(&error))?;
        let mut report = Reloaded { applied: Vec::new(), refused: plan.refused };
        state.config = plan.effective.clone();
        for name in &plan.remove {
            state.withdraw(self, name);
            report.applied.push(format!("vm {name:?}: removed"));
        }
        for name in &plan.add {
            match state.offer(self, &plan.effective, name) {
                Ok(()) => report.applied.push(format!("vm {name:?}: added")),
                Err(error) => {
                    state.config.vms.retain(|vm| vm.name != *name);
                    report.refused.push(error.to_string());
                }
            }
        }
        for vm in plan.effective.vms.iter().filter(|vm| plan.update.contains(&vm.name)) {
            self.fabric.update_vm(spec(&plan.effective, vm));
            report.applied.push(format!("vm {:?}: changed", vm.name));
        }
        Ok(report)
    }

    fn pong(&self) -> Pong {
        Pong { pid: std::process::id(), daemon: env!("CARGO_PKG_VERSION").into() }
    }

    fn status(&self) -> Status {
        let state = self.state.lock();
        let daemon = &state.config.daemon;
        let views = self.fabric.vms();
        Status {
            daemon: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            config: self.config_path.display().to_string(),
            runtime_dir: self.paths.runtime().display().to_string(),
            workers: daemon.workers,
            mode: daemon.mode.name().into(),
            spin_us: daemon.spin_us,
            fault_injection: daemon.fault_injection,
            vms: state.with_views(views, |vm, view| VmStatus {
                name: view.name,
                cid: view.cid,
                group: view.group,
                attached: vm.attached(),
                ready: view.ready,
                sockets: vec![vm.socket().display().to_string()],
                queue_pairs: view.queue_pairs,
                queue_pair_bytes: view.queue_pair_bytes,
                connections: view.connections,
                doorbells: view.doorbells,
                inbox_bytes: view.inbox_bytes,
            }),
        }
    }

    fn stats(&self) -> Stats {
        let views = self.fabric.vms();
        let state = self.state.lock();
        Stats {
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            workers: self.workers.stats().snapshot().into_iter().collect(),
            vms: state.with_views(views, |vm, view| VmStats {
                name: view.name,
                cid: view.cid,
                vmci: view.stats.snapshot().into_iter().collect(),
                session: vm.stats().snapshot().into_iter().collect::<CounterList>(),
            }),
        }
    }

    fn ports(&self) -> Ports {
        let views = self.fabric.vms();
        let name =
            |cid: u32| views.iter().find(|vm| vm.cid == cid).map_or_else(String::new, |vm| vm.name.clone());
        let connections = self.fabric.connections().into_iter();
        let connections = connections.map(|connection| Connection {
            client_vm: name(connection.client.0),
            client_cid: connection.client.0,
            client_port: connection.client.1,
            server_vm: name(connection.server.0),
            server_cid: connection.server.0,
            server_port: connection.server.1,
            state: connection.state.into(),
        });
        Ports { connections: connections.collect() }
    }

    fn debug_panic(&self, name: &str) -> Result<Done, Failure> {
        let state = self.state.lock();
        if !state.config.daemon.fault_injection {
            let message = "debug_panic needs fault_injection = true in the table [daemon] of the configuration, \
                           and a restart";
            return Err(Failure { code: ErrorCode::Forbidden, message: message.into() });
        }
        match state.vms.iter().find(|vm| vm.name() == name) {
            Some(vm) if self.fabric.inject_panic(vm.cid()) => Ok(Done {}),
            _ => {
                let message = format!("vm {name:?} is not served; known are {}", state.config.names());
                Err(Failure { code: ErrorCode::UnknownVm, message })
            }
        }
    }

    fn shutdown(&self) -> Result<Done, Failure> {
        let stopping = || Failure::internal("the daemon is stopping already".into());
        self.events.send(Event::Stop).map_err(|_| stopping())?;
        Ok(Done {})
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Answers for Daemon {
    fn answer(&self, call: Call) -> String {
        match call {
            Call::Ping => Reply::ok(self.pong()).to_line(),
            Call::Status => Reply::ok(self.status()).to_line(),
            Call::Stats => Reply::ok(self.stats()).to_line(),
            Call::Ports => Reply::ok(self.ports()).to_line(),
            Call::Reload => line(self.reload()),
            Call::DebugPanic { vm } => line(self.debug_panic(&vm)),
            Call::Shutdown => line(self.shutdown()),
        }
    }
}

fn line<T: serde::Serialize>(outcome: Result<T, Failure>) -> String {
    match outcome {
        Ok(body) => Reply::ok(body).to_line(),
        Err(failure) => Reply::error(failure).to_line(),
    }
}

impl State {
    fn offer(&mut self, daemon: &Daemon, config: &Config, name: &str) -> Result<(), VmError> {
        if let Some(vm) = config.vm(name) {
            let served = ServedVm::offer(&daemon.fabric, &daemon.paths, spec(config, vm))?;
            tracing::info!(vm = name, cid = vm.cid, socket = %served.socket().display(), "serving");
            self.vms.push(served);
        }
        Ok(())
    }

    fn withdraw(&mut self, daemon: &Daemon, name: &str) {
        if let Some(index) = self.vms.iter().position(|vm| vm.name() == name) {
            self.vms.remove(index).withdraw(&daemon.fabric, &daemon.paths);
            tracing::info!(vm = name, "no longer served");
        }
    }

    /// Combines each served VM with the fabric's view of it, by CID.
    fn with_views<T>(&self, views: Vec<VmView>, combine: impl Fn(&ServedVm, VmView) -> T) -> Vec<T> {
        let served = |cid| self.vms.iter().find(|vm| vm.cid() == cid);
        views.into_iter().filter_map(|view| Some(combine(served(view.cid)?, view))).collect()
    }
}
