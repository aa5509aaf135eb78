//! One frame through everything that reads and edits its head, without ports and without allocating.
//! What comes out is checked with sums and offsets worked out here once more, byte by byte.

use vmlane_device::vmxnet3::port::TxRules;
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    Aggregate, ChecksumStatus, HEAD, Layers, MAX_FRAME, MAX_HEAD, Network, Offload, PartialChecksum, RxFrame,
    Transport, TxFrame, VnetHeader,
};
use vmlane_switch::heads::{
    Cutter, Frame, Job, MAX_SEGMENTS, Segmentation, complete, inner, job, layers, payload,
};
use vmlane_wire::ethernet::{HEADER, TAG, Tci};
use vmlane_wire::vmxnet3::desc::TxDesc;

use crate::{Input, again};

/// Frames up to here are copied and summed as a whole.
const WHOLE: usize = 2048;
/// Where the receiver's memory begins, behind the sender's.
const SINK: u64 = 80 << 10;

/// A sender's memory, full of a pattern, and a receiver's.
pub struct Bench {
    in_flight: Spans,
    sink: Spans,
    body: Vec<u8>,
}

impl Bench {
    pub fn new() -> Bench {
        let len = 2 * SINK;
        let fd = memfd("heads", len).expect("memfd");
        let request = MapRequest { guest: 0, len, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).expect("maps");
        let body: Vec<u8> = (0..SINK as usize).map(|at| (at * 7 + at / 251) as u8).collect();
        map.write(0, &body).expect("mapped");
        let mut sink = Spans::new(map.clone(), true);
        sink.set(SINK, WHOLE).expect("mapped");
        Bench { in_flight: Spans::new(map, true), sink, body }
    }

    /// What a device would describe, then what the switch makes of it.
    pub fn run(&mut self, data: &[u8]) {
        let mut input = Input(data);
        let kinds = input.byte();
        let request: [u8; VnetHeader::SIZE] = std::array::from_fn(|_| input.byte());
        let more = input.number::<2>() as usize;
        let mut head = [0; MAX_HEAD];
        let bytes = input.bytes(MAX_HEAD);
        head[..bytes.len()].copy_from_slice(bytes);
        // Only short frames are all head.
        let visible = if more == 0 { bytes.len() } else { bytes.len().max(HEAD) };
        let len = (visible + more).min(MAX_FRAME);
        let head = &head[..visible];
        let Some(offload) = offload(kinds, &request, head, len) else { return };
        let tag = (kinds & 0x80 != 0).then_some(Tci(0x2005));
        self.in_flight.set(0, len).expect("mapped");
        let in_flight = TxFrame { head, spans: &self.in_flight, offload, tag, verified: false };
        let mut scratch = [0; MAX_HEAD];
        let Ok(frame) = Frame::new(&in_flight, &mut scratch) else { return };
        check_pop(&frame, &in_flight);
        let found = layers(frame.head);
        assert_eq!(found, again::ethernet(frame.head, 0), "{:x?}", frame.head);
        check_layers(frame.head, &found);
        let shorter = layers(&frame.head[..frame.head.len().min(usize::from(request[9]))]);
        assert!(shorter.transport == Transport::Other || shorter == found, "{shorter:?}, {found:?}");
        if let Some(inside) = inner(frame.head, &found) {
            check_layers(frame.head, &inside);
            assert!(inside.network_at >= found.transport_at + 16, "{inside:?} in {found:?}");
        }
        match job(&frame, &found) {
            Ok(Job::Checksum(partial_checksum)) => {
                let PartialChecksum { start, field, .. } = partial_checksum;
                let end = usize::from(field) + 2;
                assert!(HEADER <= usize::from(start) && start <= field && end <= frame.head.len());
                let packet = RxFrame {
                    partial_checksum: Some(partial_checksum),
                    ..self.packet(&frame, frame.head, 0)
                };
                self.check_announced(&packet, Offload::Checksum { start, field });
                self.check_sum(&packet, partial_checksum);
            }
            Ok(Job::Segment(segmentation)) => {
                self.check_whole(&frame, &segmentation);
                self.check_segments(&frame, segmentation, request[8]);
            }
            Ok(Job::Nothing) | Err(_) => {}
        }
    }

