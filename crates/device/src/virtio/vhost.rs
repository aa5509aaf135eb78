//! What a vhost-user session asks of a device, and what it passes to it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmlane_mem::MemoryMap;
use vmlane_state::Found;

use super::log::DirtyLog;
use super::queue::Record;

/// A device behind vhost-user. One session at a time drives it.
pub trait VhostDevice: Send {
    /// Feature bits on offer; those of the transport (PROTOCOL_FEATURES) apart.
    fn features(&self) -> u64;

    /// Number of virtqueues, at most. It is what GET_QUEUE_NUM answers, of a network card, too: QEMU compares
    /// pairs with it, Cloud Hypervisor and User Mode Linux count the control queue.
    fn queues(&self) -> u16;

    /// The device's configuration space.
    fn config(&self) -> Vec<u8>;

    /// Sets the MTU that guests may use. False: not one that the device carries.
    fn set_mtu(&mut self, _mtu: u16) -> bool {
        false
    }

    /// The network is to learn where the device's address is, if it has one: its guest has come from another
    /// host.
    fn announce(&mut self) {}

    /// Runs exactly the rings of `setup` from now on. The device is stopped.
    fn run(&mut self, setup: Setup);

    /// Stops all rings. When it returns no thread uses guest memory any more, and each ring's
    /// position is where it came to.
    fn stop(&mut self);

    /// The VMM is gone, and its guest with it. The device is stopped.
    fn gone(&mut self) {}

    /// What of it outlives this process. None: nothing; its front ends connect to the next daemon by
    /// themselves.
    fn survival(&mut self) -> Option<&mut dyn VhostSurvives> {
        None
    }
}

/// A device whose session the next daemon continues.
pub trait VhostSurvives {
    /// Memory files that the next daemon's device needs, by name. Asked when a session begins, and again
    /// after [`VhostSurvives::abandon`].
    fn files(&self) -> Vec<(&'static str, OwnedFd)>;

    /// Continues with what a previous daemon's device had: its files, by name. Called before any thread of
    /// the device's session runs, so that all devices have done so before the first ring runs. An error: it
    /// is of no use, and [`VhostSurvives::abandon`] follows.
    fn adopt(&mut self, found: &mut Found) -> Result<(), String>;

    /// Nothing of a previous daemon's device is used: the device begins anew with fresh files, and its
    /// guest's connections end as soon as its rings run.
    fn abandon(&mut self);

    /// Where positions of the ring `ring` of `size` descriptors are noted. It has precedence over what the
    /// front end keeps (SET_INFLIGHT_FD).
    fn record(&self, ring: usize, size: u16) -> Option<Record>;
}

/// Everything a device needs to run.
#[derive(Debug)]
pub struct Setup {
    /// As negotiated.
    pub features: u64,
    pub memory: MemoryMap,
    /// By number; None: does not run.
    pub rings: Vec<Option<RingSetup>>,
    /// The rings ran in a previous daemon: their driver has not begun anew, wherever they are.
    pub resumed: bool,
}

/// A ring that is to run. Addresses are the guest's; nothing is checked yet.
#[derive(Clone, Debug)]
pub struct RingSetup {
    /// Descriptors; at least 1, at most [`vmlane_wire::virtio::MAX_RING`].
    pub size: u16,
    pub descriptors: u64,
    /// The driver's half: available ring, or its event suppression.
    pub driver: u64,
    /// The device's half: used ring, or its event suppression.
    pub device: u64,
    /// What SET_VRING_BASE and GET_VRING_BASE carry: where the next chain is taken from, and in packed
    /// rings (upper half) where the next completion goes.
    pub position: Arc<AtomicU32>,
    /// Where to note how far it came, should this process die.
    pub record: Option<Record>,
    /// Where to note which of the guest's pages are written.
    pub log: Option<DirtyLog>,
}

impl RingSetup {
    /// Has its driver only just begun to use it?
    pub fn is_at_start(&self) -> bool {
        self.position.load(Ordering::Acquire) as u16 & 0x7fff == 0
    }
}

/// The event fds of a device's rings, wherever they lead. Shared with workers.
pub trait Lines: Send + Sync {
    /// Notifies the guest of completions in `ring`.
    fn call(&self, ring: usize);

    /// May the guest sleep on after a call, as User Mode Linux does? Before it sleeps with interrupts off it
    /// checks for alarms, but for no other signal, so that one that came since is not seen before the next
    /// (`os_idle_sleep` in arch/um/os-Linux/time.c, up to 7.2 at least).
    fn may_lose_calls(&self) -> bool {
        false
    }

    /// Notifies the VMM that `ring` broke and stands still.
    fn fail(&self, ring: usize);

    /// Becomes readable when the guest announces something in any ring, until [`Self::clear`].
    fn doorbell(&self) -> Option<BorrowedFd<'_>>;

    fn clear(&self);
}

/// Lines that lead nowhere.
#[derive(Debug, Default)]
pub struct NoLines;

impl Lines for NoLines {
    fn call(&self, _: usize) {}

    fn fail(&self, _: usize) {}

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn clear(&self) {}
}
