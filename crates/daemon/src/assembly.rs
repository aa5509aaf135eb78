//! The daemon put together of its parts. Each part is in a file of its own and knows none of those below it:
//!
//! | part | what it owns |
//! | --- | --- |
//! | [`Host`] | workers, router, hypervisor, switch, the socket for programs of the host |
//! | [`Served`] | the configuration in force, served VMs, uplinks, mirrors |
//! | [`Health`] | the watchdog, counters of faults |
//! | [`Captures`] | captures under way |
//! | [`Daemon`] | these, who may ask what, and the way to the main thread |

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_access::Peer;
use vmlane_access::acl::AclError;
use vmlane_api::{Call, Done, Failure, Pong, Reloaded};
use vmlane_port::wrap::{Fault, Impairment};
use vmlane_state::{Found, Store};

use crate::access::{May, Policy, View};
use crate::captures::{Captures, Sources};
use crate::change::{self, failed};
use crate::config::Config;
use crate::containment::{Health, release};
use crate::control::{Answer, Answers};
use crate::extras::{Extras, Provoked};
use crate::files::Files;
use crate::grants;
use crate::host::{Host, HostError};
use crate::ovn::exchange::exchange;
use crate::paths::Paths;
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

/// What a daemon is built of: who it is, what a previous one left in `store`, and the uplinks that it has opened.
pub struct Builder {
    pub paths: Paths,
    pub files: Files,
    /// The configuration that is in `files`.
    pub config: Config,
    pub uplinks: Uplinks,
    pub store: Arc<dyn Store>,
    pub found: Found,
    pub extras: Extras,
}

impl Builder {
    /// Builds part after part, and serves the VMs of the configuration.
    pub fn start(self, events: Sender<Event>) -> Result<Daemon, AssemblyError> {
        let Builder { paths, files, config, uplinks, store, mut found, extras } = self;
        let started = Instant::now();
        let (host, checkpoint) = Host::start(paths, &config, (store, &mut found), extras)?;
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
        self.host.sockets.look();
        let served = &mut *self.served.lock();
        served.uplinks.look(&self.host.switch, &served.config.uplinks);
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

    fn pong(&self) -> Pong {
        Pong {
            pid: std::process::id(),
            daemon: env!("CARGO_PKG_VERSION").into(),
            layout: Some(vmlane_state::LAYOUT),
        }
    }

    fn hand_over(&self, layout: u32) -> Result<Done, Failure> {
        if layout != vmlane_state::LAYOUT {
            return Err(Failure::internal(format!(
                "this daemon's state has layout {}, the one that asks knows {layout}; this one stays. Stop it and \
                 start the other, which VMs will notice",
                vmlane_state::LAYOUT
            )));
        }
        let stopping = || Failure::internal("the daemon is stopping already".into());
        self.events.send(Event::HandOver).map_err(|_| stopping())?;
        Ok(Done {})
    }

    fn shutdown(&self) -> Result<Done, Failure> {
        let stopping = || Failure::internal("the daemon is stopping already".into());
        self.events.send(Event::Stop).map_err(|_| stopping())?;
        Ok(Done {})
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

impl Answers for Daemon {
    fn may(&self, peer: &Peer) -> Option<May> {
        self.policy.lock().may(peer)
    }

    fn answer(&self, call: Call, peer: &Peer) -> Answer {
        let checked = self.policy.lock().check(&call, peer);
        let view = match checked {
            Ok(view) => view,
            Err(failure) => return Answer::Body(Err(failure)),
        };
        if let Call::Capture { capture } = call {
            let served = self.served.lock();
            let vms = served.vms.iter().filter_map(|vm| Some((vm.name().to_owned(), vm.cid()?)));
            let vms: Vec<(String, u32)> = vms.collect();
            drop(served);
            let Host { switch, workers, vsock_workers, router, .. } = &self.host;
            let sources = Sources {
                switch: switch.clone(),
                workers: workers.clone(),
                vsock_workers: vsock_workers.clone(),
                router: router.clone(),
            };
            return match self.captures.begin(&capture, sources, &vms) {
                Ok(begun) => begun,
                Err(failure) => Answer::Body(Err(failure)),
            };
        }
        self.answer_body(call, &view)
    }
}

impl Daemon {
    /// The answer to a call that is allowed, and that has a body and nothing more.
    fn answer_body(&self, call: Call, view: &View) -> Answer {
        let host = &self.host;
        match call {
            Call::Ping => body(Ok(self.pong())),
            Call::Status => body(Ok(view.of_status(self.views().status()))),
            Call::Stats => body(Ok(view.of_stats(self.views().stats()))),
            Call::Ports => body(Ok(view.of_ports(self.views().ports()))),
            Call::Reload => body(self.reload()),
            Call::VmAdd { description } => {
                body(self.change(|served, host| change::add_vm(served, host, &description)))
            }
            Call::VmRemove { name, force } => {
                body(self.change(|served, host| change::remove_vm(served, host, &name, force)))
            }
            Call::VmList => body(Ok(view.of_vms(self.views().vms()))),
            Call::Release { vm } => body(release(&mut self.served.lock(), host, &vm)),
            Call::Link { vm, nic, up } => body(change::set_link(&self.served.lock(), host, &vm, &nic, up)),
            Call::MirrorAdd { mirror } => {
                let served = &mut *self.served.lock();
                body(served.mirrors.add(&host.switch, &served.config, &mirror))
            }
            Call::MirrorRemove { name } => {
                let served = &mut *self.served.lock();
                body(served.mirrors.remove(&host.switch, &served.config, &name))
            }
            Call::LinkUplink { uplink, up } => {
                body(change::set_uplink_link(&mut self.served.lock(), host, &uplink, up))
            }
            Call::Ovn { reports } => body(exchange(&mut self.served.lock(), host, reports)),
            Call::DebugPanic { vm, at } => {
                let at = at.as_deref().unwrap_or("vmci");
                body(self.provoke(&vm, at, Provoked::Fault(Fault::Panic)))
            }
            Call::DebugStall { vm, at, milliseconds } => {
                let time = Duration::from_millis(milliseconds.into());
                body(self.provoke(&vm, &at, Provoked::Fault(Fault::Stall(time))))
            }
            Call::DebugMove { vm, at, worker } => {
                body(change::move_nic(&self.served.lock(), host, &vm, &at, worker))
            }
            Call::DebugTrespass { vm, at } => body(self.provoke(&vm, &at, Provoked::Fault(Fault::Trespass))),
            Call::DebugImpair { vm, at, loss, reorder, delay_us, longest, seed } => {
                let delay = Duration::from_micros(delay_us.into());
                let longest = longest.unwrap_or(0);
                let impairment = Impairment { loss, reorder, delay, longest, seed };
                body(self.provoke(&vm, &at, Provoked::Impairment(impairment)))
            }
            Call::Capture { .. } => body::<Done>(Err(Failure::internal("not answered by a body".into()))),
            Call::Shutdown => body(self.shutdown()),
            Call::HandOver { layout } => body(self.hand_over(layout)),
        }
    }
}

fn body<T: serde::Serialize>(outcome: Result<T, Failure>) -> Answer {
    outcome.into()
}
