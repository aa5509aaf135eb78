//! Stream sockets of three families behind one face: `Conn` for an end, `Listener` for a door.
//!
//! A connection's buffers are fixed before it exists: by the connecting socket before `connect`, by the
//! listener before `listen`. For VMCI that is the only moment (the ring is negotiated from the connecting
//! socket's size, limited by the listener's maximum), which is why every test gets a listener of its own.

mod datagram;
mod hint;
mod tcp;
mod unix;
mod vsock;

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use socket2::Socket;

pub use self::datagram::{DatagramConn, Sent};
use crate::address::{Address, CID_ANY, Family};
use crate::client::IpVersion;
use crate::error::Error;
use crate::sys::{TcpState, VsockBuffer};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const BACKLOG: i32 = 512;

/// Socket buffer wishes of one end. `maximum` is the most the peer may want: only vsock needs to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    pub size: Option<u64>,
    pub maximum: Option<u64>,
}

/// What the kernel says it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    pub send: u64,
    pub recv: u64,
}

/// Who is at the other end, as far as the family can tell: a data connection must come from the same.
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

pub struct Conn {
    socket: Socket,
    family: Family,
}

impl Conn {
    pub fn connect(to: &Address, buffers: Buffers) -> Result<Conn, Error> {
        let connected = match to {
            Address::Tcp { host, port } => tcp::connect(host, *port, buffers),
            Address::Vsock { cid, port } => vsock::connect(*cid, *port, buffers),
            Address::Unix(path) => unix::connect(path, buffers),
        };
        let socket = connected.map_err(|cause| Error::Connect {
            address: to.to_string(),
            hint: hint::connect(to, &cause),
            cause,
        })?;
        Ok(Conn { socket, family: to.family() })
    }

    pub fn set_nodelay(&self) -> io::Result<()> {
        match self.family {
            Family::Tcp => self.socket.set_tcp_nodelay(true),
            Family::Vsock | Family::Unix => Ok(()), // these never delay
        }
    }

