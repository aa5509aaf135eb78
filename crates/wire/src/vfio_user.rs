//! vfio-user messages: a 16-byte header, then one of the fixed layouts below and perhaps data.
//!
//! Layouts follow `docs/interop/vfio-user.rst` of QEMU; the region, interrupt and DMA structures in
//! it are those of `<linux/vfio.h>`. All integers are little-endian here: the protocol calls for "host
//! order" and both ends share one machine. Nothing in this file trusts a length that it received.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

mod payload;

pub use payload::*;

/// Bytes of [`Header`].
pub const HEADER: usize = size_of::<Header>();

/// Largest message accepted, header included. Register and DMA messages are far smaller.
pub const MAX_MESSAGE: usize = 64 * 1024 + HEADER;

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u16)]
pub enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceInfo = 4,
    RegionInfo = 5,
    RegionIoFds = 6,
    IrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    DmaRead = 11,
    DmaWrite = 12,
    DeviceReset = 13,
    DirtyPages = 14,
}

impl Command {
    /// The command with number `code`, if this protocol version has one.
    pub fn from_code(code: u16) -> Option<Command> {
        Command::try_read_from_bytes(code.as_bytes()).ok()
    }

    /// The number on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }
}

/// Command or reply, from the low four flag bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Request,
    Reply,
    /// A value the protocol does not define.
    Unknown(u32),
}

/// First in every message, in both directions.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub id: U16,
    /// A [`Command`] code; kept raw because a reply echoes it, known or not.
    pub command: U16,
    /// Bytes of the whole message, this header included.
    pub size: U32,
    flags: U32,
    /// errno of a failed command, in replies with the error flag only.
    pub error: U32,
}
const _: () = assert!(size_of::<Header>() == 16);

impl Header {
    const REPLY: u32 = 1;
    const TYPE: u32 = 0xf;
    const NO_REPLY: u32 = 1 << 4;
    const ERROR: u32 = 1 << 5;

    /// A request with `payload` bytes after the header.
    pub fn request(id: u16, command: u16, payload: usize, no_reply: bool) -> Header {
        let flags = if no_reply { Header::NO_REPLY } else { 0 };
        Header { flags: U32::new(flags), ..Header::sized(id, command, payload) }
    }

    /// The answer to `request` with `payload` bytes after the header.
    pub fn reply(request: &Header, payload: usize) -> Header {
        let header = Header::sized(request.id.get(), request.command.get(), payload);
        Header { flags: U32::new(Header::REPLY), ..header }
    }

    /// The answer to a `request` that failed: a header and nothing else.
    pub fn failure(request: &Header, errno: u32) -> Header {
        let flags = U32::new(Header::REPLY | Header::ERROR);
        Header { flags, error: U32::new(errno), ..Header::reply(request, 0) }
    }

    fn sized(id: u16, command: u16, payload: usize) -> Header {
        // Saturating: a size that does not fit is refused by its receiver.
        let size = u32::try_from(HEADER + payload).unwrap_or(u32::MAX);
        Header {
            id: U16::new(id),
            command: U16::new(command),
            size: U32::new(size),
            flags: U32::ZERO,
            error: U32::ZERO,
        }
    }

    pub fn kind(&self) -> Kind {
        match self.flags.get() & Header::TYPE {
            0 => Kind::Request,
            Header::REPLY => Kind::Reply,
            other => Kind::Unknown(other),
        }
    }

    /// The sender will not read an answer; sending one would put it out of step.
    pub fn no_reply(&self) -> bool {
        self.flags.get() & Header::NO_REPLY != 0
    }

    /// A reply that reports a failure; see [`Header::error`].
    pub fn failed(&self) -> bool {
        self.flags.get() & Header::ERROR != 0
    }
}

/// The layout at the front of `payload` and what follows it, or nothing if it is too short.
pub fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(payload: &[u8]) -> Option<(&T, &[u8])> {
    T::ref_from_prefix(payload).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_codes_round_trip() {
        for code in 0..=u16::MAX {
            if let Some(command) = Command::from_code(code) {
                assert_eq!(command.code(), code);
            }
        }
        assert_eq!((1..=14).filter_map(Command::from_code).count(), 14);
    }

    #[test]
    fn a_failure_is_a_bare_reply_that_echoes_id_and_command() {
        let request = Header::request(7, 99, 40, true);
        assert!(request.no_reply() && request.kind() == Kind::Request && request.size.get() == 56);
        let failure = Header::failure(&request, 22);
        assert_eq!((failure.id.get(), failure.command.get(), failure.size.get()), (7, 99, 16));
        assert!(failure.failed() && failure.kind() == Kind::Reply && !failure.no_reply());
        assert_eq!(failure.error.get(), 22);
    }

    #[test]
    fn irq_flags_must_name_one_kind_of_data_and_one_action() {
        let set = |flags| SetIrqs {
            argsz: U32::new(20),
            flags: U32::new(flags),
            index: U32::ZERO,
            start: U32::ZERO,
            count: U32::ZERO,
        };
        assert_eq!(set(0x24).operation(), Some((IrqData::EventFd, IrqAction::Trigger)));
        assert_eq!(set(0x11).operation(), Some((IrqData::None, IrqAction::Unmask)));
        for bad in [0, 0x20, 0x1, 0x23, 0x31, 0x61, u32::MAX] {
            assert_eq!(set(bad).operation(), None, "{bad:#x}");
        }
    }
}
