//! A vhost-user uplink and the switch at its other end, which owns none of the rules: what its used rings
//! have, and what is written over the memory that both share. A peer that has kept the rules so far gets and
//! is given exactly what was sent.

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use vmlane_guestsim::nic::InlineFrames;
use vmlane_guestsim::vhost_user_peer::{Offer, RawPeer, VNET};
use vmlane_guestsim::{OneByOne, TIMEOUT};
use vmlane_host::uplink::vhost_user::{Peers, VhostUser};
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    Aggregate, ChecksumStatus, DropReason, FramePort, Layers, MAX_FRAME, MAX_HEAD, Network, Offload,
    PartialChecksum, PortId, RxFrame, Token, Transport, TxFrame,
};
use vmlane_wire::vhost_user::protocol;
use vmlane_wire::virtio::{feature, net_feature};

use crate::Input;

/// The ring that the peer sends by, and the one that it receives by.
const IN: usize = 0;
const OUT: usize = 1;
const RING: usize = 512;
const MTU: u16 = 1500;
/// Memory of frames to the peer.
const BODY: usize = 72 << 10;

/// A frame in flight from the uplink, as it was at first.
struct InFlight {
    token: Token,
    head: Vec<u8>,
    offload: Offload,
}

/// A frame that is on its way from the peer.
struct Sent {
    bytes: Vec<u8>,
    ids: Vec<u16>,
    /// It may be one that is left out.
    doubtful: bool,
}

pub struct Bench {
    /// Ends the connection, and its thread.
    _uplink: VhostUser,
    frames: Arc<InlineFrames>,
    peer: RawPeer,
    in_flight: Vec<InFlight>,
    /// The peer has kept the rules so far. What it reads of the rings can be believed.
    honest: bool,
    readable: bool,
    sent: VecDeque<Sent>,
    /// How many there were so far.
    number: u32,
    /// Frames to the peer; None: one whose bytes are not compared.
    delivered: VecDeque<(usize, Option<Vec<u8>>)>,
    /// Buffers that the peer was given in each ring and has not given back.
    holds: [HashSet<u16>; 2],
    body: Spans,
    pattern: Vec<u8>,
}

fn offer(kinds: u64) -> Offer {
    use net_feature::*;
    let optional = feature::PROTOCOL_FEATURES
        | feature::EVENT_INDEX
        | CSUM
        | GUEST_CSUM
        | HOST_TSO4
        | HOST_TSO6
        | HOST_USO
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_USO4;
    let protocol = if kinds & 1 != 0 { protocol::REPLY_ACK } else { 0 };
    let some = if kinds & 2 != 0 { optional } else { optional & kinds };
    Offer { features: feature::VERSION_1 | MERGEABLE | some, protocol }
}

impl Bench {
    /// An uplink whose connection stands.
    pub fn new(input: &mut Input<'_>) -> Bench {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_read_timeout(Some(TIMEOUT)).expect("a limit");
        theirs.set_nonblocking(true).expect("as a connection is");
        let mut first = Some(OwnedFd::from(theirs));
        let connect = move || first.take().ok_or_else(|| "there was one connection".to_owned());
        let frames = Arc::new(InlineFrames::default());
        let peers = Peers::Connect(Box::new(connect));
        let uplink = VhostUser::start(("lan", MTU), peers, frames.clone(), PortId(7)).expect("a thread");
        let peer = RawPeer::serve(ours, offer(input.number::<8>()));
        let deadline = Instant::now() + TIMEOUT;
        while !frames.is_attached() {
            assert!(Instant::now() < deadline, "it was never attached");
            std::thread::yield_now();
        }
        let fd = memfd("frames", BODY as u64).expect("memory");
        let request = MapRequest { guest: 0, len: BODY as u64, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).expect("maps");
        let pattern: Vec<u8> = (0..BODY).map(|at| (at * 7 + at / 251) as u8).collect();
        map.write(0, &pattern).expect("mapped");
        let mut body = Spans::new(map, false);
        body.push(0, BODY).expect("mapped");
        Bench {
            _uplink: uplink,
            frames,
            peer,
            in_flight: Vec::new(),
            honest: true,
            readable: true,
            sent: VecDeque::new(),
            number: 0,
            delivered: VecDeque::new(),
            holds: Default::default(),
            body,
            pattern,
        }
    }

