//! The streams of a VM as a point of a capture: each step of a stream is a record, behind a header of Linux' `vsockmon`
//! (`include/uapi/linux/vsockmon.h`, LINKTYPE_VSOCK).

use std::sync::Arc;

use vmlane_port::wrap::{StreamEvent, StreamTap};
use vmlane_port::{RingSlice, StreamAddress};

use crate::filter::Filter;
use crate::ring::{Direction, Kind, MAX_RECORD, Mark, Ring};

/// Bytes of the header.
const HEADER: usize = 32;
/// `op` of the header.
const OP_CONNECT: u16 = 1;
const OP_DISCONNECT: u16 = 2;
const OP_PAYLOAD: u16 = 4;
/// `t` of the header: no transport's own header follows.
const T_NO_INFO: u16 = 1;
/// Bytes copied out at once.
const CHUNK: usize = 2048;

/// The streams of one VM.
pub struct Streams {
    ring: Arc<Ring>,
    point: u16,
    cid: u32,
    snap: usize,
    filter: Filter,
}

impl Streams {
    /// Point number `point` of the capture that `ring` belongs to: streams with an end at `cid`. At most `snap` bytes of each
    /// step are recorded, those of the header included.
    pub fn new(ring: Arc<Ring>, point: u16, cid: u32, snap: usize, filter: Filter) -> Streams {
        ring.set_present(point, true);
        Streams { ring, point, cid, snap: snap.min(MAX_RECORD), filter }
    }

    /// Of both ends of a stream between two VMs that are captured, and of the one end that a point has: each byte is recorded once
    /// for each point.
    fn concerns(&self, from: StreamAddress) -> bool {
        let ends = [(from.cid, from.port), (from.peer_cid, from.peer_port)];
        (from.cid == self.cid || from.peer_cid == self.cid) && self.filter.of_stream(ends)
    }

    fn add(&self, from: StreamAddress, op: u16, bytes: Option<RingSlice<'_>>, len: usize, time: u64) {
        if !self.concerns(from) {
            return;
        }
        let kept = (HEADER + len).min(self.snap);
        let Some(slot) = self.ring.take(self.point, kept) else { return };
        let header = header(from, op);
        self.ring.write(slot, 0, header.get(..kept.min(HEADER)).unwrap_or_default());
        if let Some(bytes) = bytes.filter(|_| kept > HEADER) {
            self.copy(slot, bytes, kept - HEADER);
        }
        let direction = if from.cid == self.cid { Direction::Out } else { Direction::In };
        let mark = Mark {
            time,
            len: (HEADER + len) as u32,
            point: self.point,
            kind: Kind::Stream,
            direction,
            dropped: 0,
            partial_checksum: false,
            gso: 0,
        };
        self.ring.publish(slot, &mark, kept);
    }

    fn copy(&self, slot: crate::ring::Slot, bytes: RingSlice<'_>, len: usize) {
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while at < len {
            let here = CHUNK.min(len - at);
            let Some(chunk) = chunk.get_mut(..here) else { return };
            bytes.advanced(at).read(chunk);
            self.ring.write(slot, HEADER + at, chunk);
            at += here;
        }
    }
}

fn header(from: StreamAddress, op: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let words: [&[u8]; 6] = [
        &u64::from(from.cid).to_le_bytes(),
        &u64::from(from.peer_cid).to_le_bytes(),
        &from.port.to_le_bytes(),
        &from.peer_port.to_le_bytes(),
        &op.to_le_bytes(),
        &T_NO_INFO.to_le_bytes(),
    ];
    // The length of the transport's header and the bytes behind it are 0.
    let mut at = 0;
    for word in words {
        if let Some(to) = header.get_mut(at..at + word.len()) {
            to.copy_from_slice(word);
        }
        at += word.len();
    }
    header
}

impl StreamTap for Streams {
    fn sent(&self, from: StreamAddress, bytes: RingSlice<'_>, len: usize, time: u64) {
        self.add(from, OP_PAYLOAD, Some(bytes), len, time);
    }

    fn event(&self, of: StreamAddress, event: StreamEvent, time: u64) {
        let op = match event {
            StreamEvent::Begins => OP_CONNECT,
            StreamEvent::Ends => OP_DISCONNECT,
        };
        self.add(of, op, None, 0, time);
    }
}
