//! What a peer sends, and what the daemon answers about the streams that it is of.

use std::io;

use vmlane_wire::route::{FLAG_RESTRICTED, FLAG_RING, FLAG_TRUSTED, Op, Record};

use super::state::{Entry, Helper, PROGRAM, Stage, refusal};
use crate::credit::Window;
use crate::daemon;
use crate::frame::{Frame, Piece, VERSION, Violation};
use crate::link::{Lane, Link, LinkError, Phase, Token};
use crate::program::Program;
use crate::ring::StreamRing;
use crate::stream::Stream;
use crate::tls::Ready;

/// Frames that a peer may send of a stream whose ring is not there yet.
const EARLY: usize = 4;
/// Bytes that are to be sent to a peer which does not read them: it is gone, or wants to fill memory.
const MOST_WAITING: usize = 8 << 20;

impl Helper {
    /// Takes what a peer has sent.
    pub(super) fn receive(&mut self, link: &mut Link) -> Result<(), LinkError> {
        if link.lane.phase == Phase::Connecting {
            if !link.wire.can_write {
                return Ok(());
            }
            link.wire.connected()?;
            link.lane.phase = Phase::Handshaking;
        }
        let Link { wire, lane } = link;
        loop {
            let ready = wire.receive(lane, &mut |lane, piece| self.piece(lane, piece));
            // Now, and not in their turns: those wait for the network.
            for token in lane.fresh.drain(..) {
                if let Some(Entry { stage: Stage::Streaming(open), .. }) = self.entries.get_mut(&token) {
                    open.notify_bytes();
                }
            }
            let ready = ready?;
            if wire.waiting() > MOST_WAITING {
                return Err(io::Error::other("it does not read what it is sent").into());
            }
            match ready {
                Ready::Closed => return Err(LinkError::Closed),
                Ready::Open if lane.phase == Phase::Handshaking => {
                    self.name_proved(wire, lane)?;
                }
                Ready::Open | Ready::Handshaking => return Ok(()),
            }
        }
    }

