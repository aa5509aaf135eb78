//! What sockets of all kinds have in common: buffers, time limits, who is at the other end.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;

use socket2::Socket;

/// As long as a TCP client waits.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub const BACKLOG: i32 = 512;

/// The socket buffers that one end asks for. `maximum` is the most that the peer may ask for; only vsock
/// needs it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    pub size: Option<u64>,
    pub maximum: Option<u64>,
}

/// What the kernel reports that it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    pub send: u64,
    pub recv: u64,
}

/// Who is at the other end, as far as the family shows it: a data connection must come from the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerHost {
    Ip(IpAddr),
    Cid(u32),
    Same,
}

impl fmt::Display for PeerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerHost::Ip(ip) => write!(f, "{ip}"),
            PeerHost::Cid(cid) => write!(f, "CID {cid}"),
            PeerHost::Same => f.write_str("of this machine"),
        }
    }
}

/// Repeats a system call that a signal interrupted.
pub fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether an error only means that the socket's timeout has passed.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// SO_SNDBUF and SO_RCVBUF. The ordinary call is capped by net.core.[rw]mem_max without a word; the
/// forced one is not, but needs a privilege that a guest's root has.
pub fn set_plain_buffers(socket: &Socket, buffers: Buffers) -> io::Result<()> {
    let Some(size) = buffers.size else { return Ok(()) };
    let size = size.min(i32::MAX as u64 / 2) as usize; // the kernel doubles an int
    socket.set_send_buffer_size(size)?;
    socket.set_recv_buffer_size(size)?;
    if socket.send_buffer_size()? < size * 2 {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(socket, size);
    }
    if socket.recv_buffer_size()? < size * 2 {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, size);
    }
    Ok(())
}
