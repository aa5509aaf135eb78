//! The statistics that a driver asks for: ten rows each for a transmit and a receive queue. One worker
//! writes them.

use vmlane_port::{Aggregate, Offload};
use vmlane_stats::Counter;
use vmlane_wire::ethernet::Mac;

use crate::vmxnet3::setup::QueueCounters;

/// Rows. A row of packets is followed by that of their bytes.
const SUPER_FRAMES: usize = 0;
const UNICAST: usize = 2;
const MULTICAST: usize = 4;
const BROADCAST: usize = 6;
const TX_ERRORS: usize = 8;
const RX_NO_BUFFERS: usize = 8;
const RX_ERRORS: usize = 9;

#[inline]
fn add(counters: &QueueCounters, row: usize, packets: u64, bytes: u64) {
    if let Some([of_packets, of_bytes]) = counters.0.get(row..row + 2) {
        of_packets.bump(packets);
        of_bytes.bump(bytes);
    }
}

#[inline]
fn class(head: &[u8]) -> usize {
    match head.first_chunk::<6>() {
        Some([first, ..]) if first & 1 == 0 => UNICAST,
        Some(to) if Mac(*to).is_broadcast() => BROADCAST,
        Some(_) => MULTICAST,
        None => UNICAST,
    }
}

/// A frame of `len` bytes; a super-frame counts as the segments it stands for.
#[inline]
pub fn sent(counters: &QueueCounters, head: &[u8], len: usize, offload: Offload) {
    let (header, mss) = match offload {
        Offload::Segment { header, mss } => (header, mss),
        Offload::Tunnel { header, mss, .. } if mss > 0 => (header, mss),
        _ => return add(counters, class(head), 1, len as u64),
    };
    let (packets, bytes) = unrolled(len, header, mss);
    add(counters, SUPER_FRAMES, packets, bytes);
    add(counters, class(head), packets, bytes);
}

/// A frame of `len` bytes was delivered.
#[inline]
pub fn received(counters: &QueueCounters, head: &[u8], len: usize, aggregate: Option<Aggregate>) {
    let Some(aggregate) = aggregate else { return add(counters, class(head), 1, len as u64) };
    add(counters, SUPER_FRAMES, 1, len as u64);
    let (packets, bytes) = unrolled(len, aggregate.header, aggregate.mss);
    add(counters, class(head), packets, bytes);
}

/// Segments of a super-frame, and their bytes with a header each.
fn unrolled(len: usize, header: u16, mss: u16) -> (u64, u64) {
    let payload = (len as u64).saturating_sub(u64::from(header));
    let packets = payload.div_ceil(u64::from(mss.max(1))).max(1);
    (packets, len as u64 + (packets - 1) * u64::from(header))
}

/// Packets and bytes of all classes. Segments count, not super-frames.
fn totals(counters: &QueueCounters) -> (u64, u64) {
    let row = |row: usize| counters.0.get(row).map_or(0, Counter::get);
    let classes = [UNICAST, MULTICAST, BROADCAST];
    (classes.map(row).iter().sum(), classes.map(|class| row(class + 1)).iter().sum())
}

/// What a transmit queue did, by name.
pub fn tx_totals(counters: &QueueCounters) -> [(&'static str, u64); 3] {
    let (frames, bytes) = totals(counters);
    [("tx_frames", frames), ("tx_bytes", bytes), ("tx_errors", counters.0[TX_ERRORS].get())]
}

/// What a receive queue did, by name.
pub fn rx_totals(counters: &QueueCounters) -> [(&'static str, u64); 4] {
    let (frames, bytes) = totals(counters);
    [
        ("rx_frames", frames),
        ("rx_bytes", bytes),
        ("rx_no_buffers", counters.0[RX_NO_BUFFERS].get()),
        ("rx_errors", counters.0[RX_ERRORS].get()),
    ]
}

pub fn tx_error(counters: &QueueCounters) {
    counters.0[TX_ERRORS].bump(1);
}

pub fn rx_no_buffers(counters: &QueueCounters) {
    counters.0[RX_NO_BUFFERS].bump(1);
}

pub fn rx_error(counters: &QueueCounters) {
    counters.0[RX_ERRORS].bump(1);
}