    fn piece(&mut self, lane: &mut Lane, piece: Piece<'_>) -> Result<(), Violation> {
        match piece {
            Piece::Frame(frame) => self.frame(lane, frame),
            Piece::DataBegins { stream, len } => {
                let Some(&token) = lane.streams.get(&stream) else {
                    return if lane.is_past(stream) { Ok(()) } else { Err(turn("DATA", stream)) };
                };
                match self.entries.get_mut(&token).map(|entry| &mut entry.stage) {
                    Some(Stage::Streaming(open)) => open.expect(len, lane.last_received, lane.round),
                    // None was given credit.
                    _ => Err(Violation::Credit { stream }),
                }
            }
            Piece::Data { stream, bytes } => {
                lane.received += bytes.len() as u64;
                let Some(&token) = lane.streams.get(&stream) else { return Ok(()) };
                if let Some(Entry { stage: Stage::Streaming(open), .. }) = self.entries.get_mut(&token) {
                    if open.write(bytes).is_err() {
                        // The daemon has broken the ring.
                        self.forget(lane, stream, true);
                    } else {
                        lane.ready.push(token);
                        if lane.fresh.last() != Some(&token) {
                            lane.fresh.push(token);
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// Forgets a stream whose link is being served.
    fn forget(&mut self, lane: &mut Lane, stream: u32, notify: bool) {
        let Some(token) = lane.forget(stream) else { return };
        if let Some(Entry { stage: Stage::Calling(number), .. }) = self.entries.remove(&token) {
            self.calls.remove(&number);
        }
        if notify {
            lane.queue(&Frame::Reset { stream });
        }
    }

    fn frame(&mut self, lane: &mut Lane, frame: Frame) -> Result<(), Violation> {
        if let Frame::Hello { version, streams } = frame {
            return match lane.phase {
                Phase::Greeting if version == VERSION => {
                    lane.takes = streams as usize;
                    self.link_up(lane);
                    Ok(())
                }
                Phase::Greeting => Err(Violation::Version(version)),
                _ => Err(turn("HELLO", 0)),
            };
        }
        if lane.phase != Phase::Up {
            return Err(turn("any but HELLO", 0));
        }
        let (kind, stream) = match &frame {
            Frame::Hello { .. } => return Ok(()),
            Frame::Pong(mark) => {
                lane.ponged(*mark);
                return Ok(());
            }
            Frame::Ping(mark) => {
                lane.queue(&Frame::Pong(*mark));
                return Ok(());
            }
            Frame::Open { .. } => return self.opened(lane, frame),
            Frame::Accept { stream } => ("ACCEPT", *stream),
            Frame::Refuse { stream, .. } => ("REFUSE", *stream),
            Frame::Credit { stream, .. } => ("CREDIT", *stream),
            Frame::Fin { stream, .. } => ("FIN", *stream),
            Frame::Close { stream } => ("CLOSE", *stream),
            Frame::Reset { stream } => ("RESET", *stream),
        };
        let Some(&token) = lane.streams.get(&stream) else {
            return if lane.is_past(stream) { Ok(()) } else { Err(turn(kind, stream)) };
        };
        let Some(entry) = self.entries.get_mut(&token) else { return Ok(()) };
        match (&mut entry.stage, frame) {
            (_, Frame::Reset { .. }) => {
                if let Stage::Calling(_) = entry.stage {
                    self.call_refused(token, vmlane_wire::route::Refusal::Gone);
                }
                self.forget(lane, stream, false);
            }
            (Stage::Calling(number), Frame::Accept { .. }) => {
                let number = *number;
                self.calls.remove(&number);
                let message = Record::message(Op::Accept, number, Default::default(), FLAG_RING, "");
                match self.ask_for_ring(token, &message, true) {
                    Ok(stage) => {
                        drop(self.entries.insert(token, Entry { link: lane.token, number: stream, stage }))
                    }
                    Err(error) => {
                        tracing::debug!(%error, "no ring for a stream that a peer has accepted");
                        self.forget(lane, stream, true);
                    }
                }
            }
            (Stage::Calling(_), Frame::Refuse { why, .. }) => {
                self.call_refused(token, why);
                lane.forget(stream);
            }
            (
                Stage::Asking { early, .. },
                frame @ (Frame::Credit { .. } | Frame::Fin { .. } | Frame::Close { .. }),
            ) => {
                if early.len() >= EARLY {
                    return Err(turn(kind, stream));
                }
                early.push(frame);
            }
            (Stage::Streaming(open), frame) => {
                let over = apply(open, &frame, kind)?;
                if over {
                    self.forget(lane, stream, false);
                } else {
                    lane.ready.push(token);
                }
            }
            _ => return Err(turn(kind, stream)),
        }
        Ok(())
    }

    /// The daemon sends something about the ring of a stream.
    pub(super) fn daemon_answers(&mut self, token: Token) {
        let Some(Entry { stage: Stage::Asking { socket, accepts, .. }, .. }) = self.entries.get(&token)
        else {
            return;
        };
        let accepts = *accepts;
        let refuse = |this: &mut Helper, error: &io::Error| {
            let why = refusal(error);
            match accepts {
                true => this.drop_stream(token, Some(&|stream| Frame::Reset { stream })),
                false => this.drop_stream(token, Some(&|stream| Frame::Refuse { stream, why })),
            }
        };
        let answer = match daemon::answer(socket) {
            Ok(None) => return,
            Ok(Some((reply, fds))) => match reply.error.get() {
                0 => Ok(fds.into_iter()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            Err(error) => Err(error),
        };
        let mut files = match answer {
            Ok(files) => files,
            Err(error) => return refuse(self, &error),
        };
        let Some(memory) = files.next() else { return refuse(self, &io::ErrorKind::InvalidData.into()) };
        let Some(entry) = self.entries.remove(&token) else { return };
        let Entry { link, number, stage: Stage::Asking { socket, early, .. } } = entry else { return };
        let peers = self.links.get(&link).map(|link| link.lane.windows.clone());
        let Some(peers) = peers else { return };
        let window = Window::new([peers, self.windows.clone()]);
        let ring = match files.next() {
            None => StreamRing::of_daemon(memory),
            // A program's own, and the daemon's end of its socket.
            Some(program) => Program::new(program, self.epoll.clone(), token | PROGRAM)
                .and_then(|program| StreamRing::of_program(memory, program)),
        };
        let stream = match ring {
            Ok(ring) => Stream::new(number, socket, ring, window),
            Err(error) => {
                if let Some(held_back) = self.logs.rings.allow() {
                    tracing::error!(%error, held_back, "no ring for a stream; it is refused");
                }
                self.entries.insert(token, Entry { link, number, stage: Stage::Calling(0) });
                return refuse(self, &error);
            }
        };
        let stage = Stage::Streaming(Box::new(stream));
        self.entries.insert(token, Entry { link, number, stage });
        if !accepts && let Some(link) = self.links.get_mut(&link) {
            link.lane.queue(&Frame::Accept { stream: number });
        }
        self.wake(link, token);
        for frame in early {
            self.stream_frame(token, &frame);
        }
    }

    /// A frame that came before the stream's ring.
    fn stream_frame(&mut self, token: Token, frame: &Frame) {
        let Some(Entry { stage: Stage::Streaming(open), .. }) = self.entries.get_mut(&token) else { return };
        match apply(open, frame, "FIN") {
            Ok(false) => {}
            Ok(true) => self.drop_stream(token, None),
            Err(_) => self.drop_stream(token, Some(&|stream| Frame::Reset { stream })),
        }
    }

    /// A peer asks for a stream to this host. The daemon decides.
    fn opened(&mut self, lane: &mut Lane, frame: Frame) -> Result<(), Violation> {
        let Frame::Open { stream, ends, flags, groups } = frame else { return Ok(()) };
        if !lane.takes_number(stream) {
            return Err(turn("OPEN", stream));
        }
        if lane.streams.len() >= self.settings.bounds.streams.saturating_mul(2) {
            return Err(Violation::Streams);
        }
        let name = lane.peer.clone().unwrap_or_default();
        // What the peer claims of its client, and what this helper can.
        let flags = flags & (FLAG_RESTRICTED | FLAG_TRUSTED) | FLAG_RING;
        let message = Record::message(Op::Open, 0, ends, flags, &format!("{name}\n{groups}"));
        let token = self.token();
        match self.ask_for_ring(token, &message, false) {
            Ok(stage) => {
                lane.streams.insert(stream, token);
                self.entries.insert(token, Entry { link: lane.token, number: stream, stage });
            }
            Err(error) => {
                let why = refusal(&error);
                lane.queue(&Frame::Refuse { stream, why });
            }
        }
        Ok(())
    }
}

fn turn(kind: &'static str, stream: u32) -> Violation {
    Violation::Turn { kind, stream }
}

/// A frame for an open stream. True: it is over.
fn apply(open: &mut Stream, frame: &Frame, kind: &'static str) -> Result<bool, Violation> {
    match *frame {
        Frame::Credit { stream, bytes } => {
            if open.add_credit(bytes) {
                Ok(false)
            } else {
                Err(Violation::Credit { stream })
            }
        }
        Frame::Fin { send, receive, .. } => {
            open.finish(send, receive);
            Ok(false)
        }
        Frame::Close { .. } => Ok(open.close()),
        Frame::Accept { stream } | Frame::Refuse { stream, .. } => Err(turn(kind, stream)),
        _ => Ok(false),
    }
}
