//! The daemon put together of its parts. Each part is in a file of its own and knows none of those below it:
//!
//! | part | what it owns |
//! | --- | --- |
//! | `Host` | workers, router, hypervisor, switch, the socket for programs of the host |
//! | `Served` | the configuration in force, served VMs, uplinks, mirrors |
//! | `Health` | the watchdog, counters of faults |
//! | `Captures` | captures under way |
//! | [`Daemon`] | these, who may ask what, and the way to the main thread |

mod answers;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use parking_lot::Mutex;
use vmlane_access::acl::AclError;
use vmlane_api::{Done, Failure, Reloaded};
use vmlane_config::files::Files;
use vmlane_config::paths::Paths;
use vmlane_config::{Config, Placement};
use vmlane_state::{Found, Store};

use crate::access::Policy;
use crate::captures::Captures;
use crate::change::{self, failed};
use crate::containment::Health;
use crate::extras::{Extras, Provoked};
use crate::grants;
use crate::host::{Host, HostError};
use crate::serve::VmError;
use crate::served::Served;
use crate::uplink::{UplinkError, Uplinks};
use crate::views::Views;

/// Why the daemon does not start: the part that could not be built.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error(transparent)]
    Access(#[from] AclError),
}

/// What others ask of the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Stop,
    Reload,
    /// Another daemon takes over everything.
    HandOver,
}

/// A running daemon. Stopping or dropping it withdraws every VM.
pub struct Daemon {
    pub(crate) host: Host,
    pub(crate) served: Mutex<Served>,
    pub(crate) health: Health,
    captures: Captures,
    /// Of the control socket. Never held while anything is done.
    policy: Mutex<Policy>,
    events: Sender<Event>,
    started: Instant,
}

/// What a daemon is built of: who it is, what a previous one left in `store`, and the uplinks that it has
/// opened.
pub struct Builder {
    pub paths: Paths,
    pub files: Files,
    /// The configuration that is in `files`.
    pub config: Config,
    /// Of the workers.
    pub placement: Placement,
    pub uplinks: Uplinks,
    pub store: Arc<dyn Store>,
    pub found: Found,
    pub extras: Extras,
}

impl Builder {
    /// Builds part after part, and serves the VMs of the configuration.
    pub fn start(self, events: Sender<Event>) -> Result<Daemon, AssemblyError> {
        let Builder { paths, files, config, placement, uplinks, store, mut found, extras } = self;
        let started = Instant::now();
        let (host, checkpoint) = Host::start(paths, (&config, placement), (store, &mut found), extras)?;
        let (health, policy) = (Health::of(&host), Mutex::new(policy(&config)));
        let served = Mutex::new(Served::new(&host, (files, config), uplinks, found)?);
        let captures = Captures::default();
        let daemon = Daemon { host, served, health, captures, policy, events, started };
        daemon.served.lock().begin(&daemon.host, checkpoint)?;
        Ok(daemon)
    }
}

impl Daemon {
    /// Lets in whom the configuration names, once all sockets exist: the control socket, too.
    pub fn open_sockets(&self) -> Result<(), AssemblyError> {
        let failed = grants::apply(&self.served.lock().config, &self.host.paths);
        failed.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
    }

    /// To be called every few seconds.
    pub fn housekeeping(&self) {
        self.host.hypervisor.expire();
        self.host.sockets.reopen_forwards();
        let served = &mut *self.served.lock();
        served.uplinks.check(&self.host.switch, &served.config.uplinks);
    }

    /// Reads the configuration again and applies the difference.
    pub fn reload(&self) -> Result<Reloaded, Failure> {
        self.change(change::reload)
    }

    /// Ends every session and removes every VM's socket.
    pub fn stop(&self) {
        self.served.lock().stop(&self.host);
    }

    /// Changes what is served, unless no VM may be offered any more.
    fn change<T>(&self, change: impl FnOnce(&mut Served, &Host) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut served = self.served.lock();
        if served.is_stopped() {
            return Err(failed(&"the daemon is stopping"));
        }
        let done = change(&mut served, &self.host);
        *self.policy.lock() = policy(&served.config);
        done
    }

    fn provoke(&self, vm: &str, at: &str, what: Provoked) -> Result<Done, Failure> {
        change::provoke(&self.served.lock(), &self.host, vm, at, what)
    }

    fn views(&self) -> Views<'_> {
        let Daemon { host, served, health, captures, started, .. } = self;
        Views { host, served, health, captures, started: *started }
    }
}

/// Who may, by the configuration.
fn policy(config: &Config) -> Policy {
    Policy::new(rustix::process::geteuid().as_raw(), config)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}
