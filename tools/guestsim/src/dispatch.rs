//! A guest's datagrams go to their sockets. Source: `vmci_transport.c`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_wire::vmci::{Handle, event};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use zerocopy::FromBytes;

use super::receive::Datagram;
use super::socket::{Phase, Socket};
use super::transport::Transport;

impl Transport {
    /// Gives a datagram to the socket that it is for, or keeps it for the program.
    pub(super) fn dispatch(&self, datagram: Datagram) {
        if let Some(packet) = datagram.control() {
            return self.dispatch_control(datagram.src.context, packet);
        }
        match datagram.event() {
            Some(event::QP_PEER_DETACH) => {
                let handle = Handle::new(word(&datagram.payload, 8), word(&datagram.payload, 12));
                let sockets: Vec<_> = self.table.lock().sockets.values().cloned().collect();
                sockets.iter().for_each(|socket| socket.peer_detached(handle));
            }
            Some(event::QP_PEER_ATTACH) => {}
            _ => self.table.lock().others.push_back(datagram),
        }
    }

    /// Linux's order: a socket of exactly this connection, then a listener, then RST.
    fn dispatch_control(&self, cid: u32, packet: ControlPacket) {
        let key = ((cid, packet.src_port()), packet.dst_port());
        let table = self.table.lock();
        let socket = table.sockets.get(&key).cloned();
        let backlog = table.backlogs.get(&packet.dst_port()).cloned();
        drop(table);
        let request = matches!(packet.kind(), Some(PacketType::Request | PacketType::Request2));
        match (socket, backlog) {
            (Some(socket), _) => self.socket_packet(&socket, packet),
            (None, Some(backlog)) if request => self.request_arrived(&backlog, key, packet),
            _ if packet.kind() == Some(PacketType::Rst) => {}
            _ => {
                self.send_control(key, ControlPacket::new(PacketType::Rst, 0, 0));
            }
        }
    }

    /// A control packet for a socket of exactly its connection.
    fn socket_packet(&self, socket: &Arc<Socket>, packet: ControlPacket) {
        let mut state = socket.state.lock();
        if !matches!(state.phase, Phase::Established) {
            drop(state);
            return self.handshake_packet(socket, packet);
        }
        let kind = packet.kind();
        match kind {
            Some(PacketType::Shutdown) => state.peer_shutdown |= packet.mode(),
            Some(PacketType::Rst) => {
                state.resets += 1;
                state.peer_shutdown = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
            }
            _ => {}
        }
        let Some((queues, notify)) = &mut state.pair else { return };
        let enough = queues.ready() >= socket.low_water.load(Ordering::SeqCst);
        let answer = kind.and_then(|kind| notify.arrived(queues, kind));
        self.notify(socket, answer);
        drop(state);
        match kind {
            Some(PacketType::Wrote) if enough => {
                socket.reader_wakes.fetch_add(1, Ordering::SeqCst);
            }
            Some(PacketType::Read) => {
                socket.writer_wakes.fetch_add(1, Ordering::SeqCst);
            }
            Some(PacketType::Shutdown | PacketType::Rst) => socket.wake_all(),
            _ => {}
        }
    }
}

fn word(payload: &[u8], at: usize) -> u32 {
    let raw = payload.get(at..).map(zerocopy::little_endian::U32::read_from_prefix);
    raw.and_then(Result::ok).map_or(0, |(word, _)| word.get())
}
