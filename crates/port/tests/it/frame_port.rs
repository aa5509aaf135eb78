//! A frame port over plain memory, turned by hand in the order that the page of [`FramePort`] gives.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    ChecksumStatus, DropReason, Filter, FramePort, FramePortInfo, HEAD, Layers, Needs, Offload, Refused,
    RxCapabilities, RxFrame, Sign, Ticked, Token, TxFrame, WakeUp,
};

/// Bytes of a slot of the port's memory.
const SLOT: usize = 4096;
/// Frames that may be in flight at once.
const SLOTS: usize = 4;

struct Slot {
    spans: Spans,
    head: Vec<u8>,
    in_flight: bool,
}

/// A port whose guest is a queue of frames to send and a list of frames it got.
struct MemoryPort {
    to_send: VecDeque<Vec<u8>>,
    slots: Vec<Slot>,
    /// Buffers that the guest has posted.
    room: usize,
    copied: Vec<Vec<u8>>,
    /// What the guest sees: published by a flush.
    received: Vec<Vec<u8>>,
    buffer: Spans,
    filter: Filter,
    announces: bool,
}

impl MemoryPort {
    fn new(room: usize) -> MemoryPort {
        let len = ((SLOTS + 1) * SLOT) as u64;
        let fd = memfd("frames", len).expect("a memory file");
        let request = MapRequest { guest: 0, len, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).expect("a mapping");
        let slot = |_| Slot { spans: Spans::new(map.clone(), true), head: Vec::new(), in_flight: false };
        MemoryPort {
            to_send: VecDeque::new(),
            slots: (0..SLOTS).map(slot).collect(),
            room,
            copied: Vec::new(),
            received: Vec::new(),
            buffer: Spans::new(map, true),
            filter: Filter::open(),
            announces: false,
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.iter().filter(|slot| slot.in_flight).count()
    }
}

impl FramePort for MemoryPort {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        let mut count = 0;
        let free = (0..).zip(&mut self.slots).filter(|(_, slot)| !slot.in_flight);
        for (token, (number, slot)) in tokens.iter_mut().zip(free) {
            let Some(frame) = self.to_send.pop_front() else { break };
            slot.spans.set(number as u64 * SLOT as u64, frame.len()).expect("memory of its own");
            slot.spans.write(0, &frame);
            slot.head = frame[..frame.len().min(HEAD)].to_vec();
            slot.in_flight = true;
            *token = Token(number);
            count += 1;
        }
        count
    }

    fn frame(&self, token: Token) -> TxFrame<'_> {
        let Slot { spans, head, .. } = &self.slots[token.0 as usize];
        TxFrame { head, spans, offload: Offload::None, tag: None, verified: false }
    }

    fn finish(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|token| self.slots[token.0 as usize].in_flight = false);
    }

    fn capabilities(&self) -> RxCapabilities {
        RxCapabilities {
            frame: 1514,
            aggregate: 1514,
            tso4: false,
            tso6: false,
            uso4: false,
            uso6: false,
            partial_sum: false,
            partial_frame: false,
            verdicts: false,
        }
    }

    fn filter(&self) -> &Filter {
        &self.filter
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        for (at, frame) in frames.iter().enumerate() {
            if frame.len() > self.capabilities().frame {
                return Err(Refused { at, reason: DropReason::TooLong });
            }
            if !self.has_room() {
                return Err(Refused { at, reason: DropReason::NoBuffers });
            }
            self.room -= 1;
            self.buffer.set((SLOTS * SLOT) as u64, frame.len()).expect("memory of its own");
            let mut bytes = vec![0; frame.write(&self.buffer, false)];
            self.buffer.read(0, &mut bytes);
            self.copied.push(bytes);
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.room > 0
    }

    fn flush(&mut self, _: Instant) {
        self.received.append(&mut self.copied);
    }

    fn tick(&mut self, _: Instant) -> Ticked {
        Ticked::default()
    }

    fn refresh(&mut self) {}

    fn fail(&mut self) {}

    fn info(&self) -> FramePortInfo {
        FramePortInfo { lookahead: usize::MAX, ..FramePortInfo::default() }
    }
}

impl WakeUp for MemoryPort {
    fn arm(&mut self) -> bool {
        self.announces = true;
        !self.to_send.is_empty()
    }

    fn disarm(&mut self) {
        self.announces = false;
    }

    fn needs(&self) -> Needs {
        Needs::Turn
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        false
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The frame as its receiver gets it: nothing was asked to be done to it.
fn plain<'a>(frame: &TxFrame<'a>) -> RxFrame<'a> {
    RxFrame {
        head: frame.head,
        body: frame.spans,
        body_at: frame.head.len(),
        body_len: frame.len() - frame.head.len(),
        tag: None,
        layers: Layers::default(),
        checksum: ChecksumStatus::Unknown,
        aggregate: None,
        partial_checksum: None,
    }
}

#[test]
fn a_burst_crosses_two_ports_and_what_finds_no_buffer_stays_in_flight() {
    let (mut a, mut b) = (MemoryPort::new(0), MemoryPort::new(2));
    let frames: Vec<Vec<u8>> = [60, 300, 1514].map(|len| vec![len as u8; len]).to_vec();
    a.to_send.extend(frames.clone());
    // Turn: fetch, examine each, deliver.
    let mut tokens = [Token(0); 8];
    let fetched = a.fetch(&mut tokens);
    assert_eq!((fetched, a.in_flight()), (3, 3));
    let burst: Vec<_> = tokens[..fetched].iter().map(|&token| plain(&a.frame(token))).collect();
    let refused = b.deliver(&burst).expect_err("two buffers");
    assert_eq!(refused, Refused { at: 2, reason: DropReason::NoBuffers });
    // Those that were copied are finished; the last one waits, and keeps its token.
    a.finish(&tokens[..refused.at]);
    assert_eq!(a.in_flight(), 1);
    assert!(b.received.is_empty(), "not before the flush");
    [&mut a, &mut b].into_iter().for_each(|port| port.flush(Instant::now()));
    assert_eq!(b.received, frames[..2]);
    // The guest posts a buffer: the port reports it, and the frame is examined once more.
    assert!(!b.has_room());
    b.room = 1;
    assert!(b.has_room());
    b.deliver(&[plain(&a.frame(tokens[2]))]).expect("a buffer");
    a.finish(&tokens[2..3]);
    b.flush(Instant::now());
    assert_eq!((a.in_flight(), &b.received), (0, &frames));
    // Nothing moves: the ports are armed, and the worker sleeps; a frame that came meanwhile keeps it awake.
    assert!(!a.arm() && a.announces);
    a.to_send.push_back(frames[0].clone());
    assert!(a.arm());
    a.disarm();
    assert!(!a.announces);
}
