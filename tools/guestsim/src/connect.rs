//! Connecting and accepting, as a program does it. Source: `af_vsock.c`.

use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_port::queue_pair::Protocol;
use vmlane_wire::vmci_stream::{ControlPacket, PROTO_QSTATE, PacketType};

use super::guest::Guest;
use super::ram::Placement;
use super::socket::{Backlog, Phase, Socket, SocketError};
use super::stream::Stream;

/// What a connecting program may choose.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of each ring.
    pub size: u64,
    pub protocol: Protocol,
    /// Where the rings' pages lie.
    pub placement: Placement,
    /// Own port; `None`: any.
    pub port: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options { size: 262_144, protocol: Protocol::Qstate, placement: Placement::Scattered, port: None }
    }
}

/// A listening socket.
pub struct Listener {
    guest: Arc<Guest>,
    port: u32,
    backlog: Arc<Backlog>,
}

impl Listener {
    /// Waits for the next connection.
    pub fn accept(&self) -> Result<Stream, SocketError> {
        let mut socket = None;
        self.guest.wait_until("a connection to accept", || {
            socket = socket.take().or_else(|| self.backlog.established.lock().pop_front());
            socket.is_some()
        })?;
        socket.map(|socket| Stream::new(self.guest.clone(), socket)).ok_or(SocketError::Closed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.guest.transport.table.lock().backlogs.remove(&self.port);
    }
}

impl Guest {
    /// Listens; accepts any ring size.
    pub fn listen(self: &Arc<Self>, port: u32, placement: Placement) -> Listener {
        let backlog = Arc::new(Backlog { established: Mutex::default(), placement });
        let old = self.transport.table.lock().backlogs.insert(port, backlog.clone());
        assert!(old.is_none(), "port {port} is in use");
        Listener { guest: self.clone(), port, backlog }
    }

    /// Connects and waits for the outcome.
    pub fn connect(self: &Arc<Self>, peer: (u32, u32), options: Options) -> Result<Stream, SocketError> {
        let key = (peer, options.port.unwrap_or_else(|| self.transport.free_port()));
        let phase = Phase::Requested { protocol: options.protocol, placement: options.placement };
        let socket = Arc::new(Socket::new(key, phase));
        let old = self.transport.table.lock().sockets.insert(key, socket.clone());
        assert!(old.is_none(), "the connection {key:?} exists");
        let stream = Stream::new(self.clone(), socket);
        let request = match options.protocol {
            Protocol::Qstate => {
                ControlPacket::new(PacketType::Request2, 0, 0).with_size(options.size, PROTO_QSTATE)
            }
            Protocol::Pkt => ControlPacket::new(PacketType::Request, 0, 0).with_size(options.size, 0),
        };
        let result = self.transport.send_control(key, request);
        if result < 0 {
            return Err(SocketError::Device(result));
        }
        self.wait_until("an answer to connect", || stream.socket.settled())?;
        match stream.socket.phase() {
            Phase::Established => Ok(stream),
            Phase::Failed(error) => Err(error),
            _ => Err(SocketError::Refused),
        }
    }
}
