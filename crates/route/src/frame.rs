//! Frames: what two helpers send each other inside one TLS connection.
//!
//! ```text
//! 0       1 .. 3   4 .. 7          8 .. 11             all little-endian
//! kind    zeros    stream          bytes that follow
//!
//! kind        what follows
//!  1 HELLO    version (2), zeros (2), streams that the sender takes at once (4)   the first frame of each end
//!  2 OPEN     client CID, port, server CID, port, flags (4 each), the client's groups, a line each
//!  3 ACCEPT   -
//!  4 REFUSE   why (1): vmlane_wire::route::Refusal
//!  5 DATA     at most 64 KiB, and no more than the receiver has given credit for
//!  6 CREDIT   so many bytes more (4)
//!  7 FIN      1: the sender sends no more; 2: it receives no more; 3: both (1)
//!  8 CLOSE    -   the sender is done; what it has sent still counts
//!  9 RESET    -
//! 10 PING     8 bytes, for the answer
//! 11 PONG     the same bytes
//! ```
//! Streams that the host that dialled opens have odd numbers, the other's even ones; each is used once.
//! HELLO, PING and PONG have stream 0. A receiver that gets anything else closes the connection.

use vmlane_wire::route::{Ends, MOST_TEXT, Refusal};

/// Of the protocol.
pub const VERSION: u16 = 1;
/// Bytes of a frame's header.
pub const HEADER: usize = 12;
/// Bytes of a DATA frame, at most.
pub const MOST_DATA: usize = 64 << 10;
/// Bytes of OPEN before the groups.
const OPENING: usize = 20;
/// Bytes of any other frame, at most.
const MOST_CONTROL: usize = OPENING + MOST_TEXT;

/// A frame other than DATA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Hello { version: u16, streams: u32 },
    Open { stream: u32, ends: Ends, flags: u32, groups: String },
    Accept { stream: u32 },
    Refuse { stream: u32, why: Refusal },
    Credit { stream: u32, bytes: u32 },
    Fin { stream: u32, send: bool, receive: bool },
    Close { stream: u32 },
    Reset { stream: u32 },
    Ping(u64),
    Pong(u64),
}

/// A frame, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Frame(Frame),
    /// So many bytes of a stream follow, in one or more [`Piece::Data`].
    DataBegins {
        stream: u32,
        len: usize,
    },
    Data {
        stream: u32,
        bytes: &'a [u8],
    },
}

/// What a peer must not send. The connection ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("a frame of kind {0}, which this version does not know")]
    Kind(u8),
    #[error("a frame of kind {kind} with {len} bytes")]
    Length { kind: u8, len: u32 },
    #[error("a frame of kind {0} with contents that mean nothing")]
    Contents(u8),
    #[error("a frame of kind {kind} for stream {stream}, at the wrong time")]
    Turn { kind: &'static str, stream: u32 },
    #[error("more data on stream {stream} than it had credit for")]
    Credit { stream: u32 },
    #[error("protocol version {0}, this one speaks {VERSION}; run the same version of vmlane on both hosts")]
    Version(u16),
    #[error("more than a HELLO before its name was proved")]
    Early,
    #[error("more streams than it was allowed to open")]
    Streams,
}

const FIN_SEND: u8 = 1;
const FIN_RECEIVE: u8 = 2;

fn header(kind: u8, stream: u32, len: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = kind;
    header[4..8].copy_from_slice(&stream.to_le_bytes());
    header[8..].copy_from_slice(&(len as u32).to_le_bytes());
    header
}

/// The header of `len` bytes of data, at most [`MOST_DATA`].
pub fn data_header(stream: u32, len: usize) -> [u8; HEADER] {
    header(5, stream, len)
}