    /// Something happens at either end. False: there is no connection any more.
    pub fn act(&mut self, input: &mut Input<'_>) -> bool {
        match input.byte() % 16 {
            0..=3 => self.send(input),
            4 => self.lie(input),
            5 => self.overwrite(input),
            6 | 7 => return self.fetch(input),
            8 => return self.finish(input),
            9..=11 => return self.deliver(input),
            12 | 13 => self.take(input),
            14 => return self.poll(input),
            _ => return self.with(|end| end.flush(Instant::now())).is_some(),
        }
        true
    }

    /// Runs something on the uplink's end. One whose peer keeps the rules is always there.
    fn with<T>(&self, act: impl FnOnce(&mut dyn FramePort) -> T) -> Option<T> {
        let result = self.frames.with(act);
        assert!(result.is_some() || !self.honest, "the peer has kept all rules and lost its connection");
        result
    }

    /// The peer takes the buffers that were made available, each of which it had not.
    fn learn(&mut self, ring: usize) {
        while let Some(id) = self.readable.then(|| self.peer.take(ring)).flatten() {
            assert!(usize::from(id) < RING, "buffer {id} of {RING}");
            assert!(self.holds[ring].insert(id) || !self.honest, "buffer {id} was made available twice");
            if ring == OUT && self.honest {
                self.compare(id);
            }
        }
    }

    /// The next frame to the peer is in this buffer.
    fn compare(&mut self, id: u16) {
        let (at, len) = self.peer.bytes(OUT, id);
        let (sent, bytes) = self.delivered.pop_front().expect("a frame that was delivered");
        assert_eq!(len, VNET + sent);
        let mut got = vec![0; len];
        self.peer.memory().read(at, &mut got);
        assert!(bytes.is_none_or(|bytes| got[VNET..] == bytes), "it is not what was delivered");
    }

    /// The peer sends a frame as it should, in one buffer or several.
    fn send(&mut self, input: &mut Input<'_>) {
        self.learn(IN);
        let kinds = input.byte();
        let len = input.number::<2>() as usize % 9000;
        // The first one holds a header, and none is empty.
        let more = if len < 100 { 0 } else { usize::from(kinds & 3) };
        let pieces = 1 + more + len / 2100;
        let header: [u8; 10] = if kinds & 4 != 0 { std::array::from_fn(|_| input.byte()) } else { [0; 10] };
        let mut ids: Vec<u16> = self.holds[IN].iter().copied().collect();
        if !self.readable || ids.len() < pieces {
            return;
        }
        ids.sort_unstable();
        let count = ids.len();
        ids.rotate_left(usize::from(input.byte()) % count);
        let begin = usize::from(input.byte());
        let mut frame = self.pattern[begin..begin + len].to_vec();
        // No two are alike, so one that is left out is not taken for one that is not.
        self.number += 1;
        frame.iter_mut().zip(self.number.to_le_bytes()).for_each(|(byte, number)| *byte = number);
        let whole = [&header[..], &(pieces as u16).to_le_bytes(), &frame].concat();
        for (number, &id) in ids.iter().take(pieces).enumerate() {
            let share = whole.len().div_ceil(pieces);
            let piece = &whole[(number * share).min(whole.len())..((number + 1) * share).min(whole.len())];
            let (at, room) = self.peer.bytes(IN, id);
            assert!(piece.len() <= room && room == 2112, "{} bytes for a buffer of {room}", piece.len());
            self.peer.write(at, piece);
            self.peer.give_back(IN, id.into(), piece.len() as u32);
            self.holds[IN].remove(&id);
        }
        self.peer.publish(IN, 0);
        let doubtful = header != [0; 10] || len < 14;
        ids.truncate(pieces);
        self.sent.push_back(Sent { bytes: frame, ids, doubtful });
    }

    /// The peer announces what is not so. If it has kept the rules until now, that is noticed.
    fn lie(&mut self, input: &mut Input<'_>) {
        let (kinds, ring) = (input.byte(), usize::from(input.byte() & 1));
        // Buffers that were not announced to it yet may be guessed, and are as good.
        self.with(|end| end.flush(Instant::now()));
        self.learn(ring);
        let first = std::mem::replace(&mut self.honest, false);
        let id = if kinds & 1 != 0 { input.number::<4>() as u32 } else { input.number::<2>() as u32 % 600 };
        let len = if kinds & 2 != 0 { input.number::<4>() as u32 } else { input.number::<2>() as u32 % 2200 };
        self.peer.give_back(ring, id, len);
        let more = if kinds & 4 != 0 { input.number::<2>() as u16 } else { 0 };
        self.peer.publish(ring, more);
        // An index that is wrong, too, may hide it.
        if first && more == 0 && !self.may_give_back(ring, id, len) {
            let mut nothing = Input(&[]);
            (0..RING).any(|_| !self.fetch(&mut nothing));
            assert!(
                !self.lives(),
                "buffer {id} of ring {ring} with {len} bytes is not the peer's to give back"
            );
        }
    }

