//! Whether frames pass a port, and what happens to them on the way: its link, its wire, and the carrier
//! behind it.

use std::io;
use std::time::Instant;

use vmlane_port::PortId;

use super::{Entry, Switch};
use crate::impair::{Impairment, Line};
use crate::queue::{Change, Request};
use crate::shaping::Shaper;

impl Entry {
    /// Does no frame pass?
    pub(super) fn is_closed(&self) -> bool {
        self.down || self.cut
    }
}

impl Switch {
    /// Sets a port's link up or down. While it is down, no frame passes; what is attached stays, and is
    /// attached and detached as ever. False if there is no such port.
    pub fn set_link(&self, id: PortId, up: bool) -> bool {
        self.close(id, |entry| entry.down = !up)
    }

    /// Cuts the wire that a port is an end of, or joins it again: the same as [`Self::set_link`], and apart
    /// from it. Each end is cut for itself.
    pub fn set_cut(&self, id: PortId, cut: bool) -> bool {
        self.close(id, |entry| entry.cut = cut)
    }

    fn close(&self, id: PortId, change: impl FnOnce(&mut Entry)) -> bool {
        let _here = self.whose.read_recursive();
        let (spec, group, down) = {
            let mut ports = self.ports.lock();
            let Some(entry) = ports.get_mut(&id) else { return false };
            let before = entry.is_closed();
            change(entry);
            if entry.is_closed() == before {
                return true;
            }
            (entry.spec.clone(), entry.numbers.group, entry.is_closed())
        };
        let shaper = || Some(Box::new(Shaper::new(spec.traffic.shape, down, Instant::now())));
        self.ask_all(|_| Request::Of(id, Change::Update { spec: spec.clone(), group, shaper: shaper() }));
        true
    }

    /// Sets what happens to frames on their way to a port, which is to be a direct one. Fails if there is no
    /// memory for them.
    pub fn set_impairment(&self, id: PortId, impairment: Impairment) -> io::Result<()> {
        let _here = self.whose.read_recursive();
        let mut ports = self.ports.lock();
        let Some(entry) = ports.get_mut(&id).filter(|entry| entry.impairment != impairment) else {
            return Ok(());
        };
        // It may have one, which only its worker knows.
        let spare = (!impairment.is_none())
            .then(|| Line::new(impairment, id.0.into(), Instant::now()).map(Box::new))
            .transpose()?;
        entry.impairment = impairment;
        drop(ports);
        self.ask_port(id, Change::Impair(impairment, spare));
        Ok(())
    }

    /// The interface behind an uplink's port has a link, or has none: a team uses it, or another one; of one
    /// that is in no team, the network behind it is notified of all VMs when it has one again. Ports begin
    /// with one.
    pub fn set_carrier(&self, id: PortId, up: bool) {
        self.ask_all(|_| Request::Of(id, Change::Carrier(up)));
    }

    /// Calls `notify` at once, and whenever it changes, with the
    /// [`PortView::carrier`](crate::PortView::carrier) of a port. A worker calls it.
    pub fn follow_carrier(&self, id: PortId, notify: impl Fn(bool) + Send + Sync + 'static) {
        let state = self.ports.lock().get(&id).map(|entry| entry.state.clone());
        if let Some(state) = state {
            state.carrier.follow(Box::new(notify));
        }
    }

    /// Keeps a port from having any traffic, whatever is attached now or later, or lets it have some. What
    /// is attached is notified that it has failed, and dropped.
    pub fn shut_port(&self, id: PortId, shut: bool) {
        let _here = self.whose.read_recursive();
        if shut {
            self.retire(id);
        }
        self.ask_port(id, Change::Shut(shut));
    }
}
