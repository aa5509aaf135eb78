//! What sockets of a VM exchange as a point of a capture: each step of a stream, each packet between two
//! virtio-vsock guests and each datagram is a record, behind a header of Linux' `vsockmon`
//! (`include/uapi/linux/vsockmon.h`, LINKTYPE_VSOCK).

use std::sync::Arc;

use vmlane_port::wrap::{PacketPayload, StreamEvent, StreamTap};
use vmlane_port::{Bytes, StreamAddress};
use vmlane_wire::virtio_vsock::{HEADER as PACKET_HEADER, Header, op};
use zerocopy::IntoBytes;

use crate::filter::Filter;
use crate::ring::{Direction, Kind, MAX_RECORD, Mark, Ring, Slot, VSOCK_HEADER as HEADER};

/// `op` of the header.
const OP_UNKNOWN: u16 = 0;
const OP_CONNECT: u16 = 1;
const OP_DISCONNECT: u16 = 2;
const OP_CONTROL: u16 = 3;
const OP_PAYLOAD: u16 = 4;
/// `t` of the header: no transport's own header follows, or that of virtio.
const T_NO_INFO: u16 = 1;
const T_VIRTIO: u16 = 2;
/// Bytes copied out at once.
const CHUNK: usize = 2048;

/// Streams, packets and datagrams of one VM.
pub struct Streams {
    ring: Arc<Ring>,
    point: u16,
    cid: u32,
    snap: usize,
    filter: Filter,
}

/// What is recorded behind the header.
struct Recorded<'a> {
    kind: Kind,
    op: u16,
    /// The transport's own header.
    packet: Option<&'a Header>,
    payload: Payload<'a>,
    len: usize,
}

/// Where the payload lies.
enum Payload<'a> {
    None,
    Stream(Bytes<'a>),
    Packet(PacketPayload<'a>),
    Private(&'a [u8]),
}

impl Payload<'_> {
    /// Copies bytes out; there are as many from `at` on.
    fn read(&self, at: usize, out: &mut [u8]) {
        match self {
            Payload::None => {}
            Payload::Stream(bytes) => bytes.read(at, out),
            Payload::Packet(PacketPayload { spans, at: begin, .. }) => spans.read(begin + at, out),
            Payload::Private(bytes) => {
                if let Some(bytes) = bytes.get(at..at + out.len()) {
                    out.copy_from_slice(bytes);
                }
            }
        }
    }
}

impl Streams {
    /// Point number `point` of the capture that `ring` belongs to: sockets of the VM `cid`. At most `snap`
    /// bytes of each step, packet or datagram are recorded, those of the headers included.
    pub fn new(ring: Arc<Ring>, point: u16, cid: u32, snap: usize, filter: Filter) -> Streams {
        ring.set_present(point, true);
        Streams { ring, point, cid, snap: snap.min(MAX_RECORD), filter }
    }

    /// Of both ends of a stream between two VMs that are captured, and of the one end that a point has: each
    /// byte is recorded once for each point.
    fn concerns(&self, from: StreamAddress) -> bool {
        let ends = [(from.cid, from.port), (from.peer_cid, from.peer_port)];
        (from.cid == self.cid || from.peer_cid == self.cid) && self.filter.of_stream(ends)
    }

    fn add(&self, from: StreamAddress, recorded: &Recorded<'_>, time: u64) {
        if !self.concerns(from) {
            return;
        }
        let own = recorded.packet.map_or(&[][..], IntoBytes::as_bytes);
        let len = HEADER + own.len() + recorded.len;
        let kept = len.min(self.snap);
        let Some(slot) = self.ring.take(self.point, kept) else { return };
        let mut at = 0;
        for bytes in [&header(from, recorded.op, recorded.packet)[..], own] {
            let here = bytes.len().min(kept - at);
            self.ring.write(slot, at, bytes.get(..here).unwrap_or_default());
            at += here;
        }
        self.copy(slot, at, &recorded.payload, kept - at);
        let direction = if from.cid == self.cid { Direction::Out } else { Direction::In };
        let mark = Mark {
            time,
            len: len as u32,
            point: self.point,
            kind: recorded.kind,
            direction,
            dropped: 0,
            partial_checksum: false,
            gso: 0,
        };
        self.ring.publish(slot, &mark, kept);
    }

    /// Copies the first `len` bytes of the payload to byte `to` of the record.
    fn copy(&self, slot: Slot, to: usize, payload: &Payload<'_>, len: usize) {
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while at < len {
            let here = CHUNK.min(len - at);
            let Some(chunk) = chunk.get_mut(..here) else { return };
            payload.read(at, chunk);
            self.ring.write(slot, to + at, chunk);
            at += here;
        }
    }
}

fn header(from: StreamAddress, op: u16, packet: Option<&Header>) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (transport, len) = if packet.is_some() { (T_VIRTIO, PACKET_HEADER as u16) } else { (T_NO_INFO, 0) };
    let words: [&[u8]; 7] = [
        &u64::from(from.cid).to_le_bytes(),
        &u64::from(from.peer_cid).to_le_bytes(),
        &from.port.to_le_bytes(),
        &from.peer_port.to_le_bytes(),
        &op.to_le_bytes(),
        &transport.to_le_bytes(),
        &len.to_le_bytes(),
    ];
    // The bytes behind them are 0.
    let mut at = 0;
    for word in words {
        if let Some(to) = header.get_mut(at..at + word.len()) {
            to.copy_from_slice(word);
        }
        at += word.len();
    }
    header
}

