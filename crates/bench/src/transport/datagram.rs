//! Datagram sockets, UDP and vsock: one a session, connected to its peer.
//!
//! The server's are bound first and learn who their client is from its hello, which carries the test's token.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};

use super::{Buffers, PeerHost, is_timeout, retry, set_plain_buffers, tcp};
use crate::address::Address;
use crate::datagrams::{HEADER, Header, Phase};
use crate::error::Error;
use crate::sys::{receive_from, vsock_address};

/// The longest datagram.
const LONGEST: usize = 1 << 16;

pub struct DatagramConn {
    socket: Socket,
    /// Told to those who look at strangers.
    pub token: u32,
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
                let address = addresses.into_iter().next().ok_or_else(tcp::nobody)?;
                let socket = plain(Domain::for_address(address), buffers)?;
                socket.connect(&address.into())?;
                Ok(socket)
            }),
            Address::Vsock { cid, port } => bind_vsock(u32::MAX, buffers).and_then(|socket| {
                socket.connect(&vsock_address(*cid, *port, 0))?;
                Ok(socket)
            }),
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        let socket = connected.map_err(|cause| Error::Connect {
            address: to.to_string(),
            hint: String::new(),
            cause,
        })?;
        Ok(DatagramConn { socket, token })
    }

    /// The server's end, still without a peer; and its port. Port 0 (for vsock `u32::MAX`) lets the kernel choose.
    pub fn bind(at: &Address, buffers: Buffers, token: u32) -> Result<(DatagramConn, u32), Error> {
        let bound = match at {
            Address::Tcp { host, port } => tcp::resolve(host, *port).and_then(|addresses| {
                let address = addresses.into_iter().next().ok_or_else(tcp::nobody)?;
                let socket = plain(Domain::for_address(address), buffers)?;
                socket.bind(&address.into())?;
                let port = socket.local_addr()?.as_socket().map_or(*port, |local| local.port());
                Ok((socket, port.into()))
            }),
            Address::Vsock { port, .. } => bind_vsock(*port, buffers).and_then(|socket| {
                let port = socket.local_addr()?.as_vsock_address().map_or(*port, |(_, port)| port);
                Ok((socket, port))
            }),
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        let (socket, port) =
            bound.map_err(|cause| Error::Listen { address: at.to_string(), hint: "", cause })?;
        Ok((DatagramConn { socket, token }, port))
    }

    /// Waits until `deadline` for the hello of a client on `host`; from then on its peer. False: none came.
    pub fn meet(&self, host: PeerHost, deadline: Instant) -> io::Result<bool> {
        let mut buffer = [0; HEADER];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.set_patience(left)?;
            let (count, from) = match retry(|| receive_from(&self.socket, &mut buffer)) {
                Ok(got) => got,
                Err(error) if is_timeout(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            let hello = Header::parse(&buffer[..count], self.token);
            let hello = hello.is_some_and(|header| header.phase == Phase::Hello);
            let theirs = match (from.as_socket(), from.as_vsock_address()) {
                (Some(ip), _) => Some(PeerHost::Ip(ip.ip().to_canonical())),
                (_, Some((cid, _))) => Some(PeerHost::Cid(cid)),
                _ => None,
            };
            if hello && theirs == Some(host) {
                self.socket.connect(&from)?;
                return Ok(true);
            }
        }
    }

    /// How long one receive or send may block.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        // Zero would mean "for ever", and the kernel counts in jiffies.
        let patience = Some(patience.max(Duration::from_millis(10)));
        self.socket.set_read_timeout(patience)?;
        self.socket.set_write_timeout(patience)
    }

    pub fn send(&self, datagram: &[u8]) -> io::Result<Sent> {
        match retry(|| (&self.socket).write(datagram)) {
            Ok(_) => Ok(Sent::Yes),
            Err(error) if is_full(&error) => Ok(Sent::Refused),
            Err(error) => Err(error),
        }
    }

    /// Bytes of the next datagram, cut to the buffer; None: none within the patience.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match retry(|| (&self.socket).read(buffer)) {
            Ok(count) => Ok(Some(count)),
            Err(error) if is_timeout(&error) => Ok(None),
            // The peer's machine says that nobody listens (any more): the same as silence.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits a moment for room to send.
    pub fn wait_for_room(&self) {
        let moment = Timespec { tv_sec: 0, tv_nsec: 100_000 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        let ready = poll(&mut fds, Some(&moment)).unwrap_or(0);
        if ready > 0 {
            // Writable, it says, but the queue that was full is another one (a driver's, or the peer's).
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    pub fn buffers(&self) -> io::Result<super::BufferSizes> {
        let send = self.socket.send_buffer_size()? as u64;
        Ok(super::BufferSizes { send, recv: self.socket.recv_buffer_size()? as u64 })
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

fn bind_vsock(port: u32, buffers: Buffers) -> io::Result<Socket> {
    let socket = plain(Domain::VSOCK, buffers)?;
    socket.bind(&vsock_address(u32::MAX, port, 0))?;
    Ok(socket)
}

/// A queue on the way is full: try again.
fn is_full(error: &io::Error) -> bool {
    is_timeout(error)
        || matches!(
            error.raw_os_error(),
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN | libc::ECONNREFUSED)
        )
}
