//! TCP segments that the switch may merge for a receiver that takes super-frames (software LRO), and what
//! such a receiver may see: cut at its MSS, a super-frame gives the segments back that were sent, in the
//! order of their flow.

use std::collections::{HashMap, VecDeque};

use vmlane_guestsim::memory_port::Received;
use vmlane_port::{Offload, RxCapabilities};
use vmlane_wire::ethernet::{HEADER, Mac, Tci};

use crate::Input;
use crate::again::{check_ip, ethernet, sum};

const IPV4: usize = 20;
const IPV6: usize = 40;
/// Behind the IP header: sequence number, flags, checksum.
const SEQUENCE: usize = 4;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const ACK: u8 = 0x10;
/// Flags that only the last segment of a super-frame has.
const LAST: u8 = 0x09;
const DONT_FRAGMENT: u8 = 0x40;

/// A connection's side that sends.
pub struct Flow {
    pub to: Mac,
    from: Mac,
    v6: bool,
    ports: [u8; 4],
    /// Bytes of TCP options.
    options: usize,
    mss: usize,
    sequence: u32,
    /// Of the next IPv4 header, and what each adds to it.
    id: u16,
    id_step: u16,
    fragment_flags: u8,
}

/// A segment as it is complete, and as it is sent.
#[derive(Clone)]
pub struct Segment {
    pub whole: Vec<u8>,
    pub sent: Vec<u8>,
    pub offload: Offload,
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12..HEADER] == [0x86, 0xdd]
}

fn tcp_at(frame: &[u8]) -> usize {
    HEADER + if is_v6(frame) { IPV6 } else { IPV4 }
}

/// The sum of addresses, protocol and length of TCP.
fn pseudo_sum(frame: &[u8], end: usize) -> u16 {
    let (at, tcp) = (HEADER, tcp_at(frame));
    let addresses = if is_v6(frame) { &frame[at + 8..at + 40] } else { &frame[at + 12..at + 20] };
    sum(&[addresses], 6 + (end - tcp) as u32)
}

/// Fills in the checksum of the IPv4 header, if it is one.
fn fill_ip_sum(frame: &mut [u8]) {
    if !is_v6(frame) {
        put(frame, HEADER + 10, 0);
        let folded = sum(&[&frame[HEADER..HEADER + IPV4]], 0);
        put(frame, HEADER + 10, !folded);
    }
}

/// Fills in the TCP checksum of a packet that ends at `end`.
fn fill_tcp_sum(frame: &mut [u8], end: usize) {
    let (tcp, pseudo) = (tcp_at(frame), pseudo_sum(frame, end));
    put(frame, tcp + CHECKSUM, 0);
    let folded = sum(&[&frame[tcp..end]], pseudo.into());
    put(frame, tcp + CHECKSUM, !folded);
}

impl Flow {
    pub fn new(input: &mut Input<'_>, to: Mac, from: Mac) -> Flow {
        let kinds = input.byte();
        Flow {
            to,
            from,
            v6: kinds & 1 != 0,
            ports: [0x9c, 0x40, 0x14, input.byte() & 1],
            options: if kinds & 2 != 0 { 12 } else { 0 },
            mss: 1 + 5 * usize::from(input.byte()),
            sequence: if kinds & 4 != 0 { 0xffff_ff00 } else { 1 },
            id: if kinds & 8 != 0 { 0xfffe } else { 7 },
            id_step: if kinds & 16 != 0 { 0 } else { 1 },
            fragment_flags: if kinds & 32 != 0 { 0 } else { DONT_FRAGMENT },
        }
    }

    fn headers(&self, payload: usize) -> Vec<u8> {
        let tcp_len = 20 + self.options;
        let mut frame = [self.to.0, self.from.0].concat();
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            put(&mut frame, HEADER + 4, (tcp_len + payload) as u16);
            frame.extend([0xfd; 16]);
            frame.extend([0xfe; 16]);
        } else {
            frame.extend([8, 0, 0x45, 0, 0, 0, 0, 0, self.fragment_flags, 0, 64, 6, 0, 0]);
            put(&mut frame, HEADER + 2, (IPV4 + tcp_len + payload) as u16);
            put(&mut frame, HEADER + 4, self.id);
            frame.extend([10, 77, 0, 1, 10, 77, 0, 2]);
        }
        frame.extend(self.ports);
        frame.extend(self.sequence.to_be_bytes());
        frame.extend([0, 0, 0, 77, (tcp_len / 4 * 16) as u8, ACK, 1, 246, 0, 0, 0, 0]);
        frame.extend(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8][..self.options]);
        frame
    }

    /// The next segment, often one of a row that may be merged.
    pub fn next(&mut self, input: &mut Input<'_>) -> Segment {
        let (kind, detail) = (input.byte(), input.byte());
        let payload = if kind % 8 == 1 { usize::from(detail) } else { self.mss };
        let mut whole = self.headers(payload);
        let tcp = tcp_at(&whole);
        match kind % 8 {
            2 => whole[tcp + FLAGS] |= LAST & detail,
            3 => whole[tcp + FLAGS] = detail,
            4 => whole[tcp + SEQUENCE] ^= 1,
            // Type of service, time to live, window, an option: whatever it is, it differs from before.
            5 => {
                let at = [HEADER + 1, HEADER + 8, tcp + 15, whole.len() - 1][usize::from(detail) % 4];
                whole[at] ^= 1;
            }
            6 if !self.v6 => put(&mut whole, HEADER + 4, self.id.wrapping_add(detail.into())),
            _ => {}
        }
        whole.extend((0..payload).map(|at| (self.sequence as usize + at * 7) as u8));
        fill_ip_sum(&mut whole);
        let end = whole.len();
        fill_tcp_sum(&mut whole, end);
        let (start, field) = (tcp as u16, (tcp + CHECKSUM) as u16);
        let mut offload = Offload::None;
        let mut sent = whole.clone();
        match kind >> 3 {
            // It was damaged on its way.
            0 => sent[tcp + usize::from(detail) % (end - tcp)] ^= 0x55,
            1 if !self.v6 => sent[HEADER + 10] ^= 0x55,
            2..=9 => {
                put(&mut sent, tcp + CHECKSUM, pseudo_sum(&whole, end));
                offload = Offload::Checksum { start, field };
            }
            10 => sent.resize(end + usize::from(detail) % 40, 0),
            _ => {}
        }
        let whole = if offload == Offload::None { sent.clone() } else { whole };
        self.sequence = self.sequence.wrapping_add(payload as u32);
        self.id = self.id.wrapping_add(self.id_step);
        Segment { whole, sent, offload }
    }
}