/// The operation of a packet, as Linux' `virtio_transport_build_skb` has it.
fn op_of(packet: &Header) -> u16 {
    match packet.op.get() {
        op::REQUEST | op::RESPONSE => OP_CONNECT,
        op::RST | op::SHUTDOWN => OP_DISCONNECT,
        op::CREDIT_UPDATE | op::CREDIT_REQUEST => OP_CONTROL,
        op::RW => OP_PAYLOAD,
        _ => OP_UNKNOWN,
    }
}

/// Between whom a packet is. None: it names a CID that no VM has.
fn addresses(packet: &Header) -> Option<StreamAddress> {
    Some(StreamAddress {
        cid: u32::try_from(packet.src_cid.get()).ok()?,
        port: packet.src_port.get(),
        peer_cid: u32::try_from(packet.dst_cid.get()).ok()?,
        peer_port: packet.dst_port.get(),
    })
}

impl StreamTap for Streams {
    fn sent(&self, from: StreamAddress, bytes: Bytes<'_>, len: usize, time: u64) {
        let payload = Payload::Stream(bytes);
        self.add(from, &Recorded { kind: Kind::Stream, op: OP_PAYLOAD, packet: None, payload, len }, time);
    }

    fn event(&self, of: StreamAddress, event: StreamEvent, time: u64) {
        let op = match event {
            StreamEvent::Begins => OP_CONNECT,
            StreamEvent::Ends => OP_DISCONNECT,
        };
        self.add(
            of,
            &Recorded { kind: Kind::Stream, op, packet: None, payload: Payload::None, len: 0 },
            time,
        );
    }

    fn packet(&self, header: &Header, payload: Option<PacketPayload<'_>>, time: u64) {
        let Some(from) = addresses(header) else { return };
        let (kind, payload, len) = match payload {
            Some(payload) => (Kind::Stream, Payload::Packet(payload), payload.len),
            None => (Kind::OfDaemon, Payload::None, 0),
        };
        self.add(from, &Recorded { kind, op: op_of(header), packet: Some(header), payload, len }, time);
    }

    fn datagram(&self, from: StreamAddress, bytes: &[u8], time: u64) {
        let (payload, len) = (Payload::Private(bytes), bytes.len());
        self.add(from, &Recorded { kind: Kind::Datagram, op: OP_PAYLOAD, packet: None, payload, len }, time);
    }
}
