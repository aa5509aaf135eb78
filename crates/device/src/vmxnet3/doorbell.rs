//! What wakes the worker of a NIC whose driver rings in the page that is trapped.
//!
//! BAR 0 of such a NIC has two pages. The masks are in the first one, which the VMM maps: changing them costs
//! no exit. The doorbells of a driver that was granted [`capability::LARGE_BAR`] are in the second one, which
//! is trapped. It rings only if `txThreshold` allows it, so while the worker is awake there are no exits
//! either: the guest pays for what it sends from the end of a sleep until the worker has run.
//!
//! [`capability::LARGE_BAR`]: vmlane_wire::vmxnet3::regs::capability::LARGE_BAR

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use vmlane_mem::Window;
use vmlane_wire::vmxnet3::regs::PageReg;

/// The doorbell of an active NIC. The session rings it, the worker sleeps on its file.
#[derive(Debug)]
pub struct Doorbell {
    file: OwnedFd,
    /// BAR 0.
    page: Arc<Window>,
    queues: u8,
}

impl Doorbell {
    /// Of a NIC with so many transmit queues. Fails if the process has no descriptor to spare.
    pub fn new(page: Arc<Window>, queues: u8) -> io::Result<Doorbell> {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { file, page, queues })
    }

    /// The driver has sent.
    pub fn ring(&self) {
        // Fails only when the counter is full: then it is readable, too.
        let _ = rustix::io::write(&self.file, &1u64.to_ne_bytes());
    }

    /// Makes its file unreadable.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.file, &mut [0; 8]);
    }

    /// Has this driver ever rung in the mapped page, where no one is notified of it? Linux does for frames
    /// that an XDP program sends.
    pub fn is_bypassed(&self) -> bool {
        self.mapped().any(|at| self.page.load_u32(at) != 0)
    }

    /// An activation begins: what its driver rang before does not count.
    pub fn clear_mapped(&self) {
        self.mapped().for_each(|at| self.page.store_u32(at, 0));
    }

    fn mapped(&self) -> impl Iterator<Item = usize> {
        (0..self.queues).map(|queue| PageReg::TxProducer(queue).offset() as usize)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
