//! Captures: taps of some VMs, and their records taken apart.

mod datagrams;
mod packets;
mod streams;

use std::sync::Arc;

use vmlane_capture::{Counts, Direction, Filter, Kind, Reader, Ring, Streams};
use vmlane_port::wrap::StreamTap;

/// Bytes of the header of Linux' `vsockmon`.
const HEADER: usize = 32;

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

/// A capture with a point for each of some CIDs.
struct Capture {
    ring: Arc<Ring>,
    reader: Reader,
    taps: Vec<Arc<dyn StreamTap>>,
}

/// A record taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    point: u16,
    direction: Direction,
    kind: Kind,
    /// CID and port.
    from: (u64, u32),
    to: (u64, u32),
    op: u16,
    /// Of the transport's header, as the record has it: its kind and length.
    transport: (u16, u16),
    /// Bytes of the whole record, wherever it was cut.
    len: u32,
    /// What lies behind the record's own header.
    rest: Vec<u8>,
}

impl Capture {
    fn new(cids: &[u32], snap: usize, filter: &Filter) -> Capture {
        Capture::of_size(16 << 20, cids, snap, filter)
    }

    fn of_size(bytes: usize, cids: &[u32], snap: usize, filter: &Filter) -> Capture {
        let ring = Arc::new(Ring::new(bytes, cids.len()).unwrap());
        let reader = Reader::new(&ring.file().try_clone_to_owned().unwrap()).unwrap();
        let tap = |(point, cid): (u16, &u32)| -> Arc<dyn StreamTap> {
            Arc::new(Streams::new(ring.clone(), point, *cid, snap, filter.clone()))
        };
        let taps = (0..).zip(cids).map(tap).collect();
        Capture { ring, reader, taps }
    }

    /// All records that were not taken yet.
    fn take(&mut self) -> Vec<Seen> {
        let records = std::iter::from_fn(|| self.reader.take().unwrap());
        let seen = records.map(|record| {
            let data = &record.data;
            let long = |at: usize| u64::from_le_bytes(*data[at..].first_chunk().unwrap());
            let word = |at: usize| u32::from_le_bytes(*data[at..].first_chunk().unwrap());
            let half = |at: usize| u16::from_le_bytes(*data[at..].first_chunk().unwrap());
            assert_eq!(data[30..HEADER], [0; 2], "reserved");
            Seen {
                point: record.mark.point,
                direction: record.mark.direction,
                kind: record.mark.kind,
                from: (long(0), word(16)),
                to: (long(8), word(20)),
                op: half(24),
                transport: (half(26), half(28)),
                len: record.mark.len,
                rest: data[HEADER..].to_vec(),
            }
        });
        seen.collect()
    }

    fn counts(&self, point: u16) -> Counts {
        self.reader.counts(point)
    }
}
