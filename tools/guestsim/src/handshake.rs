//! Packets of connections that come to be. Source: `vmci_transport.c`.

use std::sync::Arc;

use vmlane_port::queue_pair::Protocol;
use vmlane_wire::vmci::QP_ATTACH_ONLY;
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

use super::queues::PairSpec;
use super::ram::Placement;
use super::socket::{Backlog, Key, Phase, Socket, SocketError};
use super::transport::Transport;

impl Transport {
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
