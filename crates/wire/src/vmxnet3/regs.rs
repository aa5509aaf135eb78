//! Registers, commands and their results, revisions, capabilities, event bits.

use zerocopy::{IntoBytes, TryFromBytes};

/// PCI identity.
pub const VENDOR_ID: u16 = 0x15ad;
pub const DEVICE_ID: u16 = 0x07b0;
pub const REVISION_ID: u8 = 1;
/// Class, sub-class, programming interface: Ethernet.
pub const CLASS: u32 = 0x02_0000;

/// Bytes of BAR 0 (masks and doorbells), BAR 1 (registers), BAR 2 (MSI-X).
pub const BAR0_SIZE: u64 = 0x1000;
/// Of BAR 0 with a second page, where drivers ring that were granted [`capability::LARGE_BAR`].
pub const LARGE_BAR0_SIZE: u64 = 0x2000;
pub const BAR1_SIZE: u64 = 0x1000;
pub const BAR2_SIZE: u64 = 0x2000;
/// Offset of MSI-X pending bits in BAR 2.
pub const PBA_OFFSET: u32 = 0x1000;

/// Interrupt indices; with the extended interrupt block (revision 6 on).
pub const VECTORS: u8 = 25;
pub const EXTENDED_VECTORS: u8 = 65;
/// Distance of two registers.
const STRIDE: u64 = 8;

/// A word of BAR 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageReg {
    /// Bit 0: interrupt index masked.
    Mask(u8),
    /// Doorbell of a transmit queue.
    TxProducer(u8),
    /// Doorbell of a receive queue's first ring.
    RxProducer(u8),
    /// And of its second.
    RxProducer2(u8),
    /// The same three in the second page of a large BAR 0.
    LargeTxProducer(u8),
    LargeRxProducer(u8),
    LargeRxProducer2(u8),
}

impl PageReg {
    /// The register at an offset of BAR 0.
    pub fn at(offset: u64) -> Option<PageReg> {
        if !offset.is_multiple_of(STRIDE) {
            return None;
        }
        let queue = |from: u64| ((offset - from) / STRIDE) as u8;
        match offset {
            0x000..0x208 => Some(PageReg::Mask(queue(0))),
            0x600..0x800 => Some(PageReg::TxProducer(queue(0x600))),
            0x800..0xa00 => Some(PageReg::RxProducer(queue(0x800))),
            0xa00..0xc00 => Some(PageReg::RxProducer2(queue(0xa00))),
            0x1000..0x1200 => Some(PageReg::LargeTxProducer(queue(0x1000))),
            0x1400..0x1600 => Some(PageReg::LargeRxProducer(queue(0x1400))),
            0x1800..0x1a00 => Some(PageReg::LargeRxProducer2(queue(0x1800))),
            _ => None,
        }
    }

    pub const fn offset(self) -> u64 {
        match self {
            PageReg::Mask(index) => STRIDE * index as u64,
            PageReg::TxProducer(queue) => 0x600 + STRIDE * queue as u64,
            PageReg::RxProducer(queue) => 0x800 + STRIDE * queue as u64,
            PageReg::RxProducer2(queue) => 0xa00 + STRIDE * queue as u64,
            PageReg::LargeTxProducer(queue) => 0x1000 + STRIDE * queue as u64,
            PageReg::LargeRxProducer(queue) => 0x1400 + STRIDE * queue as u64,
            PageReg::LargeRxProducer2(queue) => 0x1800 + STRIDE * queue as u64,
        }
    }
}

/// A register of BAR 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// VRRS: device revisions offered; the one chosen.
    Revision,
    /// UVRS: the same for the pass-through interface.
    UptRevision,
    /// DSAL, DSAH: address of DriverShared; the high half latches.
    SharedLow,
    SharedHigh,
    /// CMD: a command; its result.
    Command,
    /// MACL, MACH: the address in force; the high half commits.
    MacLow,
    MacHigh,
    /// ICR: is the interrupt line ours? Reading releases it.
    InterruptCause,
    /// ECR: events; write 1 to clear.
    Events,
    /// DCR: capabilities offered; those wished for.
    Capability(u8),
    /// PTCR: capabilities of pass-through.
    PassThrough(u8),
}

