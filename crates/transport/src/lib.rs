//! How a VMM reaches a device: a vfio-user server that serves PCI functions, one session a VMM.
//!
//! A session owns nothing but its socket and the memory map; it borrows the device. What a guest does
//! can produce error answers and a device reset, never a closed socket: a VMM does not reconnect, and
//! a guest whose register access is not answered spins for ever.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod event_fd;
mod fds;
mod handle;
pub mod irq;
mod kept;
pub mod listener;
pub mod stats;
pub mod vfio_user;
pub mod vhost_user;
mod waker;

pub use event_fd::{EventFd, Owner as EventFdOwner, prepare};
pub use irq::IrqSet;
pub use listener::{Caller, ListenError, Listener, Server, VhostEnd};
pub use stats::SessionStats;
pub use vfio_user::{Session, SessionEnd, SessionHandle};
pub use vhost_user::RingLines;
pub use vmlane_state::Scope;
