//! Between the daemon and the helper that carries streams to other hosts: records over `route.sock`.
//!
//! Every connection to `route.sock` begins with one [`Record`] and the text behind it:
//!
//! * [`Op::Line`]: the helper reports for work. The answer is a [`Reply`](crate::host::Reply) with a packet
//!   socket attached, the *line*, whose messages are records with their texts; the connection itself carries
//!   nothing more. There is one line at a time.
//! * [`Op::Open`]: a stream from another host to this one. The answer is a [`Reply`](crate::host::Reply),
//!   with the memory of a ring if its error is 0; the connection is the signal line beside the ring, as after
//!   a CONNECT with [`FLAG_RING`](crate::host::FLAG_RING).
//! * [`Op::Accept`]: another host has accepted the call of this number. Answered as `Open` is.
//!
//! A helper that sets [`FLAG_RING`] in these may get a program's own ring, with two descriptors in place of
//! one: the memory, whose daemon's half is the helper's from there on, and the daemon's end of the program's
//! signal line. Before the stream is over the helper sets [`ended::DETACHED`](crate::host::ended::DETACHED)
//! in the daemon's page, in place of `ANNOUNCED_CLOSE`; that the program has gone, the daemon announces by
//! `ANNOUNCED_CLOSE` in the program's page, with a [`SIGNAL`](crate::host::SIGNAL) on the connection. Of a
//! program that sends [`SWITCH`](crate::host::SWITCH) the helper notifies the daemon by the same byte on the
//! connection. From there on the daemon has the program's half, and both signal on the connection.
//!
//! A connection of a stream that hangs up without having announced
//! [`ANNOUNCED_CLOSE`](crate::host::ANNOUNCED_CLOSE) resets its stream: so do all of a helper that is killed.
//!
//! Over the line the daemon sends [`Op::Call`] and [`Op::GivenUp`], the helper [`Op::Refuse`] and
//! [`Op::Status`].

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// "VMLr", little-endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"VMLr");
/// Of the records.
pub const VERSION: u16 = 1;
/// Bytes of text behind a record, at most.
pub const MOST_TEXT: usize = 8192;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u16)]
pub enum Op {
    /// The helper reports for work.
    Line = 1,
    /// A peer's stream: addresses, flags of its client; the text is the peer's name and the client's groups,
    /// a line each.
    Open = 2,
    /// The peer has accepted the call `number`.
    Accept = 3,
    /// A stream to a peer is wanted: as `Open`, with a number to answer by.
    Call = 4,
    /// The client of the call `number` has given up.
    GivenUp = 5,
    /// Nothing comes of the call `number`; `flags` is a [`Refusal`].
    Refuse = 6,
    /// How it stands with a peer: its name, `up` or another state, what is wrong (or nothing), then a name
    /// and a count per line.
    Status = 7,
}

/// Why a stream does not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The other end refused: no program listens there.
    Refused = 1,
    /// The other end did not answer in time, or went away.
    Gone = 2,
    /// Nothing answers for the address.
    Absent = 3,
    /// It may not be reached from there.
    Forbidden = 4,
    /// A limit is reached.
    Full = 5,
}

impl Refusal {
    pub const ALL: [Refusal; 5] =
        [Refusal::Refused, Refusal::Gone, Refusal::Absent, Refusal::Forbidden, Refusal::Full];

    pub fn from_wire(value: u32) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|why| *why as u32 == value)
    }
}

/// The client may be reached by, and reach, trusted VMs only.
pub const FLAG_RESTRICTED: u32 = 1;
/// The client may talk to restricted VMs.
pub const FLAG_TRUSTED: u32 = 2;

/// Of the helper: it can share a program's ring with it. In `Line`, `Open` and `Accept`.
pub const FLAG_RING: u32 = 4;

/// See the module's text. `len` bytes of text follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Record {
    pub magic: U32,
    pub version: U16,
    pub op: U16,
    pub number: U64,
    pub client_cid: U32,
    pub client_port: U32,
    pub server_cid: U32,
    pub server_port: U32,
    pub flags: U32,
    pub len: U32,
}
/// Bytes of a [`Record`].
pub const RECORD: usize = 40;
const _: () = assert!(size_of::<Record>() == RECORD);

/// Client and server of a stream: CID and port of each.
pub type Ends = [(u32, u32); 2];

impl Record {
    /// A record and its text, as they travel. A text that is too long is cut.
    pub fn message(op: Op, number: u64, [client, server]: Ends, flags: u32, text: &str) -> Vec<u8> {
        let text = text.as_bytes();
        let text = text.get(..MOST_TEXT).unwrap_or(text);
        let record = Record {
            magic: MAGIC.into(),
            version: VERSION.into(),
            op: (op as u16).into(),
            number: number.into(),
            client_cid: client.0.into(),
            client_port: client.1.into(),
            server_cid: server.0.into(),
            server_port: server.1.into(),
            flags: flags.into(),
            len: (text.len() as u32).into(),
        };
        [record.as_bytes(), text].concat()
    }

    /// What it is about, if it is a record of this version.
    pub fn op(&self) -> Option<Op> {
        let ours = self.magic.get() == MAGIC && self.version.get() == VERSION;
        ours.then(|| Op::try_read_from_bytes(self.op.as_bytes()).ok())
            .flatten()
            .filter(|_| self.len.get() as usize <= MOST_TEXT)
    }

    /// Client and server.
    pub fn ends(&self) -> Ends {
        [(self.client_cid.get(), self.client_port.get()), (self.server_cid.get(), self.server_port.get())]
    }

    /// A whole message: a record that is understood, and its text.
    pub fn parse(message: &[u8]) -> Option<(Record, Op, &str)> {
        let (record, text) = Record::read_from_prefix(message).ok()?;
        let op = record.op()?;
        let text = text.get(..record.len.get() as usize)?;
        Some((record, op, std::str::from_utf8(text).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_understood_and_nothing_else_is() {
        let ends = [(3, 1000), (2005, 80)];
        let message = Record::message(Op::Call, 7, ends, FLAG_TRUSTED, "beta\ntenant");
        let (record, op, text) = Record::parse(&message).unwrap();
        assert_eq!((op, record.number.get(), record.ends(), record.flags.get()), (Op::Call, 7, ends, 2));
        assert_eq!(text, "beta\ntenant");
        for len in 0..message.len() {
            assert!(Record::parse(&message[..len]).is_none(), "{len}");
        }
        let mut other = message.clone();
        other[6] = 99;
        assert!(Record::parse(&other).is_none());
        let mut long = message;
        long[36..40].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Record::parse(&long).is_none());
    }
}
