//! Between the daemon and a process of its host: requests over `host.sock`, and the memory of a ring.
//!
//! A connection to `host.sock` carries one [`Request`] and its [`Reply`]. After a CONNECT it is the
//! stream itself (or, with [`FLAG_RING`], the signal line beside a ring in shared memory). After a LISTEN
//! every further [`Reply`] is an accepted connection, with its socket (and the ring's memory) attached.
//! After a DATAGRAM the reply has a packet socket attached whose messages begin with a [`Peer`].
//!
//! The signal line carries [`SIGNAL`]s, which mean "poll the indices". A process that cannot use the ring
//! itself any more (it forks, for instance) sends [`SWITCH`], touches the ring no more and sends nothing
//! until the daemon has answered [`SWITCH`]: from there on the socket carries the stream, and the daemon
//! moves the bytes.
//!
//! A ring's file: the process's data, the daemon's data (`size` bytes each, a power of two of whole
//! pages), then the page that the process writes, then the page that the daemon writes. The rings
//! follow the rules of VMCI queue pairs: `docs/devices/vmci.md`, M1 to M8.

use zerocopy::little_endian::{I32, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// "VMLh", little-endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"VMLh");
/// Of the records and of the ring's layout.
pub const VERSION: u16 = 1;

/// The stream's bytes travel in shared memory.
pub const FLAG_RING: u32 = 1;
/// DATAGRAM: the packet socket keeps the port by itself, and the daemon closes what asked for it.
pub const FLAG_ALONE: u32 = 2;
/// All flags there are.
pub const ALL_FLAGS: u32 = FLAG_RING | FLAG_ALONE;

/// Signal line: something may have changed in the ring.
pub const SIGNAL: u8 = 0;
/// Signal line: what comes behind this byte is the stream.
pub const SWITCH: u8 = 1;

/// In a [`Request`]: a port of the daemon's choice.
pub const PORT_ANY: u32 = u32::MAX;

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u16)]
pub enum Op {
    /// A stream to (`cid`, `port`).
    Connect = 1,
    /// Streams that guests open to `port`; `arg`: how many may wait.
    Listen = 2,
    /// Datagrams to and from `port`.
    Datagram = 3,
}

/// The first bytes of a connection to `host.sock`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Request {
    pub magic: U32,
    pub version: U16,
    pub op: U16,
    pub cid: U32,
    pub port: U32,
    pub arg: U32,
    pub flags: U32,
}
/// Bytes of a [`Request`].
pub const REQUEST: usize = 24;
const _: () = assert!(size_of::<Request>() == REQUEST);

impl Request {
    pub fn new(op: Op, cid: u32, port: u32, arg: u32, flags: u32) -> Request {
        Request {
            magic: MAGIC.into(),
            version: VERSION.into(),
            op: (op as u16).into(),
            cid: cid.into(),
            port: port.into(),
            arg: arg.into(),
            flags: flags.into(),
        }
    }

    /// What it asks for, if it is a request of this version.
    pub fn op(&self) -> Option<Op> {
        let ours = self.magic.get() == MAGIC && self.version.get() == VERSION;
        ours.then(|| Op::try_read_from_bytes(self.op.as_bytes()).ok()).flatten()
    }
}

/// An answer, or an accepted connection. `error`: an errno, 0 for success. `cid` and `port`: after CONNECT
/// and LISTEN this end's address, for an accepted connection the guest's.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reply {
    pub magic: U32,
    pub error: I32,
    pub cid: U32,
    pub port: U32,
}
/// Bytes of a [`Reply`].
pub const REPLY: usize = 16;
const _: () = assert!(size_of::<Reply>() == REPLY);

impl Reply {
    pub fn new(error: i32, cid: u32, port: u32) -> Reply {
        Reply { magic: MAGIC.into(), error: error.into(), cid: cid.into(), port: port.into() }
    }
}

/// In front of each message of a datagram socket: where it goes, or where it came from.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Peer {
    pub cid: U32,
    pub port: U32,
}
/// Bytes of a [`Peer`].
pub const PEER: usize = 8;

/// Words of the two index pages. In the process's page the tail is of its own data, the head of the
/// daemon's; in the daemon's page the other way round.
pub mod word {
    pub const TAIL: usize = 0;
    pub const HEAD: usize = 8;
    /// The process's: not 0 while it waits for a signal that there are bytes.
    pub const WANTS_BYTES: usize = 16;
    /// The process's: not 0 while it waits for a signal that there is room.
    pub const WANTS_ROOM: usize = 24;
    /// The process's: [`super::ANNOUNCED_SEND`] and [`super::ANNOUNCED_RECEIVE`]; followed by a signal.
    pub const ANNOUNCED: usize = 32;
    /// The daemon's: how the stream ended, as bits of [`super::ended`].
    pub const ENDED: usize = 16;
}

/// The process sends no more.
pub const ANNOUNCED_SEND: u64 = 1;
/// The process reads no more.
pub const ANNOUNCED_RECEIVE: u64 = 2;
/// The process is done and hangs up: what it has written still arrives. Only [`crate::route`] uses it;
/// elsewhere to hang up means that.
pub const ANNOUNCED_CLOSE: u64 = 4;

/// Bits of [`word::ENDED`]; all bytes before are published when one is set.
pub mod ended {
    pub const FINISHED: u64 = 1;
    pub const REFUSED: u64 = 2;
    pub const DETACHED: u64 = 4;
    pub const RESET: u64 = 8;
}

/// Bytes of an index page.
pub const INDEX_PAGE: u64 = 4096;
/// Bytes of each ring.
pub const RING: u64 = 256 << 10;

/// Where things lie in a ring's file with rings of `size` bytes.
pub mod layout {
    use super::INDEX_PAGE;

    pub const PROCESS_DATA: u64 = 0;

    pub const fn daemon_data(size: u64) -> u64 {
        size
    }

    pub const fn process_page(size: u64) -> u64 {
        2 * size
    }

    pub const fn daemon_page(size: u64) -> u64 {
        2 * size + INDEX_PAGE
    }

    /// Bytes of the file.
    pub const fn file(size: u64) -> u64 {
        2 * size + 2 * INDEX_PAGE
    }
}
