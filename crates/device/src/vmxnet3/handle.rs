//! A NIC as its operator sees it: its link, its counters, what its guest has made of it. Outlives
//! the sessions that drive the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::event;
use vmlane_wire::vmxnet3::shared::at;

use super::activate::RefusedActivation;
use super::port::counters;
use super::setup::Shared;
use super::stats::NicStats;

/// Shared between the session that drives a NIC and the code that manages it.
#[derive(Debug)]
pub struct NicHandle {
    pub stats: NicStats,
    /// The NIC is out of service: it answers like one whose driver has not come yet, and does nothing.
    quarantined: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// As the operator set it.
    up: bool,
    /// Something is at the other end of the cable, if it has one.
    carrier: bool,
    view: NicView,
    active: Option<Running>,
}

/// An active NIC's shared area, and where in it the interrupt control word lies.
#[derive(Clone, Debug)]
pub struct Running {
    pub shared: Arc<Shared>,
    pub control: usize,
}

impl State {
    fn is_link_up(&self) -> bool {
        self.up && self.carrier
    }
}

impl Running {
    /// Raises events and, if it may, the interrupt.
    pub fn raise(&self, events: u32) {
        self.shared.area.set_bits_u32(at::EVENTS, events);
        self.shared.vectors.publish(self.shared.event_vector, self.control_word());
    }

    pub fn control_word(&self) -> u32 {
        self.shared.area.load_u32(self.control)
    }
}

/// What a guest has made of its NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicView {
    pub active: bool,
    /// Revision its driver chose; None: no driver was there yet.
    pub revision: Option<u8>,
    /// The address in force.
    pub mac: Mac,
    /// Of the last activation.
    pub mtu: u16,
    pub tx_queues: u8,
    pub rx_queues: u8,
    /// Why the last attempt to activate failed, if it did.
    pub refused: Option<RefusedActivation>,
}

impl Default for NicHandle {
    fn default() -> NicHandle {
        NicHandle::counting(NicStats::default())
    }
}

impl NicHandle {
    /// Of a NIC that counts in `stats`.
    pub fn counting(stats: NicStats) -> NicHandle {
        let state = State { up: true, carrier: true, view: NicView::default(), active: None };
        NicHandle { stats, quarantined: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Sets the link up or down and notifies the guest. Which frames still pass is not decided here.
    pub fn set_link(&self, up: bool) {
        self.change_link(|state| state.up = up);
    }

    /// The same for the other end of its cable: the guest has a link while both are up.
    pub fn set_carrier(&self, up: bool) {
        self.change_link(|state| state.carrier = up);
    }

    fn change_link(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        let before = state.is_link_up();
        change(&mut state);
        if state.is_link_up() == before {
            return;
        }
        self.stats.link_changes.inc();
        // Under the lock: a session that lets go of the memory waits until this is done.
        if let Some(running) = &state.active {
            running.raise(event::LINK);
        }
    }

    pub fn is_link_up(&self) -> bool {
        self.state.lock().is_link_up()
    }

    /// Takes the NIC out of service, or back into it: the driver must then set it up again. Frames stop
    /// when its port of the switch is blocked, too.
    pub fn set_quarantined(&self, on: bool) {
        self.quarantined.store(on, Ordering::Release);
    }

    pub fn is_quarantined(&self) -> bool {
        self.quarantined.load(Ordering::Acquire)
    }

    /// Counters of each pair of queues by name, since the driver activated the NIC; nothing while it is not
    /// active.
    pub fn queues(&self) -> Vec<Vec<(&'static str, u64)>> {
        let Some(Running { shared, .. }) = self.state.lock().active.clone() else { return Vec::new() };
        let pairs = shared.tx_stats.len().max(shared.rx_stats.len());
        let queue = |number: usize| {
            let tx = shared.tx_stats.get(number).map(counters::tx_totals);
            let rx = shared.rx_stats.get(number).map(counters::rx_totals);
            tx.into_iter().flatten().chain(rx.into_iter().flatten()).collect()
        };
        (0..pairs).map(queue).collect()
    }

    pub fn view(&self) -> NicView {
        self.state.lock().view
    }

    pub(super) fn set_identity(&self, revision: Option<u8>, mac: Mac) {
        let view = &mut self.state.lock().view;
        (view.revision, view.mac) = (revision, mac);
    }

    pub(super) fn activated(&self, running: Running, mtu: u16) {
        let mut state = self.state.lock();
        let (tx, rx) = (running.shared.tx_stats.len(), running.shared.rx_stats.len());
        let NicView { revision, mac, .. } = state.view;
        state.view = NicView {
            active: true,
            revision,
            mac,
            mtu,
            tx_queues: tx as u8,
            rx_queues: rx as u8,
            refused: None,
        };
        state.active = Some(running);
    }

    pub(super) fn refused(&self, refused: RefusedActivation) {
        self.state.lock().view.refused = Some(refused);
    }

    /// When this returns, the handle touches no guest memory any more.
    pub(super) fn quiesced(&self) {
        let mut state = self.state.lock();
        state.view.active = false;
        state.active = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_up_while_neither_end_has_it_down() {
        let handle = NicHandle::default();
        for (up, carrier, changes) in
            [(true, true, 0), (true, false, 1), (false, false, 1), (false, true, 1), (true, true, 2)]
        {
            handle.set_carrier(carrier);
            handle.set_link(up);
            assert_eq!(handle.is_link_up(), up && carrier);
            assert_eq!(handle.stats.link_changes.get(), changes);
        }
    }
}
