//! The daemon answers control calls.

use std::time::Duration;

use vmlane_access::Peer;
use vmlane_api::{Call, CaptureRequest, Captured, Done, Failure, Method, Pong};
use vmlane_port::wrap::Fault;

use super::{Daemon, Event};
use crate::access::May;
use crate::captures::Sources;
use crate::change;
use crate::containment::release;
use crate::control::{Answer, Answers, Lasting};
use crate::extras::{Impairment, Provoked};
use crate::host::Host;
use crate::ovn::exchange::exchange;

impl Answers for Daemon {
    fn may(&self, peer: &Peer) -> Option<May> {
        self.policy.lock().may(peer)
    }

    fn answer(&self, call: Call, peer: &Peer) -> Result<Answer, Failure> {
        let view = self.policy.lock().check(&call, peer)?;
        let host = &self.host;
        let json = match call {
            Call::Ping(call) => call.answer(pong()),
            Call::Status(call) => call.answer(view.of_status(self.views().status())),
            Call::Stats(call) => call.answer(view.of_stats(self.views().stats())),
            Call::Ports(call) => call.answer(view.of_ports(self.views().ports())),
            Call::Reload(call) => call.answer(self.reload()?),
            Call::VmAdd(call) => {
                call.answer(self.change(|served, host| change::add_vm(served, host, &call.description))?)
            }
            Call::VmRemove(call) => {
                let force = call.force.unwrap_or(false);
                call.answer(self.change(|served, host| change::remove_vm(served, host, &call.name, force))?)
            }
            Call::VmList(call) => call.answer(view.of_vms(self.views().vms())),
            Call::Release(call) => call.answer(release(&mut self.served.lock(), host, &call.vm)?),
            Call::Link(call) => {
                call.answer(change::set_link(&self.served.lock(), host, &call.vm, &call.nic, call.up)?)
            }
            Call::LinkUplink(call) => {
                call.answer(change::set_uplink_link(&mut self.served.lock(), host, &call.uplink, call.up)?)
            }
            Call::WireSet(call) => {
                let served = &mut *self.served.lock();
                let to = call.to.as_deref();
                call.answer(served.wires.set(&host.switch, &served.config, (&call.wire, to), &call.impair)?)
            }
            Call::WireCut(call) => {
                let served = &mut *self.served.lock();
                call.answer(served.wires.cut(&host.switch, &served.config, &call.wire, call.cut)?)
            }
            Call::MirrorAdd(call) => {
                let served = &mut *self.served.lock();
                call.answer(served.mirrors.add(&host.switch, &served.config, &call.mirror)?)
            }
            Call::MirrorRemove(call) => {
                let served = &mut *self.served.lock();
                call.answer(served.mirrors.remove(&host.switch, &served.config, &call.name)?)
            }
            Call::Ovn(call) => call.answer(exchange(&mut self.served.lock(), host, call.reports.clone())?),
            Call::DebugPanic(call) => {
                let at = call.at.as_deref().unwrap_or("vmci");
                call.answer(self.provoke(&call.vm, at, Provoked::Fault(Fault::Panic))?)
            }
            Call::DebugStall(call) => {
                let time = Duration::from_millis(call.milliseconds.into());
                call.answer(self.provoke(&call.vm, &call.at, Provoked::Fault(Fault::Stall(time)))?)
            }
            Call::DebugMove(call) => {
                call.answer(change::move_nic(&self.served.lock(), host, &call.vm, &call.at, call.worker)?)
            }
            Call::DebugTrespass(call) => {
                call.answer(self.provoke(&call.vm, &call.at, Provoked::Fault(Fault::Trespass))?)
            }
            Call::DebugImpair(call) => {
                let delay = Duration::from_micros(call.delay_us.into());
                let (loss, reorder, longest) = (call.loss, call.reorder, call.longest.unwrap_or(0));
                let impairment = Impairment { loss, reorder, delay, longest, seed: call.seed };
                call.answer(self.provoke(&call.vm, &call.at, Provoked::Impairment(impairment))?)
            }
            Call::Capture(call) => {
                let (captured, lasting) = self.capture(&call.capture)?;
                return Ok(Answer { json: call.answer(captured)?, lasting: Some(lasting) });
            }
            Call::Shutdown(call) => call.answer(self.request(Event::Stop)?),
            Call::HandOver(call) => call.answer(self.hand_over(call.layout)?),
        };
        Ok(Answer { json: json?, lasting: None })
    }
}

fn pong() -> Pong {
    Pong { pid: std::process::id(), daemon: env!("CARGO_PKG_VERSION").into(), layout: vmlane_state::LAYOUT }
}

impl Daemon {
    fn capture(&self, request: &CaptureRequest) -> Result<(Captured, Lasting), Failure> {
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
        self.captures.begin(request, sources, &vms)
    }

    fn hand_over(&self, layout: u32) -> Result<Done, Failure> {
        if layout != vmlane_state::LAYOUT {
            return Err(Failure::internal(format!(
                "this daemon's state has layout {}, the one that asks knows {layout}; this one stays. Stop it and \
                 start the other, which VMs will notice",
                vmlane_state::LAYOUT
            )));
        }
        self.request(Event::HandOver)
    }

    /// Has the main thread do something.
    fn request(&self, event: Event) -> Result<Done, Failure> {
        let stopping = |_| Failure::internal("the daemon is stopping already".into());
        self.events.send(event).map_err(stopping)?;
        Ok(Done {})
    }
}
