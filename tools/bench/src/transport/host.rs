//! vsock on a host whose daemon serves its VMs: no kernel module, the ends are host sockets.

use std::io;
use std::time::Duration;

use vmlane_sock::{ANY, Address, Datagram, Host, Listener, Stream};

use crate::address::CID_ANY;

/// The first CID that names a VM.
pub const FIRST_GUEST: u32 = 3;
const CID_HOST: u32 = 2;
/// As long as a TCP client waits.
const CONNECT: Duration = super::options::CONNECT_TIMEOUT;

/// The daemon of this machine, if there is one. In guests there is none.
fn daemon() -> Option<Host> {
    let host = Host::default();
    host.is_there().then_some(host)
}

/// Connects to a VM of the daemon; None: that is left to the kernel.
pub fn connect(cid: u32, port: u32) -> Option<io::Result<Stream>> {
    let host = daemon().filter(|_| cid >= FIRST_GUEST)?;
    Some(Stream::connect_by(&host, cid, port, CONNECT))
}

/// Listens for VMs of the daemon; None: that is left to the kernel.
pub fn listen(cid: u32, port: u32) -> Option<io::Result<Listener>> {
    let host = daemon().filter(|_| cid == CID_ANY || cid == CID_HOST)?;
    Some(Listener::bind_by(&host, port))
}

/// A datagram socket at a port, or at any (`u32::MAX`).
pub fn datagram(port: u32) -> Option<io::Result<Datagram>> {
    let host = daemon()?;
    Some(Datagram::bind_by(&host, if port == u32::MAX { ANY } else { port }))
}

/// Where a datagram goes.
pub fn address((cid, port): (u32, u32)) -> Address {
    Address { cid, port }
}
