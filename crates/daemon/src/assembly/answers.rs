//! What the daemon answers at its control socket: what each call has done.

use std::time::Duration;

use vmlane_access::Peer;
use vmlane_api::{Call, Done, Failure, Pong};
use vmlane_port::wrap::{Fault, Impairment};

use super::{Daemon, Event};
use crate::access::{May, View};
use crate::captures::Sources;
use crate::change;
use crate::containment::release;
use crate::control::{Answer, Answers};
use crate::extras::Provoked;
use crate::host::Host;
use crate::ovn::exchange::exchange;

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