impl Reg {
    /// The register at an offset of BAR 1.
    pub fn at(offset: u64) -> Option<Reg> {
        if !offset.is_multiple_of(STRIDE) {
            return None;
        }
        Some(match offset {
            0x00 => Reg::Revision,
            0x08 => Reg::UptRevision,
            0x10 => Reg::SharedLow,
            0x18 => Reg::SharedHigh,
            0x20 => Reg::Command,
            0x28 => Reg::MacLow,
            0x30 => Reg::MacHigh,
            0x38 => Reg::InterruptCause,
            0x40 => Reg::Events,
            0x48..0x88 => Reg::Capability(((offset - 0x48) / STRIDE) as u8),
            0x88..0xb8 => Reg::PassThrough(((offset - 0x88) / STRIDE) as u8),
            _ => return None,
        })
    }

    pub const fn offset(self) -> u64 {
        match self {
            Reg::Revision => 0x00,
            Reg::UptRevision => 0x08,
            Reg::SharedLow => 0x10,
            Reg::SharedHigh => 0x18,
            Reg::Command => 0x20,
            Reg::MacLow => 0x28,
            Reg::MacHigh => 0x30,
            Reg::InterruptCause => 0x38,
            Reg::Events => 0x40,
            Reg::Capability(word) => 0x48 + STRIDE * word as u64,
            Reg::PassThrough(word) => 0x88 + STRIDE * word as u64,
        }
    }
}

/// Bits of the event word.
pub mod event {
    /// A receive queue stopped.
    pub const RX_QUEUE: u32 = 1 << 0;
    /// A transmit queue stopped.
    pub const TX_QUEUE: u32 = 1 << 1;
    /// The link went up or down.
    pub const LINK: u32 = 1 << 2;
}

/// Bits of `uptFeatures`.
pub mod feature {
    pub const RX_CHECKSUM: u64 = 1 << 0;
    pub const RSS: u64 = 1 << 1;
    pub const RX_VLAN: u64 = 1 << 2;
    pub const LRO: u64 = 1 << 3;
}

/// Bits of `rxMode`.
pub mod rx_mode {
    pub const UNICAST: u32 = 1 << 0;
    pub const MULTICAST: u32 = 1 << 1;
    pub const BROADCAST: u32 = 1 << 2;
    pub const ALL_MULTICAST: u32 = 1 << 3;
    pub const PROMISCUOUS: u32 = 1 << 4;
}

/// Bits of the field mask of SET_RSS_FIELDS.
pub mod rss_field {
    pub const TCP4: u32 = 1 << 0;
    pub const TCP6: u32 = 1 << 1;
    pub const UDP4: u32 = 1 << 2;
    pub const UDP6: u32 = 1 << 3;
}

/// Bits of the first capability word (revision 7).
pub mod capability {
    pub const UDP_RSS: u32 = 1 << 0;
    pub const GENEVE_CHECKSUM: u32 = 1 << 2;
    pub const GENEVE_TSO: u32 = 1 << 3;
    pub const VXLAN_CHECKSUM: u32 = 1 << 4;
    pub const VXLAN_TSO: u32 = 1 << 5;
    pub const GENEVE_OUTER_CHECKSUM: u32 = 1 << 6;
    pub const VXLAN_OUTER_CHECKSUM: u32 = 1 << 7;
    /// Doorbells lie in a second page of BAR 0. Linux rings there once it is granted, but for what XDP
    /// programs transmit.
    pub const LARGE_BAR: u32 = 1 << 16;
    /// In a pass-through word: there is no pass-through.
    pub const ERROR: u32 = 1 << 31;
}

/// Interrupt types that GET_CONF_INTR may ask the driver for.
pub mod interrupt_type {
    pub const AUTO: u32 = 0;
    pub const INTX: u32 = 1;
    pub const MSI: u32 = 2;
    pub const MSIX: u32 = 3;
}

