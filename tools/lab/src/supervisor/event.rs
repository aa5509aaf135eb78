//! Events that the threads of a supervisor send to its main thread.

use std::process::ExitStatus;
use std::sync::mpsc::Sender;

use crate::plan::{Reply, Request};

/// What the main thread reacts to.
pub enum Event {
    GuestUp,
    /// A QEMU ended; its process id.
    GuestEnded(u32, ExitStatus),
    DaemonEnded(ExitStatus),
    /// The daemon is to be there again.
    RestartDaemon {
        died: bool,
    },
    Request(Request, Sender<Reply>),
    /// A signal, or the starter went away.
    Stop(&'static str),
    /// The starter lets the lab live on its own.
    Detached,
}