    /// How long one read or write may block.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(patience))?;
        self.socket.set_write_timeout(Some(patience))
    }

    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| (&self.socket).read(buffer))
    }

    pub fn write(&self, buffer: &[u8]) -> io::Result<usize> {
        match retry(|| (&self.socket).write(buffer)) {
            Ok(0) if !buffer.is_empty() => Err(ErrorKind::WriteZero.into()),
            other => other,
        }
    }

    /// Sends what fits now; "would block" if that is nothing.
    pub fn try_write(&self, buffer: &[u8]) -> io::Result<usize> {
        match retry(|| self.socket.send_with_flags(buffer, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)) {
            Ok(0) if !buffer.is_empty() => Err(ErrorKind::WriteZero.into()),
            other => other,
        }
    }

    pub fn write_all(&self, mut buffer: &[u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let sent = self.write(buffer)?;
            buffer = &buffer[sent..];
        }
        Ok(())
    }

    /// Fills `buffer`; false when the peer had already finished cleanly, an error when it stopped half-way.
    pub fn read_full(&self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(true)
    }

    pub fn finish_sending(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Wakes whoever is blocked on this connection. An error means that it is already gone.
    pub fn hang_up(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub fn buffers(&self) -> io::Result<BufferSizes> {
        if self.family == Family::Vsock {
            let size = crate::sys::vsock_option(&self.socket, VsockBuffer::Size)?;
            return Ok(BufferSizes { send: size, recv: size });
        }
        let send = self.socket.send_buffer_size()? as u64;
        Ok(BufferSizes { send, recv: self.socket.recv_buffer_size()? as u64 })
    }

    /// None for sockets that are not TCP's.
    pub fn tcp_state(&self) -> Option<TcpState> {
        (self.family == Family::Tcp).then(|| crate::sys::tcp_info(&self.socket).ok()).flatten()
    }

    pub fn peer_host(&self) -> io::Result<PeerHost> {
        let address = self.socket.peer_addr()?;
        Ok(match (address.as_socket(), address.as_vsock_address()) {
            (Some(ip), _) => PeerHost::Ip(ip.ip().to_canonical()),
            (_, Some((cid, _))) => PeerHost::Cid(cid),
            _ => PeerHost::Same,
        })
    }

    /// Where a data listener belongs for the client at the other end of this control connection, which
    /// came in at `control`. Port 0 lets the kernel choose.
    pub fn data_address(&self, control: &Address, port: u32) -> Result<Address, Error> {
        let no_port = |most: u64| {
            Error::Usage(format!("data port (-P) {port}: {} ports end at {most}", control.family().name()))
        };
        match control {
            Address::Tcp { .. } => {
                let local = self.socket.local_addr().map_err(Error::io("reading the local address"))?;
                let host = local.as_socket().map(|ip| ip.ip().to_string()).unwrap_or_default();
                Ok(Address::Tcp { host, port: port.try_into().map_err(|_| no_port(65535))? })
            }
            Address::Vsock { .. } if port == u32::MAX => Err(no_port(u64::from(u32::MAX) - 1)),
            // 0 is a port of its own in vsock; VMADDR_PORT_ANY asks for a free one.
            Address::Vsock { .. } => {
                Ok(Address::Vsock { cid: CID_ANY, port: if port == 0 { u32::MAX } else { port } })
            }
            Address::Unix(path) => {
                static NEXT: AtomicU32 = AtomicU32::new(1);
                let number = if port == 0 { NEXT.fetch_add(1, Ordering::Relaxed) } else { port };
                Ok(Address::Unix(numbered(path, number)))
            }
        }
    }
}

/// The data address the server announced, seen from the client that reached it at `control`.
pub fn announced(control: &Address, port: u32) -> Address {
    match control {
        Address::Tcp { host, .. } => Address::Tcp { host: host.clone(), port: port as u16 },
        Address::Vsock { cid, .. } => Address::Vsock { cid: *cid, port },
        Address::Unix(path) => Address::Unix(numbered(path, port)),
    }
}

/// The address with its host's name resolved to this version of IP.
pub fn only(address: &Address, version: IpVersion) -> Result<Address, Error> {
    let Address::Tcp { host, port } = address else {
        return Err(Error::Usage(format!("{address}: -4 and -6 are for tcp: and udp:")));
    };
    let all = tcp::resolve(host, *port).map_err(|cause| Error::Connect {
        address: address.to_string(),
        hint: String::new(),
        cause,
    })?;
    let fits = all.into_iter().find(|ip| ip.is_ipv4() == (version == IpVersion::V4));
    let ip = fits.ok_or_else(|| {
        let version = if version == IpVersion::V4 { "IPv4" } else { "IPv6" };
        Error::Usage(format!("{address} has no {version} address: leave -4 or -6 out"))
    })?;
    Ok(Address::Tcp { host: ip.ip().to_string(), port: *port })
}

fn numbered(path: &std::path::Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub struct Listener {
    socket: Socket,
    address: Address,
    buffers: Buffers,
}

impl Listener {
    pub fn bind(address: &Address, buffers: Buffers) -> Result<Listener, Error> {
        let bound = match address {
            Address::Tcp { host, port } => tcp::listen(host, *port, buffers),
            Address::Vsock { cid, port } => vsock::listen(*cid, *port, buffers),
            Address::Unix(path) => unix::listen(path, buffers),
        };
        let (socket, address) = bound.map_err(|cause| Error::Listen {
            address: address.to_string(),
            hint: hint::listen(address, &cause),
            cause,
        })?;
        Ok(Listener { socket, address, buffers })
    }

    /// Where it really listens, the port chosen by the kernel included.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The number a client needs to find this listener: see `announced`.
    pub fn number(&self) -> u32 {
        match &self.address {
            Address::Tcp { port, .. } => (*port).into(),
            Address::Vsock { port, .. } => *port,
            Address::Unix(path) => path
                .extension()
                .and_then(|number| number.to_str())
                .and_then(|number| number.parse().ok())
                .unwrap_or(0),
        }
    }

    /// Waits at most `patience` (a socket option: set once, not per call) for one connection.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(patience))
    }

    pub fn accept(&self) -> io::Result<Conn> {
        let (socket, _) = retry(|| self.socket.accept())?;
        if self.address.family() == Family::Unix {
            set_plain_buffers(&socket, self.buffers)?; // the others inherit theirs from the listener
        }
        Ok(Conn { socket, family: self.address.family() })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path); // someone may have tidied up before us
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether an error only says that the socket's patience ran out.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// SO_SNDBUF and SO_RCVBUF. The ordinary call is capped by net.core.[rw]mem_max without a word; the
/// forced one is not, but needs a privilege that a guest's root has.
fn set_plain_buffers(socket: &Socket, buffers: Buffers) -> io::Result<()> {
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
