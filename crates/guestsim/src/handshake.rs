//! Connecting and accepting. Source: `vmci_transport.c`.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_wire::vmci::QP_ATTACH_ONLY;
use vmlane_wire::vmci_stream::{ControlPacket, PROTO_QSTATE, PacketType};

use vmlane_device::vmci::Protocol;

use super::guest::{Guest, Key};
use super::queues::PairSpec;
use super::ram::Placement;
use super::socket::{Phase, Socket, SocketError};
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

/// Connections that wait for `accept`.
pub(super) struct Backlog {
    established: Mutex<VecDeque<Arc<Socket>>>,
    placement: Placement,
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
        self.guest.table.lock().backlogs.remove(&self.port);
    }
}

impl Guest {
    /// Listens; accepts any ring size.
    pub fn listen(self: &Arc<Self>, port: u32, placement: Placement) -> Listener {
        let backlog = Arc::new(Backlog { established: Mutex::default(), placement });
        let old = self.table.lock().backlogs.insert(port, backlog.clone());
        assert!(old.is_none(), "port {port} is in use");
        Listener { guest: self.clone(), port, backlog }
    }

    /// Connects and waits for the outcome.
    pub fn connect(self: &Arc<Self>, peer: (u32, u32), options: Options) -> Result<Stream, SocketError> {
        let key = (peer, options.port.unwrap_or_else(|| self.free_port()));
        let phase = Phase::Requested { protocol: options.protocol, placement: options.placement };
        let socket = Arc::new(Socket::new(key, phase));
        let old = self.table.lock().sockets.insert(key, socket.clone());
        assert!(old.is_none(), "the connection {key:?} exists");
        let stream = Stream::new(self.clone(), socket);
        let request = match options.protocol {
            Protocol::Qstate => {
                ControlPacket::new(PacketType::Request2, 0, 0).with_size(options.size, PROTO_QSTATE)
            }
            Protocol::Pkt => ControlPacket::new(PacketType::Request, 0, 0).with_size(options.size, 0),
        };
        let result = self.send_control(key, request);
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

    /// A listener was asked.
    pub(super) fn request_arrived(&self, backlog: &Arc<Backlog>, key: Key, packet: ControlPacket) {
        if packet.size() == 0 {
            self.send_control(key, ControlPacket::new(PacketType::Rst, 0, 0));
            return;
        }
        let (kind, protocol) = match packet.kind() {
            Some(PacketType::Request2) => (PacketType::Negotiate2, Protocol::Qstate),
            _ => (PacketType::Negotiate, Protocol::Pkt),
        };
        let phase = Phase::Pending { size: packet.size(), protocol, backlog: backlog.clone() };
        self.table.lock().sockets.insert(key, Arc::new(Socket::new(key, phase)));
        self.send_control(key, ControlPacket::new(kind, 0, 0).with_size(packet.size(), packet.proto()));
    }

    /// A packet for a socket that is not established yet.
    pub(super) fn handshake_packet(&self, socket: &Arc<Socket>, packet: ControlPacket) {
        let kind = packet.kind();
        let outcome = match (socket.phase(), kind) {
            (_, Some(PacketType::Rst)) => Err(SocketError::Refused),
            (
                Phase::Requested { protocol, placement },
                Some(PacketType::Negotiate | PacketType::Negotiate2),
            ) => self.offer(socket, protocol, placement, packet.size()),
            (Phase::Offered, Some(PacketType::Attach)) => {
                socket.set_phase(Phase::Established);
                Ok(())
            }
            (Phase::Pending { size, protocol, backlog }, Some(PacketType::Offer)) => {
                self.take_offer(socket, size, protocol, &backlog, packet)
            }
            _ => {
                self.send_control(socket.key, ControlPacket::new(PacketType::Rst, 0, 0));
                Err(SocketError::Protocol)
            }
        };
        if let Err(error) = outcome {
            let child = matches!(socket.phase(), Phase::Pending { .. });
            socket.set_phase(Phase::Failed(error));
            if child {
                self.table.lock().sockets.remove(&socket.key);
            }
        }
    }

    fn offer(
        &self,
        socket: &Arc<Socket>,
        protocol: Protocol,
        placement: Placement,
        size: u64,
    ) -> Result<(), SocketError> {
        let handle = self.free_handle();
        let spec = PairSpec { handle, peer: socket.key.0.0, flags: 0, produce: size, consume: size };
        let queues = self.driver.lock().alloc(&spec, placement).map_err(SocketError::Device)?;
        socket.set_queues(queues, protocol, Phase::Offered);
        let offer = ControlPacket::new(PacketType::Offer, 0, 0).with_handle(handle);
        let result = self.send_control(socket.key, offer);
        if result < 0 { Err(SocketError::Device(result)) } else { Ok(()) }
    }

    fn take_offer(
        &self,
        socket: &Arc<Socket>,
        size: u64,
        protocol: Protocol,
        backlog: &Backlog,
        packet: ControlPacket,
    ) -> Result<(), SocketError> {
        let handle = packet.handle();
        let spec =
            PairSpec { handle, peer: socket.key.0.0, flags: QP_ATTACH_ONLY, produce: size, consume: size };
        let allocated = self.driver.lock().alloc(&spec, backlog.placement);
        let queues = allocated.map_err(|error| {
            self.send_control(socket.key, ControlPacket::new(PacketType::Rst, 0, 0));
            SocketError::Device(error)
        })?;
        socket.set_queues(queues, protocol, Phase::Established);
        self.send_control(socket.key, ControlPacket::new(PacketType::Attach, 0, 0).with_handle(handle));
        backlog.established.lock().push_back(socket.clone());
        Ok(())
    }
}