    /// What lies behind `head` of the frame, from `skip` bytes on.
    fn packet<'a>(&'a self, frame: &Frame<'_>, head: &'a [u8], skip: usize) -> RxFrame<'a> {
        RxFrame {
            head,
            body: &self.in_flight,
            body_at: frame.popped + head.len() + skip,
            body_len: frame.len() - head.len() - skip,
            tag: None,
            layers: Layers::default(),
            checksum: ChecksumStatus::Good,
            aggregate: None,
            partial_checksum: None,
        }
    }

    /// A virtio NIC's driver that sends what was announced to it requests the same.
    fn check_announced(&self, packet: &RxFrame<'_>, expected: Offload) {
        let announced = VnetHeader::of(packet, 0);
        assert_eq!(announced.offload(packet.head), Some(expected), "{announced:?}");
        assert_eq!(VnetHeader::from_bytes(&announced.to_bytes()), announced);
        assert_eq!(VnetHeader::of(packet, TAG as u16).spoken_of(), announced.spoken_of() + TAG);
    }

    /// The receiver's bytes, with everything that follows `start` summing to what `seed` makes right.
    fn check_sum(&self, packet: &RxFrame<'_>, partial_checksum: PartialChecksum) {
        let mut out = [0; WHOLE];
        let Some(out) = self.written(packet, &mut out) else { return };
        let (start, field) = (usize::from(partial_checksum.start), usize::from(partial_checksum.field));
        let seed = u16::from_be_bytes([packet.head[field], packet.head[field + 1]]);
        let got = u16::from_be_bytes([out[field], out[field + 1]]);
        out[field..field + 2].copy_from_slice(&seed.to_be_bytes());
        let expected = match !again::sum(&[&out[start..]], 0) {
            0 if partial_checksum.never_zero => 0xffff,
            sum => sum,
        };
        assert_eq!(got, expected);
    }

    /// The packet as its receiver has it, if it is not too long to check each.
    fn written<'a>(&self, packet: &RxFrame<'_>, out: &'a mut [u8; WHOLE]) -> Option<&'a mut [u8]> {
        let out = out.get_mut(..packet.len())?;
        let written = packet.write(&self.sink, false);
        assert_eq!(written, packet.len());
        self.sink.read(0, out);
        let (_, body) = out.split_at(packet.head.len());
        assert!(*body == self.body[packet.body_at..packet.body_at + body.len()], "other bytes");
        Some(out)
    }

    fn check_whole(&self, frame: &Frame<'_>, segmentation: &Segmentation) {
        let Segmentation { packet: found, outer, header, mss, segments } = *segmentation;
        let (bytes, at) = (usize::from(header), usize::from(found.network_at));
        let left = frame.len() - bytes;
        assert!(bytes <= frame.head.len() && left > 0 && mss > 0);
        assert!(payload(frame.head, &found) == Some(bytes) && !frame.destination().is_multicast());
        assert!(usize::from(segments) == left.div_ceil(mss.into()) && usize::from(segments) <= MAX_SEGMENTS);
        if outer.is_some() || segments < 2 || frame.len() - at > 0xffff {
            return;
        }
        let mut head = [0; MAX_HEAD];
        let head = &mut head[..bytes];
        head.copy_from_slice(&frame.head[..bytes]);
        let partial_checksum = complete(head, &found, frame.len());
        again::check_ip(head, &found, frame.len(), None);
        let packet = RxFrame {
            layers: found,
            aggregate: Some(Aggregate { mss, segments, header }),
            partial_checksum: Some(partial_checksum),
            ..self.packet(frame, head, 0)
        };
        self.check_announced(&packet, Offload::Segment { header, mss });
        self.check_packet(&packet, &found);
    }

    /// The first two segments, the last one and `other`.
    fn check_segments(&self, frame: &Frame<'_>, segmentation: Segmentation, other: u8) {
        let Segmentation { packet: found, outer, header, mss, segments } = segmentation;
        let (bytes, mss) = (usize::from(header), usize::from(mss));
        let left = frame.len() - bytes;
        let mut head = [0; MAX_HEAD];
        head[..bytes].copy_from_slice(&frame.head[..bytes]);
        let cutter = Cutter::new(&frame.head[..bytes], segmentation);
        for number in [0, 1, u16::from(other) * 8, segments - 1].into_iter().filter(|n| *n < segments) {
            let before = usize::from(number) * mss;
            let here = mss.min(left - before);
            let head = &mut head[..bytes];
            let partial_checksum = cutter.cut(head, number, here);
            again::check_ip(head, &found, bytes + here, Some((frame.head, number)));
            again::check_tcp(head, &segmentation, frame.head, number);
            let mut packet = self.packet(frame, head, before);
            packet.body_len = here;
            packet.partial_checksum = Some(partial_checksum);
            let whole = self.check_packet(&packet, &found);
            if let Some((around, wants_sum)) = outer {
                again::check_ip(head, &around, bytes + here, Some((frame.head, number)));
                again::check_udp(&head[around.transport_at.into()..], bytes + here, &around, wants_sum);
                if let (true, Some(out)) = (wants_sum, whole) {
                    let len = bytes + here;
                    assert_eq!(again::transport_sum(&out[..len], &around), 0xffff, "of the tunnel");
                }
            }
        }
    }

    /// Its TCP or UDP checksum is right once it is written.
    fn check_packet(&self, packet: &RxFrame<'_>, found: &Layers) -> Option<[u8; WHOLE]> {
        let mut out = [0; WHOLE];
        let whole = self.written(packet, &mut out)?;
        assert_eq!(again::transport_sum(whole, found), 0xffff, "{found:?}");
        Some(out)
    }
}

