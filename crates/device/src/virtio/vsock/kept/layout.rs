//! Where what lies in a device's file, which is sparse.

use vmlane_wire::virtio::MAX_RING;

use crate::virtio::queue::record_bytes;

// Offsets.
pub const MAGIC: usize = 0;
pub const LAYOUT: usize = 8;
/// A number of the file's own, by which transactions name it.
pub const ID: usize = 16;
/// How far the guest's first packet that is not completed has come.
pub const PART: usize = 24;
pub const REPLIES: usize = 4096;
pub const TABLE: usize = REPLIES + replies::BYTES;
pub const LINKS: usize = TABLE + book::BYTES;
pub const AREA: usize = LINKS + book::BYTES;
pub const RECORDS: usize = AREA + area::BYTES;
pub const LANES: usize = (RECORDS + RINGS * record_bytes(MAX_RING)).next_multiple_of(64);
/// Of all words.
pub const END: usize = LANES + lanes::WORDS;
pub const LANE_BYTES: usize = END.next_multiple_of(4096);
pub const LEN: u64 = (LANE_BYTES + lanes::BYTES) as u64;

/// Rings with a record: receive and transmit.
pub const RINGS: usize = 2;

pub mod replies {
    use vmlane_wire::virtio_vsock::HEADER;

    /// Beyond so many they are forgotten.
    pub const MOST: usize = 512;
    /// Places, which are used in turn: those that wait, and those that were sent in a transaction that is not
    /// valid yet.
    pub const PLACES: u32 = 2 * MOST as u32;
    pub const PLACE: usize = 48;
    const _: () = assert!(HEADER <= PLACE);
    /// First the word: the numbers of the first one that waits and of the next one that will.
    pub const BYTES: usize = (64 + PLACES as usize * PLACE).next_multiple_of(4096);
}

pub mod book {
    /// Connections of one device that are noted. One beyond goes on like the others, but a later daemon does
    /// not end it when the VM at its other end goes.
    pub const PLACES: u32 = 1 << 16;
    /// Two words each. First the word that states how many places were ever used.
    pub const PLACE: usize = 16;
    pub const FIRST: usize = 64;
    pub const BYTES: usize = (FIRST + PLACES as usize * PLACE).next_multiple_of(4096);
}

pub mod area {
    /// Bytes of a granule, and how many there are.
    pub const GRANULE: usize = 256;
    pub const GRANULES: usize = 1 << 16;
    /// First the word that states how many granules were ever used; then a word a granule; then these.
    pub const WORDS: usize = 64;
    pub const BLOCKS: usize = (WORDS + 8 * GRANULES).next_multiple_of(4096);
    pub const BYTES: usize = BLOCKS + GRANULE * GRANULES;
}

pub mod lanes {
    use crate::virtio::vsock::credit::CREDIT;

    /// Connections of one device: as many as all of a daemon may have.
    pub const PLACES: usize = 2048;
    /// Of a place, its words.
    pub const PLACE: usize = 64;
    pub const WORDS: usize = PLACES * PLACE;
    pub const BYTES: usize = PLACES * CREDIT;
}
