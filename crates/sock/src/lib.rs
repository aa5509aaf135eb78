//! Host sockets: a process of the host talks to VMs by CID and port, through the daemon.

#[doc(hidden)]
pub mod ring;