macro_rules! commands {
    ($($(#[$meta:meta])* $name:ident = $code:literal since $since:literal,)*) => {
        /// What a driver writes to the command register.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
        #[repr(u32)]
        pub enum Command { $($(#[$meta])* $name = $code,)* }

        impl Command {
            /// All of them.
            pub const ALL: &'static [Command] = &[$(Command::$name,)*];

            pub fn from_code(code: u32) -> Option<Command> {
                Command::try_read_from_bytes(code.as_bytes()).ok()
            }

            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The revision that brought it.
            pub const fn since(self) -> u8 {
                match self { $(Command::$name => $since,)* }
            }
        }
    };
}

commands! {
    Activate = 0xcafe_0000 since 1,
    Quiesce = 0xcafe_0001 since 1,
    Reset = 0xcafe_0002 since 1,
    UpdateRxMode = 0xcafe_0003 since 1,
    UpdateMacFilters = 0xcafe_0004 since 1,
    UpdateVlanFilters = 0xcafe_0005 since 1,
    /// The RSS block, in the main its indirection table.
    UpdateRss = 0xcafe_0006 since 1,
    /// Moderation levels.
    UpdateModeration = 0xcafe_0007 since 1,
    /// Wake-up patterns.
    UpdateWakeUp = 0xcafe_0008 since 1,
    UpdateFeatures = 0xcafe_0009 since 1,
    LoadPlugin = 0xcafe_000b since 1,
    SetCoalesce = 0xcafe_000e since 3,
    RegisterMemory = 0xcafe_000f since 3,
    SetRssFields = 0xcafe_0010 since 4,
    SetRingBufferSize = 0xcafe_0013 since 7,
    GetQueueStatus = 0xf00d_0000 since 1,
    GetStats = 0xf00d_0001 since 1,
    GetLink = 0xf00d_0002 since 1,
    GetPermanentMacLow = 0xf00d_0003 since 1,
    GetPermanentMacHigh = 0xf00d_0004 since 1,
    GetDeviceIdLow = 0xf00d_0005 since 1,
    GetDeviceIdHigh = 0xf00d_0006 since 1,
    GetExtraInfo = 0xf00d_0007 since 1,
    GetInterruptConfig = 0xf00d_0008 since 1,
    GetAdaptiveRing = 0xf00d_0009 since 1,
    GetTxDataSize = 0xf00d_000a since 3,
    GetCoalesce = 0xf00d_000b since 3,
    GetRssFields = 0xf00d_000c since 4,
    GetMaxQueues = 0xf00d_000f since 6,
    GetMaxCapabilities = 0xf00d_0011 since 7,
    GetCapabilities = 0xf00d_0012 since 7,
    GetTimestampSize = 0xf00d_0013 since 9,
    GetDisabledOffloads = 0xf00d_0014 since 9,
}

/// A link's state as GET_LINK reports it.
pub const fn link(up: bool, megabits: u16) -> u32 {
    (megabits as u32) << 16 | up as u32
}

#[cfg(test)]
mod tests {
    use super::{Command, PageReg, Reg};

    #[test]
    fn registers_are_found_where_they_are() {
        let at = |offset| Reg::at(offset).map(|reg| (reg, reg.offset()));
        assert_eq!(at(0x20), Some((Reg::Command, 0x20)));
        assert_eq!(at(0x80), Some((Reg::Capability(7), 0x80)));
        assert_eq!(at(0xb0), Some((Reg::PassThrough(5), 0xb0)));
        assert_eq!((at(0x24), at(0xb8), at(u64::MAX)), (None, None, None));
        for offset in (0..0x2000).step_by(4) {
            assert!(PageReg::at(offset).is_none_or(|reg| reg.offset() == offset), "{offset:#x}");
        }
        assert_eq!(PageReg::at(0x200), Some(PageReg::Mask(64)));
        assert_eq!(PageReg::at(0x208), None);
        assert_eq!(PageReg::at(0xbf8), Some(PageReg::RxProducer2(63)));
        assert_eq!(PageReg::at(0x1008), Some(PageReg::LargeTxProducer(1)));
        assert_eq!(PageReg::at(0x1a00), None);
    }

    #[test]
    fn commands_match_their_codes() {
        for command in Command::ALL {
            assert_eq!(Command::from_code(command.code()), Some(*command));
        }
        assert_eq!(Command::from_code(0xcafe_000a), None);
    }
}
