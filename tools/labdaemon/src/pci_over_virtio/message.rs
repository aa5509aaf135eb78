//! A PCI function over virtio: what User Mode Linux sends to one, and what comes back.
//!
//! Source: `include/uapi/linux/virtio_pcidev.h` of Linux, which is under the BSD licence, too. Two
//! virtqueues: accesses of the guest, answered in the same chain, and messages of the function, for which the
//! guest posts buffers. The header is in the byte order of the host that both ends share; data is
//! little-endian.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// The virtqueue of accesses.
pub const ACCESSES: u16 = 0;
/// The virtqueue of interrupts.
pub const INTERRUPTS: u16 = 1;

/// First in every message. Data follows where the guest writes, and where the function sends an interrupt
/// message.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Message {
    op: u8,
    pub bar: u8,
    reserved: U16,
    /// Bytes of data.
    pub size: U32,
    /// The offset in the configuration space or the BAR; of a line interrupt its pin.
    pub addr: U64,
}
const _: () = assert!(size_of::<Message>() == 16);

/// The contents of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Op {
    ConfigRead = 1,
    ConfigWrite = 2,
    Read = 3,
    Write = 4,
    /// One byte, to be stored `size` times.
    Fill = 5,
    Line = 6,
    /// The data that would be written to the message's address.
    Message = 7,
}

impl Message {
    pub fn new(op: Op, bar: u8, addr: u64, size: u32) -> Message {
        Message { op: op as u8, bar, reserved: U16::ZERO, size: size.into(), addr: addr.into() }
    }

    pub fn op(&self) -> Option<Op> {
        Op::try_read_from_bytes(&[self.op]).ok()
    }
}