/// Where frames are written.
pub trait Sink {
    /// Appends these bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Frame {
    /// Appends the frame as it travels.
    pub fn write(&self, out: &mut impl Sink) {
        let mut put = |kind: u8, stream: u32, body: &[u8]| {
            out.put(&header(kind, stream, body.len()));
            out.put(body);
        };
        match self {
            Frame::Hello { version, streams } => {
                let version = u32::from(*version).to_le_bytes();
                put(1, 0, &[version, streams.to_le_bytes()].concat());
            }
            Frame::Open { stream, ends: [client, server], flags, groups } => {
                let words = [client.0, client.1, server.0, server.1, *flags].map(u32::to_le_bytes).concat();
                let groups = groups.as_bytes();
                put(2, *stream, &[&words, groups.get(..MOST_TEXT).unwrap_or(groups)].concat());
            }
            Frame::Accept { stream } => put(3, *stream, &[]),
            Frame::Refuse { stream, why } => put(4, *stream, &[*why as u8]),
            Frame::Credit { stream, bytes } => put(6, *stream, &bytes.to_le_bytes()),
            Frame::Fin { stream, send, receive } => {
                put(7, *stream, &[(u8::from(*send) * FIN_SEND) | (u8::from(*receive) * FIN_RECEIVE)]);
            }
            Frame::Close { stream } => put(8, *stream, &[]),
            Frame::Reset { stream } => put(9, *stream, &[]),
            Frame::Ping(mark) => put(10, 0, &mark.to_le_bytes()),
            Frame::Pong(mark) => put(11, 0, &mark.to_le_bytes()),
        }
    }

    fn parse(kind: u8, stream: u32, body: &[u8]) -> Result<Frame, Violation> {
        let contents = Violation::Contents(kind);
        let word = |at: usize| -> Result<u32, Violation> {
            let bytes = body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_le_bytes).ok_or(contents)
        };
        let mark = || body.try_into().map(u64::from_le_bytes).map_err(|_| contents);
        let first = || body.first().copied().ok_or(contents);
        if matches!(kind, 1 | 10 | 11) != (stream == 0) {
            return Err(contents);
        }
        Ok(match kind {
            1 => Frame::Hello { version: u16::try_from(word(0)?).map_err(|_| contents)?, streams: word(4)? },
            2 => {
                let ends = [(word(0)?, word(4)?), (word(8)?, word(12)?)];
                let groups = std::str::from_utf8(body.get(OPENING..).unwrap_or_default());
                let groups = groups.map_err(|_| contents)?.to_owned();
                Frame::Open { stream, ends, flags: word(16)?, groups }
            }
            3 => Frame::Accept { stream },
            4 => Frame::Refuse { stream, why: Refusal::from_wire(first()?.into()).ok_or(contents)? },
            6 => Frame::Credit { stream, bytes: word(0)? },
            7 => match first()? {
                bits @ 1..=3 => {
                    Frame::Fin { stream, send: bits & FIN_SEND != 0, receive: bits & FIN_RECEIVE != 0 }
                }
                _ => return Err(contents),
            },
            8 => Frame::Close { stream },
            9 => Frame::Reset { stream },
            10 => Frame::Ping(mark()?),
            11 => Frame::Pong(mark()?),
            other => return Err(Violation::Kind(other)),
        })
    }
}

/// How many bytes a frame of this kind may have.
fn lengths(kind: u8) -> Option<std::ops::RangeInclusive<usize>> {
    Some(match kind {
        1 | 10 | 11 => 8..=8,
        2 => OPENING..=MOST_CONTROL,
        3 | 8 | 9 => 0..=0,
        4 | 7 => 1..=1,
        5 => 1..=MOST_DATA,
        6 => 4..=4,
        _ => return None,
    })
}

/// Takes frames out of a stream of bytes that comes in pieces. Holds one frame other than DATA at most.
#[derive(Debug, Default)]
pub struct Decoder {
    held: Vec<u8>,
    /// Of a DATA frame whose header has come.
    data: Option<(u32, usize)>,
}

