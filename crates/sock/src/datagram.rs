//! Datagrams to and from VMs. Only VMs with a VMCI device have them.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use vmlane_wire::host::{Op, PEER, Peer, Request};
use vmlane_wire::vmci::MAX_DATAGRAM_PAYLOAD;
use zerocopy::{FromBytes, IntoBytes};

use crate::request::Host;
use crate::stream::Address;

/// A datagram socket at a port of the host. Like all datagrams, those of VMCI may get lost.
pub struct Datagram {
    socket: OwnedFd,
    /// Keeps the port.
    _claim: UnixStream,
    local: Address,
}

impl Datagram {
    /// Takes `port` of the host (2 or more), or [`crate::ANY`].
    pub fn bind(port: u32) -> io::Result<Datagram> {
        Datagram::bind_by(&Host::default(), port)
    }

    /// The same through another daemon.
    pub fn bind_by(host: &Host, port: u32) -> io::Result<Datagram> {
        let (claim, mut answer) = host.ask(Request::new(Op::Datagram, 0, port, 0, 0))?;
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "the daemon sent no socket");
        let socket = answer.fds.pop().ok_or_else(missing)?;
        Ok(Datagram { socket, _claim: claim, local: Address { cid: answer.cid, port: answer.port } })
    }

    pub fn local_addr(&self) -> Address {
        self.local
    }

    /// Sends `data` (69,608 bytes at most) to a VM.
    pub fn send_to(&self, data: &[u8], to: Address) -> io::Result<usize> {
        if data.len() > MAX_DATAGRAM_PAYLOAD {
            return Err(rustix::io::Errno::MSGSIZE.into());
        }
        let peer = Peer { cid: to.cid.into(), port: to.port.into() };
        let parts = [IoSlice::new(peer.as_bytes()), IoSlice::new(data)];
        rustix::net::sendmsg(&self.socket, &parts, &mut Default::default(), SendFlags::NOSIGNAL)?;
        Ok(data.len())
    }

    /// Receives one datagram; what does not fit into `data` is lost. Returns its bytes and who sent it.
    pub fn recv_from(&self, data: &mut [u8]) -> io::Result<(usize, Address)> {
        let mut header = [0; PEER];
        let parts = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(data)];
        let got =
            rustix::net::recvmsg(&self.socket, parts, &mut Default::default(), RecvFlags::empty())?.bytes;
        let gone = || io::Error::new(io::ErrorKind::ConnectionReset, "the daemon is gone");
        let len = got.checked_sub(PEER).ok_or_else(gone)?;
        let peer = Peer::read_from_bytes(&header).map_err(|_| gone())?;
        Ok((len, Address { cid: peer.cid.get(), port: peer.port.get() }))
    }

    /// Calls that cannot proceed for so long fail with `WouldBlock`.
    pub fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_socket_timeout(&self.socket, Timeout::Recv, timeout)?;
        Ok(set_socket_timeout(&self.socket, Timeout::Send, timeout)?)
    }

    /// Calls that cannot proceed fail with `WouldBlock`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.socket, nonblocking)?)
    }
}

impl AsRawFd for Datagram {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Datagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
