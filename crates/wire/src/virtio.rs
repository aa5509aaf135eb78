//! virtio: feature bits, ring layouts, the configuration space of a NIC.
//!
//! Source: Virtual I/O Device (VIRTIO) Version 1.2, sections 2.7 (split virtqueues), 2.8 (packed
//! virtqueues), 5.1 (network device), 6 (reserved feature bits).

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Feature bits that every device may have.
pub mod feature {
    /// Front end to back end: log writes to guest memory (vhost).
    pub const LOG_ALL: u64 = 1 << 26;
    pub const ANY_LAYOUT: u64 = 1 << 27;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// Front end to back end: protocol features exist (vhost-user).
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
    pub const PACKED: u64 = 1 << 34;
    /// Buffers are used in the order in which they were made available.
    pub const IN_ORDER: u64 = 1 << 35;
}

/// Feature bits of a NIC (5.1.3).
pub mod net_feature {
    pub const CSUM: u64 = 1;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const MTU: u64 = 1 << 3;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_ECN: u64 = 1 << 9;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const HOST_ECN: u64 = 1 << 13;
    pub const MERGEABLE: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    pub const CTRL_GUEST_OFFLOADS: u64 = 1 << 2;
    pub const MAC: u64 = 1 << 5;
    pub const CTRL_VQ: u64 = 1 << 17;
    pub const CTRL_RX: u64 = 1 << 18;
    pub const CTRL_VLAN: u64 = 1 << 19;
    pub const CTRL_RX_EXTRA: u64 = 1 << 20;
    pub const MULTI_QUEUE: u64 = 1 << 22;
    pub const CTRL_MAC_ADDR: u64 = 1 << 23;
    pub const GUEST_USO4: u64 = 1 << 54;
    pub const GUEST_USO6: u64 = 1 << 55;
    pub const HOST_USO: u64 = 1 << 56;
}

/// Commands of a NIC's control queue (5.1.6.5): a class, a number, data; answered with a byte.
pub mod control {
    pub const OK: u8 = 0;
    pub const ERROR: u8 = 1;

    pub mod class {
        pub const RX: u8 = 0;
        pub const MAC: u8 = 1;
        pub const VLAN: u8 = 2;
        pub const MQ: u8 = 4;
        pub const OFFLOADS: u8 = 5;
    }

    /// Each has a byte: on or off.
    pub mod rx {
        pub const PROMISCUOUS: u8 = 0;
        pub const ALL_MULTICAST: u8 = 1;
        pub const ALL_UNICAST: u8 = 2;
        pub const NO_MULTICAST: u8 = 3;
        pub const NO_UNICAST: u8 = 4;
        pub const NO_BROADCAST: u8 = 5;
    }

    pub mod mac {
        pub const TABLE: u8 = 0;
        pub const ADDRESS: u8 = 1;
    }

    pub mod vlan {
        pub const ADD: u8 = 0;
        pub const REMOVE: u8 = 1;
    }

    pub mod mq {
        pub const PAIRS: u8 = 0;
    }

    pub mod offloads {
        pub const SET: u8 = 0;
    }
}

/// Flags of a descriptor.
pub mod desc {
    /// Bytes of a descriptor, split or packed, in a ring or in a table.
    pub const SIZE: usize = 16;
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
    /// Packed rings only.
    pub const AVAIL: u16 = 1 << 7;
    pub const USED: u16 = 1 << 15;
}

/// The most descriptors of a ring.
pub const MAX_RING: u16 = 32768;

/// Notifications are not wanted: `flags` of a split ring's half.
pub const NO_NOTICE: u16 = 1;

/// `flags` of a packed ring's event suppression.
pub mod event {
    pub const ENABLE: u16 = 0;
    pub const DISABLE: u16 = 1;
    /// At the descriptor that `off_wrap` names.
    pub const AT: u16 = 2;
}

/// Would a move of an index from `old` to `new` pass `event` (2.7.10)?
#[inline]
pub fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Bytes of a split ring's parts for `size` descriptors, event index included.
pub fn split_bytes(size: u16) -> [usize; 3] {
    let size = usize::from(size);
    [desc::SIZE * size, 6 + 2 * size, 6 + 8 * size]
}

/// `struct virtio_net_config`, as far as this version fills it in.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NetConfig {
    pub mac: [u8; 6],
    pub status: U16,
    pub max_queue_pairs: U16,
    pub mtu: U16,
    /// Mbit/s; all ones: unknown.
    pub speed: U32,
    pub duplex: u8,
}
const _: () = assert!(size_of::<NetConfig>() == 17);

/// The link is up.
pub const LINK_UP: u16 = 1;

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn an_event_is_passed_once() {
        for base in [0u16, 5, 0xfffe] {
            let at = |offset: u16| base.wrapping_add(offset);
            assert!(passes(at(0), at(1), at(0)));
            assert!(passes(at(2), at(4), at(0)));
            assert!(!passes(at(4), at(4), at(0)), "not reached yet");
            assert!(!passes(at(0).wrapping_sub(1), at(4), at(0)), "passed before");
        }
    }
}
