//! What the daemon answers at its control socket: what each call has done.

use std::time::Duration;

use vmlane_access::Peer;
use vmlane_api::{Call, CaptureRequest, Captured, Done, Failure, Method, Pong};
use vmlane_port::wrap::{Fault, Impairment};

use super::{Daemon, Event};
use crate::access::May;
use crate::captures::Sources;
use crate::control::{Answer, Answers, Lasting};

impl Answers for Daemon {
    fn may(&self, peer: &Peer) -> Option<May> {
        self.policy.lock().may(peer)
    }

    fn answer(&self, call: Call, peer: &Peer) -> Result<Answer, Failure> {
        let view = self.policy.lock().check(&call, peer)?;
        let json = match call {
            Call::Ping(call) => call.answer(pong()),
            Call::Status(call) => call.answer(view.of_status(self.status())),
            Call::Stats(call) => call.answer(view.of_stats(self.stats())),
            Call::Ports(call) => call.answer(view.of_ports(self.ports())),
            Call::Reload(call) => call.answer(self.reload()?),
            Call::VmAdd(call) => call.answer(self.add_vm(&call.description)?),
            Call::VmRemove(call) => call.answer(self.remove_vm(&call.name, call.force.unwrap_or(false))?),
            Call::VmList(call) => call.answer(view.of_vms(self.list_vms())),
            Call::Release(call) => call.answer(self.release(&call.vm)?),
            Call::Link(call) => call.answer(self.set_link(&call.vm, &call.nic, call.up)?),
            Call::LinkUplink(call) => call.answer(self.set_uplink_link(&call.uplink, call.up)?),
            Call::MirrorAdd(call) => {
                let state = &mut *self.state.lock();
                call.answer(state.mirrors.add(&self.switch, &state.config, &call.mirror)?)
            }
            Call::MirrorRemove(call) => {
                let state = &mut *self.state.lock();
                call.answer(state.mirrors.remove(&self.switch, &state.config, &call.name)?)
            }
            Call::Ovn(call) => call.answer(self.ovn(call.reports.clone())?),
            Call::DebugPanic(call) => {
                let at = call.at.as_deref().unwrap_or("vmci");
                call.answer(self.debug_fault(&call.vm, at, Fault::Panic)?)
            }
            Call::DebugStall(call) => {
                let time = Duration::from_millis(call.milliseconds.into());
                call.answer(self.debug_fault(&call.vm, &call.at, Fault::Stall(time))?)
            }
            Call::DebugMove(call) => call.answer(self.debug_move(&call.vm, &call.at, call.worker)?),
            Call::DebugTrespass(call) => {
                call.answer(self.debug_fault(&call.vm, &call.at, Fault::Trespass)?)
            }
            Call::DebugImpair(call) => {
                let delay = Duration::from_micros(call.delay_us.into());
                let (loss, reorder, longest) = (call.loss, call.reorder, call.longest.unwrap_or(0));
                let impairment = Impairment { loss, reorder, delay, longest, seed: call.seed };
                call.answer(self.debug_impair(&call.vm, &call.at, impairment)?)
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
        let state = self.state.lock();
        let vms = state.vms.iter().filter_map(|vm| Some((vm.name().to_owned(), vm.cid()?)));
        let vms: Vec<(String, u32)> = vms.collect();
        drop(state);
        let sources = Sources {
            switch: self.switch.clone(),
            workers: self.workers.clone(),
            vsock_workers: self.vsock_workers.clone(),
            router: self.router.clone(),
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