    /// Might the uplink take this for a frame, or for one that the peer has taken?
    fn may_give_back(&self, ring: usize, id: u32, len: u32) -> bool {
        if ring == IN && self.in_flight.len() + self.sent.len() >= RING / 2 {
            // So many are in flight that no more are fetched.
            return true;
        }
        let Some(id) = u16::try_from(id).ok().filter(|id| usize::from(*id) < RING) else { return false };
        if ring == OUT {
            return self.holds[OUT].contains(&id);
        }
        // Buffers of a frame that waits to be fetched are the switch's until that is done with it. Those of
        // one that is left out are the peer's at once.
        let waits = |sent: &Sent| !sent.doubtful && sent.ids.contains(&id);
        !self.sent.iter().any(waits) && (VNET as u32..=2112).contains(&len)
    }

    /// The switch takes all that there is, and is done with it.
    fn drain(&mut self) {
        let mut nothing = Input(&[]);
        for _ in 0..RING {
            if !self.fetch(&mut nothing) {
                return;
            }
            while !self.in_flight.is_empty() {
                if !self.finish(&mut nothing) {
                    return;
                }
            }
        }
    }

    /// Does the uplink still take frames, or wait for room?
    fn lives(&self) -> bool {
        let packet = RxFrame {
            head: &self.pattern[..60],
            body: &self.body,
            body_at: 60,
            body_len: 0,
            tag: None,
            layers: Layers::default(),
            checksum: ChecksumStatus::Unknown,
            aggregate: None,
            partial_checksum: None,
        };
        let delivered = self.frames.with(|end| {
            end.has_room();
            end.deliver_one(&packet)
        });
        delivered.is_some_and(|delivered| delivered != Err(DropReason::Uplink))
    }

    /// The peer writes where it should not.
    fn overwrite(&mut self, input: &mut Input<'_>) {
        let (kinds, ring) = (input.byte(), usize::from(input.byte() & 1));
        (self.honest, self.readable) = (false, false);
        let [descriptors, available, used] = self.peer.areas(ring);
        let at = match kinds % 4 {
            0 => descriptors + input.number::<2>() as usize % (16 * RING),
            1 => available + input.number::<2>() as usize % (2 * RING),
            2 => used + input.number::<2>() as usize % (8 * RING),
            _ => input.number::<3>() as usize,
        };
        let bytes = input.bytes(1 + usize::from(kinds >> 2));
        let memory = self.peer.memory();
        if at + bytes.len() <= memory.len() {
            memory.write(at, bytes);
        }
    }

    /// The switch takes frames.
    fn fetch(&mut self, input: &mut Input<'_>) -> bool {
        let mut tokens = [Token(0); 16];
        let most = 1 + usize::from(input.byte()) % tokens.len();
        let (in_flight, sent, honest) = (&mut self.in_flight, &mut self.sent, self.honest);
        let fetch = |end: &mut dyn FramePort| {
            let count = end.fetch(&mut tokens[..most]);
            for &token in &tokens[..count] {
                assert!(in_flight.iter().all(|other| other.token != token), "{token:?} was fetched twice");
                let frame = end.frame(token);
                check(&frame);
                if honest {
                    let mut bytes = vec![0; frame.len()];
                    frame.spans.read(0, &mut bytes);
                    let is = |sent: &Sent| sent.bytes == bytes;
                    while sent.front().is_some_and(|sent| sent.doubtful && !is(sent)) {
                        sent.pop_front();
                    }
                    assert!(sent.pop_front().is_some_and(|sent| is(&sent)), "it is not what the peer sent");
                    assert!(bytes.starts_with(frame.head));
                }
                in_flight.push(InFlight { token, head: frame.head.to_vec(), offload: frame.offload });
            }
            assert!(count <= most && in_flight.len() <= end.info().lookahead);
        };
        let fetched = self.frames.with(fetch);
        assert!(fetched.is_some() || !honest, "the peer has kept all rules and lost its connection");
        fetched.is_some()
    }

