//! Datagram sockets, UDP and vsock: one a session, connected to its peer.
//!
//! The server's are bound first and learn who their client is from its hello, which carries the test's token.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Socket, Type};

use super::options::{BufferSizes, Buffers, PeerHost, is_timeout, retry, set_plain_buffers};
use super::{host, tcp};
use crate::address::Address;
use crate::datagrams::{HEADER, Header, Phase};
use crate::error::Error;
use crate::sys::{receive_from, vsock_address};

/// The longest datagram.
const LONGEST: usize = 1 << 16;

pub struct DatagramConn {
    end: End,
    /// For those who check the sender of a datagram.
    pub token: u32,
    /// What does not fit counts as sent, and is lost.
    dont_fragment: AtomicBool,
}

enum End {
    Kernel(Socket),
    /// On a host whose daemon serves the VMs; with the peer once it is known.
    Host(vmlane_sock::Datagram, OnceLock<vmlane_sock::Address>),
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Yes,
    /// The kernel's queue, or the peer's, has no room now.
    Refused,
}

impl DatagramConn {
    /// The client's end, towards a port that the server announced.
    pub fn connect(to: &Address, buffers: Buffers, token: u32) -> Result<DatagramConn, Error> {
        let connected = match to {
            Address::Tcp { host, port } => tcp::resolve(host, *port).and_then(|addresses| {
                let address = addresses.into_iter().next().ok_or_else(tcp::no_address)?;
                let socket = plain(Domain::for_address(address), buffers)?;
                socket.connect(&address.into())?;
                Ok(End::Kernel(socket))
            }),
            Address::Vsock { cid, port } => bind_vsock(u32::MAX, buffers).and_then(|end| {
                match &end {
                    End::Kernel(socket) => socket.connect(&vsock_address(*cid, *port, 0))?,
                    End::Host(_, peer) => drop(peer.set(host::address((*cid, *port)))),
                }
                Ok(end)
            }),
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        let end = connected.map_err(|cause| Error::Connect {
            address: to.to_string(),
            hint: String::new(),
            cause,
        })?;
        Ok(DatagramConn { end, token, dont_fragment: AtomicBool::new(false) })
    }

    /// The server's end, still without a peer; and its port. Port 0 (for vsock `u32::MAX`) lets the kernel
    /// choose.
    pub fn bind(at: &Address, buffers: Buffers, token: u32) -> Result<(DatagramConn, u32), Error> {
        let bound = match at {
            Address::Tcp { host, port } => tcp::resolve(host, *port).and_then(|addresses| {
                let address = addresses.into_iter().next().ok_or_else(tcp::no_address)?;
                let socket = plain(Domain::for_address(address), buffers)?;
                socket.bind(&address.into())?;
                let port = socket.local_addr()?.as_socket().map_or(*port, |local| local.port());
                Ok((End::Kernel(socket), port.into()))
            }),
            Address::Vsock { port, .. } => bind_vsock(*port, buffers).and_then(|end| {
                let port = match &end {
                    End::Kernel(socket) => {
                        socket.local_addr()?.as_vsock_address().map_or(*port, |(_, port)| port)
                    }
                    End::Host(socket, _) => socket.local_addr().port,
                };
                Ok((end, port))
            }),
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        let (end, port) =
            bound.map_err(|cause| Error::Listen { address: at.to_string(), hint: "", cause })?;
        Ok((DatagramConn { end, token, dont_fragment: AtomicBool::new(false) }, port))
    }

    /// What does not fit the path is lost from here on, not fragmented.
    pub fn set_dont_fragment(&self) -> io::Result<()> {
        self.dont_fragment.store(true, Ordering::Relaxed);
        match &self.end {
            End::Kernel(socket) => match socket.local_addr()?.as_socket() {
                Some(local) => crate::sys::set_dont_fragment(socket, local.is_ipv6()),
                None => Ok(()), // vsock has no fragments
            },
            End::Host(..) => Ok(()),
        }
    }

    /// A router's word that a datagram did not fit comes as an error of a later send.
    fn loses(&self, error: &io::Error) -> bool {
        self.dont_fragment.load(Ordering::Relaxed) && error.raw_os_error() == Some(libc::EMSGSIZE)
    }

    /// Waits until `deadline` for the hello of a client on `host`; from then on its peer. False: none came.
    pub fn wait_for_hello(&self, host: PeerHost, deadline: Instant) -> io::Result<bool> {
        let mut buffer = [0; HEADER];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.set_timeout(left)?;
            let (count, from) = match retry(|| self.receive_from(&mut buffer)) {
                Ok(got) => got,
                Err(error) if is_timeout(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            let hello = buffer.get(..count).and_then(|datagram| Header::parse(datagram, self.token));
            let hello = hello.is_some_and(|header| header.phase == Phase::Hello);
            if hello && from.host() == Some(host) {
                match (from, &self.end) {
                    (From::Kernel(from), End::Kernel(socket)) => socket.connect(&from)?,
                    (From::Host(from), End::Host(_, peer)) => drop(peer.set(from)),
                    _ => {}
                }
                return Ok(true);
            }
        }
    }

    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, From)> {
        match &self.end {
            End::Kernel(socket) => receive_from(socket, buffer).map(|(len, from)| (len, From::Kernel(from))),
            End::Host(socket, _) => socket.recv_from(buffer).map(|(len, from)| (len, From::Host(from))),
        }
    }

    /// How long one receive or send may block.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        // Zero would mean "for ever", and the kernel counts in jiffies.
        let timeout = Some(timeout.max(Duration::from_millis(10)));
        match &self.end {
            End::Kernel(socket) => {
                socket.set_read_timeout(timeout)?;
                socket.set_write_timeout(timeout)
            }
            End::Host(socket, _) => socket.set_timeouts(timeout),
        }
    }

    pub fn send(&self, datagram: &[u8]) -> io::Result<Sent> {
        let sent = match &self.end {
            End::Kernel(socket) => retry(|| (&*socket).write(datagram)),
            End::Host(socket, peer) => match peer.get() {
                Some(peer) => retry(|| socket.send_to(datagram, *peer)),
                None => Err(io::ErrorKind::NotConnected.into()),
            },
        };
        match sent {
            Ok(_) => Ok(Sent::Yes),
            Err(error) if is_full(&error) => Ok(Sent::Refused),
            Err(error) if self.loses(&error) => Ok(Sent::Yes),
            Err(error) => Err(error),
        }
    }

    /// Bytes of the next datagram, cut to the buffer; None: none within the timeout.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let got = match &self.end {
            End::Kernel(socket) => (&*socket).read(buffer),
            End::Host(socket, peer) => match socket.recv_from(buffer) {
                // A stranger's is none for us.
                Ok((_, from)) if peer.get().is_some_and(|peer| *peer != from) => return Ok(Some(0)),
                got => got.map(|(count, _)| count),
            },
        };
        match got {
            Ok(count) => Ok(Some(count)),
            Err(error) if is_timeout(&error) || self.loses(&error) => Ok(None),
            // By a signal, or because the process was stopped for a while: waiting anew each time might never
            // come to an end.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            // The peer's machine reports that no program listens (any more): the same as silence.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits a moment for room to send.
    pub fn wait_for_room(&self) {
        let moment = Timespec { tv_sec: 0, tv_nsec: 100_000 };
        let fd = match &self.end {
            End::Kernel(socket) => socket.as_fd(),
            End::Host(socket, _) => socket.as_fd(),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        let ready = poll(&mut fds, Some(&moment)).unwrap_or(0);
        if ready > 0 {
            // It is writable, but the queue that was full is another one (a driver's, or the peer's).
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    pub fn buffers(&self) -> io::Result<BufferSizes> {
        let fd = match &self.end {
            End::Kernel(socket) => socket.as_fd(),
            End::Host(socket, _) => socket.as_fd(),
        };
        let send = rustix::net::sockopt::socket_send_buffer_size(fd)? as u64;
        Ok(BufferSizes { send, recv: rustix::net::sockopt::socket_recv_buffer_size(fd)? as u64 })
    }

    /// A buffer for any datagram of this many bytes.
    pub fn room(bytes: u64) -> Vec<u8> {
        vec![0; usize::try_from(bytes).unwrap_or(LONGEST).clamp(HEADER, LONGEST)]
    }
}

fn plain(domain: Domain, buffers: Buffers) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    set_plain_buffers(&socket, buffers)?;
    Ok(socket)
}

/// By the daemon of this host, if there is one; else by the kernel.
fn bind_vsock(port: u32, buffers: Buffers) -> io::Result<End> {
    if let Some(bound) = host::datagram(port) {
        return bound.map(|socket| End::Host(socket, OnceLock::new()));
    }
    let socket = plain(Domain::VSOCK, buffers)?;
    socket.bind(&vsock_address(u32::MAX, port, 0))?;
    Ok(End::Kernel(socket))
}

/// Who sent a datagram.
enum From {
    Kernel(SockAddr),
    Host(vmlane_sock::Address),
}

impl From {
    fn host(&self) -> Option<PeerHost> {
        match self {
            From::Kernel(from) => match (from.as_socket(), from.as_vsock_address()) {
                (Some(ip), _) => Some(PeerHost::Ip(ip.ip().to_canonical())),
                (_, Some((cid, _))) => Some(PeerHost::Cid(cid)),
                _ => None,
            },
            From::Host(from) => Some(PeerHost::Cid(from.cid)),
        }
    }
}

/// A queue on the way is full: try again.
fn is_full(error: &io::Error) -> bool {
    is_timeout(error)
        || matches!(
            error.raw_os_error(),
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN | libc::ECONNREFUSED)
        )
}
