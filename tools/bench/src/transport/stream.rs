//! Stream sockets of three families: `Conn` is an end of a connection, `Listener` accepts them.
//!
//! A connection's buffers are fixed before it exists: by the connecting socket before `connect`, by the
//! listener before `listen`. For VMCI that is the only moment (the ring is negotiated from the connecting
//! socket's size, limited by the listener's maximum), which is why every test gets a listener of its own.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::options::{BufferSizes, Buffers, CONNECT_TIMEOUT, PeerHost, retry, set_plain_buffers};
use super::{hint, host, tcp, unix, vsock};
use crate::address::{Address, CID_ANY, Family};
use crate::error::Error;
use crate::sys::{TcpState, VsockBuffer};

/// A time-out of zero would mean "for ever".
const SHORTEST: Duration = Duration::from_millis(10);
/// Bytes; every path of IPv4 carries as many (RFC 9293, 3.7.1).
const CONTROL_SEGMENT: u32 = 536;

pub struct Conn {
    end: End,
    family: Family,
}

enum End {
    Kernel(Socket),
    /// On a host whose daemon serves the VMs.
    Host(Box<vmlane_sock::Stream>),
}

impl Conn {
    pub fn connect(to: &Address, buffers: Buffers) -> Result<Conn, Error> {
        Conn::connect_until(to, buffers, None)
    }

    /// The same, but TCP waits until then at the longest; others give up within seconds by themselves.
    pub fn connect_until(to: &Address, buffers: Buffers, until: Option<Instant>) -> Result<Conn, Error> {
        Conn::open(to, buffers, None, until)
    }

    /// For control messages: their segments are so small, both ways, that they pass where large ones are
    /// lost.
    pub fn connect_control(to: &Address, until: Option<Instant>) -> Result<Conn, Error> {
        Conn::open(to, Buffers::default(), Some(CONTROL_SEGMENT), until)
    }

