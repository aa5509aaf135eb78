//! Receive-side scaling as the driver describes it, checked.

use vmlane_mem::MemoryMap;
use vmlane_wire::vmxnet3::regs::rss_field;
use vmlane_wire::vmxnet3::shared::{BlockRef, RssBlock};
use zerocopy::{FromZeros, IntoBytes};

use super::setup::Rss;

/// What is hashed with ports until the driver sets it (revision 4 on).
pub const DEFAULT_FIELDS: u32 = rss_field::TCP4 | rss_field::TCP6;
/// All that can be.
pub const ALL_FIELDS: u32 = rss_field::TCP4 | rss_field::TCP6 | rss_field::UDP4 | rss_field::UDP6;

/// Bytes in front of the table.
const HEADER: usize = size_of::<RssBlock>() - TABLE;
const TABLE: usize = 128;

/// Copies the block out. None if it is absent or invalid: then RSS is off.
pub fn read(memory: &MemoryMap, place: &BlockRef) -> Option<RssBlock> {
    let len = (place.len.get() as usize).min(size_of::<RssBlock>());
    if len < HEADER {
        return None;
    }
    let mut block = RssBlock::new_zeroed();
    memory.read(place.addr.get(), block.as_mut_bytes().get_mut(..len)?).ok()?;
    let (key, table) = (usize::from(block.key_len.get()), usize::from(block.table_len.get()));
    let sound = block.function.get() == RssBlock::TOEPLITZ
        && key <= block.key.len()
        && (1..=TABLE).contains(&table)
        && table <= len - HEADER;
    sound.then_some(block)
}

/// The block for `queues` receive queues. `fields`: the mask of SET_RSS_FIELDS, from revision 4 on.
pub fn rules(block: &RssBlock, queues: usize, fields: Option<u32>) -> Rss {
    let kinds = block.hash_type.get();
    let fields = fields.unwrap_or_else(|| {
        let tcp4 = if kinds & RssBlock::TCP4 != 0 { rss_field::TCP4 } else { 0 };
        let tcp6 = if kinds & RssBlock::TCP6 != 0 { rss_field::TCP6 } else { 0 };
        tcp4 | tcp6
    });
    let mut key = [0; 40];
    let given = block.key.iter().take(block.key_len.get().into());
    key.iter_mut().zip(given).for_each(|(byte, given)| *byte = *given);
    let entries = usize::from(block.table_len.get()).clamp(1, TABLE);
    // A queue that does not exist stands for the first one.
    let queue = |entry: &u8| if usize::from(*entry) < queues { *entry } else { 0 };
    Rss {
        key,
        table: block.table.iter().take(entries).map(queue).collect(),
        ipv4: kinds & RssBlock::IPV4 != 0,
        ipv6: kinds & RssBlock::IPV6 != 0,
        tcp4: fields & rss_field::TCP4 != 0,
        tcp6: fields & rss_field::TCP6 != 0,
        udp4: fields & rss_field::UDP4 != 0,
        udp6: fields & rss_field::UDP6 != 0,
    }
}
