//! Which records there are of the hypervisor, and their keys and parts (`docs/survival.md`): when they are
//! written is in `commit.rs`, how the next daemon restores them in `restore.rs`.

mod commit;
pub mod restore;

use vmlane_state::{Key as RecordKey, Reader, Writer};
use vmlane_vsock::Key;
use vmlane_wire::vmci::{DatagramHeader, INVALID_ID, MAX_DATAGRAM};
use zerocopy::FromBytes;

use super::account::{Account, Charged};
use super::sides::Sides;

/// Kinds of records of the hypervisor.
pub const GENERATION: u32 = 1;
pub const CONTEXT: u32 = 2;
pub const DOORBELL: u32 = 3;
pub const WELL_KNOWN: u32 = 4;
pub const PAIR: u32 = 5;
pub const PAGES: u32 = 6;
pub const OVERFLOW: u32 = 7;
pub const NOTIFIED: u32 = 8;
pub const CONNECTION: u32 = 9;
pub const ITEM: u32 = 10;
pub const EXECUTED: u32 = 11;

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    Context(u32),
    /// Context and resource.
    Doorbell(u32, u32),
    WellKnown(u32, u32),
    /// By its serial number.
    Pair(u64),
    Connection(Key),
    /// The request that a context had done last is of no interest any more.
    Executed(u32),
}

/// Key of what waits for `cid`.
pub fn item(cid: u32, number: u64) -> RecordKey {
    (ITEM, cid.into(), number)
}

/// Something that waits: of whom and charged to what, unless the device itself made it.
pub fn waiting(of: Charged, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::new();
    let (account, from) = of.map_or((0, 0), |(account, from)| (1 + account as u8, from));
    out.u8(account).u32(from).bytes(bytes);
    out.0
}

pub fn parse_waiting(record: &[u8]) -> Option<(Charged, Box<[u8]>)> {
    let mut from = Reader::new(record);
    let (account, cid) = (from.u8()?, from.u32()?);
    let of = match account {
        0 => None,
        1 => Some((Account::Ordinary, cid)),
        2 => Some((Account::Control, cid)),
        _ => return None,
    };
    let bytes = from.bytes()?;
    from.end()?;
    // Its receiver finds the next one by its header.
    let (header, payload) = DatagramHeader::read_from_prefix(bytes).ok()?;
    let whole = header.payload_size() == payload.len() as u64 && bytes.len() <= MAX_DATAGRAM;
    (whole && header.dst().resource != INVALID_ID).then(|| (of, bytes.into()))
}

/// What one side's peer has left for it, which begins at index `tail`.
pub fn overflow(tail: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u64(tail).bytes(bytes);
    out.0
}

/// The pages of one side: bytes of each, addresses.
pub fn pages(page_size: usize, list: &[u64]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(page_size.trailing_zeros()).words(list.iter().copied());
    out.0
}

pub fn parse_pages(record: &[u8]) -> Option<(usize, Vec<u64>)> {
    let mut from = Reader::new(record);
    let (shift, list) = (from.u32()?, from.words()?);
    from.end()?;
    [12, 14, 16].contains(&shift).then(|| (1 << shift, list))
}

/// No machine has seen so many daemons, one after the other.
pub const MOST_DAEMONS: u64 = 1 << 22;

/// The first number of what waits in a daemon with so many before it: none is ever used again.
pub fn first_number(generation: u64) -> u64 {
    (generation + 1) << 40
}

pub fn address((cid, port): (u32, u32)) -> u64 {
    u64::from(cid) << 32 | u64::from(port)
}

pub fn socket_address(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// What else the records state of a pair, by side.
#[derive(Default)]
pub struct PairParts {
    /// Bytes of a page, and the pages' addresses.
    pub pages: Sides<Option<(usize, Vec<u64>)>>,
    /// Ends that each side was notified of.
    pub notified: Sides<u8>,
    /// What each side's peer has left for it, and the tail where that begins.
    pub overflow: Sides<Option<(u64, Vec<u8>)>>,
}
