//! A vhost-user back end as an uplink: Open vSwitch with DPDK, VPP, or another vmlane. This end is the driver
//! of a virtio NIC ("virtio-user"); the back end maps the memory that holds its rings and buffers.
//!
//! | file | what |
//! | --- | --- |
//! | `session.rs` | the thread that gets a connection, waits for its end, and gets the next one |
//! | `listening.rs` | sockets where the peer connects, where it is not the one that listens |
//! | `front.rs` | the messages by which a connection is set up |
//! | `port.rs` | the rings as a port of the switch |
//! | `incoming.rs`, `outgoing.rs` | frames from the peer and to it |
//! | `ring.rs`, `memory.rs` | a split ring from the driver's side, and the memory that it is in |
//!
//! The peer is not trusted. It can write to all of that memory at any time, so only what it has to write is
//! read, once, and checked. A peer that breaks a rule loses its connection, and gets another one after a
//! pause. See docs/decisions/0015-vhost-user-uplinks.md.

mod front;
mod incoming;
mod listening;
mod memory;
mod outgoing;
mod port;
mod ring;
mod session;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

pub use self::front::FrontError;
pub use self::listening::{Entrance, ListenError, SocketFile, SocketName, listen, listen_with};
pub use self::session::{Connect, Peers, VhostUser};

/// Bytes of the header in front of each frame (`struct virtio_net_hdr_v1`).
const HEADER: usize = 12;

/// Connects to the socket at `path` without waiting.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