impl Decoder {
    /// Hands on what `bytes` complete, in order, until `each` refuses something.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Piece<'_>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        while !bytes.is_empty() {
            if let Some((stream, left)) = self.data {
                let (now, rest) = bytes.split_at(left.min(bytes.len()));
                bytes = rest;
                self.data = Some((stream, left - now.len())).filter(|(_, left)| *left > 0);
                each(Piece::Data { stream, bytes: now })?;
                continue;
            }
            let wanted = match self.header()? {
                None => HEADER,
                Some((_, _, len)) => HEADER + len,
            };
            let (now, rest) = bytes.split_at((wanted - self.held.len()).min(bytes.len()));
            bytes = rest;
            self.held.extend_from_slice(now);
            let Some((kind, stream, len)) = self.header()? else { continue };
            if kind == 5 {
                self.held.clear();
                self.data = Some((stream, len));
                each(Piece::DataBegins { stream, len })?;
            } else if self.held.len() == HEADER + len {
                let frame = Frame::parse(kind, stream, self.held.get(HEADER..).unwrap_or_default());
                self.held.clear();
                each(Piece::Frame(frame?))?;
            }
        }
        Ok(())
    }

    /// Kind, stream and length, once they are all there.
    fn header(&self) -> Result<Option<(u8, u32, usize)>, Violation> {
        let Some(header) = self.held.first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, zeros @ .., s0, s1, s2, s3, l0, l1, l2, l3] = *header;
        let (stream, len) = (u32::from_le_bytes([s0, s1, s2, s3]), u32::from_le_bytes([l0, l1, l2, l3]));
        let allowed = lengths(kind).ok_or(Violation::Kind(kind))?;
        if !allowed.contains(&(len as usize)) {
            return Err(Violation::Length { kind, len });
        }
        if zeros != [0; 3] || (kind == 5 && stream == 0) {
            return Err(Violation::Contents(kind));
        }
        Ok(Some((kind, stream, len as usize)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let stream = 1..u32::MAX;
        let ends = (any::<(u32, u32)>(), any::<(u32, u32)>()).prop_map(|(client, server)| [client, server]);
        prop_oneof![
            (any::<u16>(), any::<u32>()).prop_map(|(version, streams)| Frame::Hello { version, streams }),
            (stream.clone(), ends, any::<u32>(), "[a-z\n]{0,40}")
                .prop_map(|(stream, ends, flags, groups)| Frame::Open { stream, ends, flags, groups }),
            stream.clone().prop_map(|stream| Frame::Accept { stream }),
            (stream.clone(), 0..5usize)
                .prop_map(|(stream, why)| Frame::Refuse { stream, why: Refusal::ALL[why] }),
            (stream.clone(), any::<u32>()).prop_map(|(stream, bytes)| Frame::Credit { stream, bytes }),
            (stream.clone(), 1..4u8).prop_map(|(stream, bits)| Frame::Fin {
                stream,
                send: bits & 1 != 0,
                receive: bits & 2 != 0
            }),
            stream.clone().prop_map(|stream| Frame::Close { stream }),
            stream.prop_map(|stream| Frame::Reset { stream }),
            any::<u64>().prop_map(Frame::Ping),
            any::<u64>().prop_map(Frame::Pong),
        ]
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Sent {
        Frame(Frame),
        Data(u32, Vec<u8>),
    }

    fn sent() -> impl Strategy<Value = Sent> {
        prop_oneof![
            frames().prop_map(Sent::Frame),
            (1..u32::MAX, prop::collection::vec(any::<u8>(), 1..300))
                .prop_map(|(stream, data)| Sent::Data(stream, data)),
        ]
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent_however_they_are_cut(
            all in prop::collection::vec(sent(), 0..20),
            cut in 1..60usize,
        ) {
            let mut bytes = Vec::new();
            for one in &all {
                match one {
                    Sent::Frame(frame) => frame.write(&mut bytes),
                    Sent::Data(stream, data) => {
                        bytes.extend_from_slice(&data_header(*stream, data.len()));
                        bytes.extend_from_slice(data);
                    }
                }
            }
            let mut decoder = Decoder::default();
            let mut received: Vec<Sent> = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.feed(piece, |piece| {
                    match (piece, received.last_mut()) {
                        (Piece::Frame(frame), _) => received.push(Sent::Frame(frame)),
                        (Piece::DataBegins { stream, .. }, _) => received.push(Sent::Data(stream, Vec::new())),
                        (Piece::Data { bytes, .. }, Some(Sent::Data(_, all))) => all.extend_from_slice(bytes),
                        (Piece::Data { .. }, _) => panic!("data without a beginning"),
                    }
                    Ok(())
                }).unwrap();
            }
            prop_assert_eq!(received, all);
        }

        #[test]
        fn no_bytes_make_it_hold_more_than_a_frame(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut decoder = Decoder::default();
            let _ = decoder.feed(&bytes, |_| Ok(()));
            prop_assert!(decoder.held.len() <= HEADER + MOST_CONTROL);
        }
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_has_come() {
        for (kind, len) in [(5, MOST_DATA + 1), (5, 0), (2, MOST_CONTROL + 1), (2, 19), (6, 5), (1, 7)] {
            let refused = Decoder::default().feed(&header(kind, 1, len), |_| Ok(()));
            assert_eq!(refused, Err(Violation::Length { kind, len: len as u32 }));
        }
        assert_eq!(Decoder::default().feed(&header(12, 1, 0), |_| Ok(())), Err(Violation::Kind(12)));
        assert_eq!(Decoder::default().feed(&header(5, 0, 1), |_| Ok(())), Err(Violation::Contents(5)));
    }
}