/// What distinguishes a segment's flow from others.
fn flow_of(frame: &[u8]) -> Vec<u8> {
    let tcp = tcp_at(frame);
    let addresses = if is_v6(frame) { HEADER + 8 } else { HEADER + 12 };
    frame[addresses..tcp + 4].to_vec()
}

/// Segment `number` of a super-frame, with this identification.
fn cut(frame: &[u8], mss: usize, number: usize, id: u16) -> Vec<u8> {
    let tcp = tcp_at(frame);
    let header = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
    let (begin, end) = (header + number * mss, (header + (number + 1) * mss).min(frame.len()));
    let mut segment = [&frame[..header], &frame[begin..end]].concat();
    let len = segment.len();
    if is_v6(frame) {
        put(&mut segment, HEADER + 4, (len - HEADER - IPV6) as u16);
    } else {
        put(&mut segment, HEADER + 2, (len - HEADER) as u16);
        put(&mut segment, HEADER + 4, id);
    }
    let sequence = u32::from_be_bytes([0, 1, 2, 3].map(|at| frame[tcp + SEQUENCE + at]));
    let sequence = sequence.wrapping_add((number * mss) as u32);
    segment[tcp + SEQUENCE..tcp + SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
    if end < frame.len() {
        segment[tcp + FLAGS] &= !LAST;
    }
    fill_ip_sum(&mut segment);
    fill_tcp_sum(&mut segment, len);
    segment
}

/// Segments that a receiver should get, by flow, each with its tag.
#[derive(Default)]
pub struct Expected(HashMap<Vec<u8>, VecDeque<(Option<Tci>, Segment)>>);

impl Expected {
    pub fn push(&mut self, tag: Option<Tci>, segment: &Segment) {
        self.0.entry(flow_of(&segment.whole)).or_default().push_back((tag, segment.clone()));
    }

    /// What a receiver with these capabilities got is what it should have got. `lossy`: some may be missing.
    pub fn check(mut self, got: &[Received], capabilities: &RxCapabilities, lossy: bool) {
        for received in got {
            let flow =
                self.0.get_mut(&flow_of(&received.bytes)).expect("a segment that was not for this port");
            while !matches(flow, received, capabilities) {
                assert!(lossy && flow.pop_front().is_some(), "it is none of those sent: {received:?}");
            }
            flow.drain(..received.aggregate.map_or(1, |aggregate| aggregate.segments.into()));
        }
        assert!(lossy || self.0.values().all(VecDeque::is_empty), "segments are missing");
    }
}

/// Does a frame stand for the next segments of its flow?
fn matches(flow: &VecDeque<(Option<Tci>, Segment)>, got: &Received, capabilities: &RxCapabilities) -> bool {
    let Some(aggregate) = got.aggregate else {
        return flow.front().is_some_and(|(tag, segment)| {
            let left = capabilities.partial_sum && got.bytes == segment.sent;
            *tag == got.tag && (got.bytes == segment.whole || left)
        });
    };
    let (mss, count) = (usize::from(aggregate.mss), usize::from(aggregate.segments));
    let v6 = is_v6(&got.bytes);
    assert!(if v6 { capabilities.tso6 } else { capabilities.tso4 }, "it takes no super-frames of this kind");
    let header = usize::from(aggregate.header);
    let tcp = tcp_at(&got.bytes);
    assert_eq!(header, tcp + usize::from(got.bytes[tcp + 12] >> 4) * 4);
    assert_eq!((got.bytes.len() - header).div_ceil(mss), count, "as many segments as announced");
    check_ip(&got.bytes, &ethernet(&got.bytes, 0), got.bytes.len(), None);
    if flow.len() < count {
        return false;
    }
    let id = |segment: &[u8]| word(segment, HEADER + 4);
    // Identifications count up, or mean nothing and are all the same.
    let fixed = !v6 && id(&flow[1].1.whole) == id(&flow[0].1.whole);
    assert!(!fixed || got.bytes[HEADER + 6] & DONT_FRAGMENT != 0, "identifications that are needed");
    flow.iter().take(count).enumerate().all(|(number, (tag, segment))| {
        let step = if fixed { 0 } else { number as u16 };
        let first = if v6 { 0 } else { id(&got.bytes) };
        *tag == got.tag && segment.whole == cut(&got.bytes, mss, number, first.wrapping_add(step))
    })
}