    fn open(
        to: &Address,
        buffers: Buffers,
        segment: Option<u32>,
        until: Option<Instant>,
    ) -> Result<Conn, Error> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()).max(SHORTEST));
        let timeout = left.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT);
        let connected = match to {
            Address::Tcp { host, port } => {
                tcp::connect(host, *port, buffers, segment, timeout).map(End::Kernel)
            }
            Address::Vsock { cid, port } => connect_vsock(*cid, *port, buffers),
            Address::Unix(path) => unix::connect(path, buffers).map(End::Kernel),
        };
        let end = connected.map_err(|cause| Error::Connect {
            address: to.to_string(),
            hint: hint::connect(to, &cause),
            cause,
        })?;
        Ok(Conn { end, family: to.family() })
    }

    pub fn set_nodelay(&self) -> io::Result<()> {
        match &self.end {
            End::Kernel(socket) if self.family == Family::Tcp => socket.set_tcp_nodelay(true),
            _ => Ok(()), // these never delay
        }
    }

    /// How long one read or write may block.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match &self.end {
            End::Kernel(socket) => {
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(timeout))
            }
            End::Host(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
        }
    }

    /// The calling thread uses no other file from now on, and does not close this one: calls are as quick as
    /// those of a process of one thread, if the kernel can do that.
    pub fn is_all_of_this_thread(&self) {
        if let End::Kernel(socket) = &self.end {
            let _ = crate::sys::keep_only(socket); // without, calls take a little longer
        }
    }

    /// Is there something to read, or the end? `polled`: what poll returned for the descriptor. To be asked
    /// before poll, too: a host socket's descriptor only carries signals.
    pub fn is_readable(&self, polled: bool) -> io::Result<bool> {
        match &self.end {
            End::Kernel(_) => Ok(polled),
            End::Host(stream) => stream.ready(),
        }
    }

    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.end {
            End::Kernel(socket) => retry(|| (&*socket).read(buffer)),
            End::Host(stream) => retry(|| (&**stream).read(buffer)),
        }
    }

    pub fn write(&self, buffer: &[u8]) -> io::Result<usize> {
        let written = match &self.end {
            End::Kernel(socket) => retry(|| (&*socket).write(buffer)),
            End::Host(stream) => retry(|| (&**stream).write(buffer)),
        };
        match written {
            Ok(0) if !buffer.is_empty() => Err(ErrorKind::WriteZero.into()),
            other => other,
        }
    }

    /// Sends what fits now; "would block" if that is nothing.
    pub fn try_write(&self, buffer: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let written = match &self.end {
            End::Kernel(socket) => retry(|| socket.send_with_flags(buffer, flags)),
            End::Host(stream) => retry(|| stream.try_write(buffer)),
        };
        match written {
            Ok(0) if !buffer.is_empty() => Err(ErrorKind::WriteZero.into()),
            other => other,
        }
    }

    pub fn write_all(&self, mut buffer: &[u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let sent = self.write(buffer)?;
            buffer = buffer.get(sent..).ok_or(ErrorKind::InvalidData)?;
        }
        Ok(())
    }

    /// Fills `buffer`; false when the peer had already finished cleanly, an error when it stopped half-way.
    pub fn read_full(&self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read(rest)? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(true)
    }

    pub fn finish_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    /// Wakes any thread that is blocked on this connection. An error means that it is already gone.
    pub fn hang_up(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.end {
            End::Kernel(socket) => socket.shutdown(how),
            End::Host(stream) => stream.shutdown(how),
        }
    }

    pub fn buffers(&self) -> io::Result<BufferSizes> {
        let size = match &self.end {
            End::Kernel(socket) if self.family == Family::Vsock => {
                crate::sys::vsock_option(socket, VsockBuffer::Size)?
            }
            End::Kernel(socket) => {
                let send = socket.send_buffer_size()? as u64;
                return Ok(BufferSizes { send, recv: socket.recv_buffer_size()? as u64 });
            }
            End::Host(stream) => stream.buffer_size(),
        };
        Ok(BufferSizes { send: size, recv: size })
    }

    /// None for sockets that are not TCP's.
    pub fn tcp_state(&self) -> Option<TcpState> {
        match &self.end {
            End::Kernel(socket) if self.family == Family::Tcp => crate::sys::tcp_info(socket).ok(),
            _ => None,
        }
    }

    /// Our address and the peer's, where the connection has such.
    pub fn ip_addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        let End::Kernel(socket) = &self.end else { return (None, None) };
        let ip = |address: io::Result<socket2::SockAddr>| {
            address.ok().and_then(|address| address.as_socket()).map(|address| address.ip().to_canonical())
        };
        (ip(socket.local_addr()), ip(socket.peer_addr()))
    }

    pub fn peer_host(&self) -> io::Result<PeerHost> {
        let socket = match &self.end {
            End::Kernel(socket) => socket,
            End::Host(stream) => return Ok(PeerHost::Cid(stream.peer_addr().cid)),
        };
        let address = socket.peer_addr()?;
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
            Error::Usage(format!(
                "data port (--data-port) {port}: {} ports end at {most}",
                control.family().name()
            ))
        };
        match control {
            Address::Tcp { .. } => {
                let local = match &self.end {
                    End::Kernel(socket) => {
                        socket.local_addr().map_err(Error::io("reading the local address"))?
                    }
                    End::Host(_) => return Err(Error::Usage(format!("{control} is no address of this end"))),
                };
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

fn numbered(path: &std::path::Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// By the daemon of this host, if there is one and it knows the CID; else by the kernel.
fn connect_vsock(cid: u32, port: u32, buffers: Buffers) -> io::Result<End> {
    let unknown = match host::connect(cid, port) {
        Some(Ok(stream)) => return Ok(End::Host(Box::new(stream))),
        Some(Err(error)) if error.raw_os_error() != Some(libc::ENODEV) => return Err(error),
        unknown => unknown,
    };
    let socket = vsock::connect(cid, port, buffers).map(End::Kernel);
    match (socket, unknown) {
        // Without the family the kernel's error is less precise than the daemon's.
        (Err(error), Some(Err(unknown))) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Err(unknown),
        (socket, _) => socket,
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.end {
            End::Kernel(socket) => socket.as_fd(),
            End::Host(stream) => stream.as_fd(),
        }
    }
}

pub struct Listener {
    accepting: Accepting,
    address: Address,
    buffers: Buffers,
}

enum Accepting {
    Kernel(Socket),
    Host(vmlane_sock::Listener),
}

impl Listener {
    pub fn bind(address: &Address, buffers: Buffers) -> Result<Listener, Error> {
        let bound = match address {
            Address::Tcp { host, port } => kernel(tcp::listen(host, *port, buffers)),
            Address::Vsock { cid, port } => listen_vsock(*cid, *port, buffers),
            Address::Unix(path) => kernel(unix::listen(path, buffers)),
        };
        let (accepting, address) = bound.map_err(|cause| Error::Listen {
            address: address.to_string(),
            hint: hint::listen(address, &cause),
            cause,
        })?;
        Ok(Listener { accepting, address, buffers })
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

    /// Waits at most `timeout` (a socket option: set once, not per call) for one connection.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match &self.accepting {
            Accepting::Kernel(socket) => socket.set_read_timeout(Some(timeout)),
            Accepting::Host(listener) => listener.set_timeout(Some(timeout)),
        }
    }

    pub fn accept(&self) -> io::Result<Conn> {
        let end = match &self.accepting {
            Accepting::Kernel(socket) => End::Kernel(retry(|| socket.accept())?.0),
            Accepting::Host(listener) => End::Host(Box::new(retry(|| listener.accept())?.0)),
        };
        if let (Family::Unix, End::Kernel(socket)) = (self.address.family(), &end) {
            set_plain_buffers(socket, self.buffers)?; // the others inherit theirs from the listener
        }
        Ok(Conn { end, family: self.address.family() })
    }
}

fn kernel(bound: io::Result<(Socket, Address)>) -> io::Result<(Accepting, Address)> {
    bound.map(|(socket, address)| (Accepting::Kernel(socket), address))
}

fn listen_vsock(cid: u32, port: u32, buffers: Buffers) -> io::Result<(Accepting, Address)> {
    let Some(listening) = host::listen(cid, port) else { return kernel(vsock::listen(cid, port, buffers)) };
    let listener = listening?;
    let address = Address::Vsock { cid, port: listener.local_addr().port };
    Ok((Accepting::Host(listener), address))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.accepting {
            Accepting::Kernel(socket) => socket.as_fd(),
            Accepting::Host(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path); // someone may have tidied up before us
        }
    }
}