/// What the guest's device makes of the guest's words.
fn offload(kinds: u8, request: &[u8; VnetHeader::SIZE], head: &[u8], len: usize) -> Option<Offload> {
    let word = |at: usize| u16::from_le_bytes([request[at], request[at + 1]]);
    match kinds & 3 {
        0 | 1 => {
            let header = VnetHeader::from_bytes(request);
            let bytes = header.to_bytes();
            assert_eq!(bytes, *request);
            let offload = header.offload(head);
            assert!(!header.is_plain() || offload == Some(Offload::None) || header.is_segmented());
            offload
        }
        2 => {
            let control = u64::from_le_bytes(*request.first_chunk()?);
            let rules = TxRules::new(1 + request[8] % 7, if kinds & 4 == 0 { 1500 } else { 9000 });
            rules.check(&TxDesc::from_words(0, control), len).ok()
        }
        _ => Some(match request[0] % 4 {
            0 => Offload::None,
            1 => Offload::Checksum { start: word(2), field: word(4) },
            2 => Offload::Segment { header: word(2), mss: word(4) },
            _ => Offload::Tunnel { header: word(2), mss: word(4), outer_sum: request[1] & 1 != 0 },
        }),
    }
}

/// A popped tag and the rest are the frame as it came.
fn check_pop(frame: &Frame<'_>, in_flight: &TxFrame<'_>) {
    assert!(frame.head.len() >= HEADER && frame.len() >= frame.head.len());
    if frame.popped == 0 {
        assert!(
            frame.head == in_flight.head && frame.tag == in_flight.tag && frame.offload == in_flight.offload
        );
        return;
    }
    let (addresses, rest) = in_flight.head.split_at(12);
    assert_eq!((&frame.head[..12], &frame.head[12..]), (addresses, &rest[TAG..]));
    assert_eq!(frame.tag, Some(Tci(u16::from_be_bytes([rest[2], rest[3]]))));
    assert!(in_flight.tag.is_none() && rest[..2] == [0x81, 0]);
}

/// Offsets lie inside the head.
fn check_layers(head: &[u8], found: &Layers) {
    let Layers { network, transport, fragment, network_at, transport_at } = *found;
    if network == Network::Other {
        assert_eq!(*found, Layers::default());
        return;
    }
    let (at, end) = (usize::from(network_at), usize::from(transport_at));
    assert!(at >= HEADER && end >= at + if network == Network::V4 { 20 } else { 40 }, "{found:?}");
    match transport {
        Transport::Other => assert_eq!(payload(head, found), None),
        Transport::Tcp => assert!((end + 20..=end + 60).contains(&payload(head, found).expect("TCP"))),
        Transport::Udp => assert_eq!(payload(head, found), Some(end + 8)),
    }
    assert!(payload(head, found).is_none_or(|at| at <= head.len() && !fragment), "{found:?}");
}