    /// The switch is done with some, in any order. What it knows of them has not changed.
    fn finish(&mut self, input: &mut Input<'_>) -> bool {
        let Some(last) = self.in_flight.len().checked_sub(1) else { return true };
        let count = 1 + usize::from(input.byte()) % (last + 1);
        for _ in 0..count {
            let at = usize::from(input.byte()) % self.in_flight.len();
            let in_flight = self.in_flight.swap_remove(at);
            let finished = self.with(|end| {
                let frame = end.frame(in_flight.token);
                assert!(
                    frame.head == in_flight.head && frame.offload == in_flight.offload,
                    "{:?} has changed",
                    in_flight.token
                );
                end.finish(&[in_flight.token]);
            });
            if finished.is_none() {
                return false;
            }
        }
        true
    }

    /// The switch delivers a frame.
    fn deliver(&mut self, input: &mut Input<'_>) -> bool {
        let kinds = input.byte();
        let whole = kinds & 1 != 0;
        let most = if whole { MAX_FRAME } else { 2000 };
        let len = 60 + input.number::<2>() as usize % (most - 60);
        let head = 54;
        let layers = Layers {
            network: Network::V4,
            transport: Transport::Tcp,
            fragment: false,
            network_at: 14,
            transport_at: 34,
        };
        let mss = 1000;
        let segments = (len - head).div_ceil(mss.into()) as u16;
        let aggregate = Aggregate { mss, segments, header: head as u16 };
        let never_zero = false;
        let packet = RxFrame {
            head: &self.pattern[..head],
            body: &self.body,
            body_at: head,
            body_len: len - head,
            tag: None,
            layers,
            checksum: ChecksumStatus::Good,
            aggregate: (whole && segments > 1).then_some(aggregate),
            partial_checksum: (kinds & 2 != 0).then_some(PartialChecksum {
                start: 34,
                field: 50,
                never_zero,
                head_sum: None,
            }),
        };
        let bytes = packet.partial_checksum.is_none().then(|| self.pattern[..len].to_vec());
        match self.with(|end| end.deliver_one(&packet)) {
            Some(Ok(())) => self.delivered.push_back((len, bytes)),
            Some(Err(reason)) => {
                let expected = [DropReason::TooLong, DropReason::NoBuffers];
                assert!(!self.honest || expected.contains(&reason), "{reason:?}");
            }
            None => return false,
        }
        true
    }

    /// The peer takes frames, and gives their buffers back in an order of its own.
    fn take(&mut self, input: &mut Input<'_>) {
        let kinds = input.byte();
        self.learn(OUT);
        let mut ids: Vec<u16> = self.holds[OUT].iter().copied().collect();
        ids.sort_unstable();
        if kinds & 1 != 0 {
            ids.reverse();
        }
        for id in ids.into_iter().take(usize::from(kinds >> 1)) {
            self.holds[OUT].remove(&id);
            self.peer.give_back(OUT, id.into(), 0);
        }
        self.peer.publish(OUT, 0);
    }

    /// What a worker asks between two bursts, and before it sleeps and after.
    fn poll(&mut self, input: &mut Input<'_>) -> bool {
        let kinds = input.byte();
        self.with(|end| {
            if kinds & 1 != 0 {
                end.has_room();
            }
            if kinds & 2 != 0 {
                end.tick(Instant::now());
            }
            if kinds & 4 != 0 {
                end.arm();
                end.disarm();
            }
            end.info().overhead.take();
        })
        .is_some()
    }

    /// With a peer that has kept the rules: all that it sent arrives, all of its buffers are its own again.
    pub fn end(mut self) {
        if self.honest {
            self.drain();
        }
        assert!(!self.honest || self.sent.iter().all(|sent| sent.doubtful), "frames of the peer are missing");
        self.with(|end| end.flush(Instant::now()));
        self.learn(IN);
        assert!(!self.honest || self.holds[IN].len() == RING, "{} of {RING} buffers", self.holds[IN].len());
    }
}

/// What must be true of any frame in flight, whatever the peer announces.
fn check(frame: &TxFrame<'_>) {
    let len = frame.len();
    assert!((14..=MAX_FRAME).contains(&len) && frame.spans.len() == len, "{len} bytes");
    assert!(frame.head.len() <= MAX_HEAD.min(len) && frame.tag.is_none() && !frame.verified);
    match frame.offload {
        Offload::None => {}
        Offload::Checksum { start, field } => {
            assert!(usize::from(field) + 2 <= len && usize::from(start) <= len);
        }
        Offload::Segment { header, mss } => assert!(mss > 0 && usize::from(header) <= frame.head.len()),
        Offload::Tunnel { .. } => panic!("a header without tunnels has no such request"),
    }
}
