//! Where bytes lie that wait for a receiver: blocks of granules, each with one word that states that it is in
//! use.

use std::ops::Range;
use std::sync::Arc;

use vmlane_mem::Spans;
use vmlane_wire::virtio_vsock::{HEADER, Header, MAX_PAYLOAD};
use zerocopy::{FromBytes, IntoBytes};

use super::file::Kept;
use super::layout as at;
use super::layout::area::{BLOCKS, GRANULE, GRANULES, WORDS};
use super::transaction::Transaction;

/// In front of a block's bytes: receiver 4, bytes 4, payload of the packet 4, zero 4, header.
const HEAD: usize = 64;
const _: () = assert!(16 + HEADER <= HEAD);

/// Bits of the word of a block's first granule: bytes that are delivered, granules, a number by which blocks
/// are in order.
const SIZE: u32 = 20;
const ORDER: u32 = 32;
const _: () = assert!(MAX_PAYLOAD < 1 << SIZE && MAX_PAYLOAD / GRANULE < (1 << (ORDER - SIZE)) - 2);

/// Bytes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    first: usize,
    granules: usize,
    order: u32,
}

impl Block {
    /// Bytes of a block with so many of payload.
    pub fn cost(len: usize) -> usize {
        (HEAD + len).next_multiple_of(GRANULE)
    }

    fn word(&self, done: usize) -> u64 {
        done as u64 | (self.granules as u64) << SIZE | u64::from(self.order) << ORDER
    }
}

/// A packet that a block holds.
pub struct Stored {
    pub block: Block,
    pub receiver: u32,
    pub header: Header,
    pub len: usize,
    pub bytes: Vec<u8>,
    pub done: usize,
}

pub struct Area {
    kept: Arc<Kept>,
    /// Free granules, by number.
    free: Vec<bool>,
    /// Blocks that are free once the transaction with this number is valid.
    leaving: Vec<(u64, Block)>,
    used: usize,
    order: u32,
    /// Granules in use, and where the next block is tried first.
    live: usize,
    next: usize,
    /// Granules that were examined for room, and that no one was charged for yet.
    searched: usize,
}

impl Area {
    /// What a previous daemon left there, in order. Blocks that are not sound are not in use.
    pub fn open(kept: Arc<Kept>) -> (Area, Vec<Stored>) {
        let used = (kept.window.load_u64(at::AREA) as usize).min(GRANULES);
        let free = vec![true; used];
        let (leaving, order, live, next, searched) = (Vec::new(), 0, 0, 0, 0);
        let mut area = Area { kept, free, leaving, used, order, live, next, searched };
        let mut stored: Vec<Stored> = (0..used).filter_map(|first| area.read(first)).collect();
        stored.retain(|stored| area.take(&stored.block));
        // Numbers begin again at 0 in the end; those in use are near each other.
        let some = stored.first().map_or(0, |stored| stored.block.order);
        stored.sort_by_key(|stored| stored.block.order.wrapping_sub(some) as i32);
        area.order = stored.last().map_or(0, |last| last.block.order.wrapping_add(1));
        (area, stored)
    }

    fn read(&self, first: usize) -> Option<Stored> {
        let word = self.kept.window.load_u64(word_of(first));
        let (done, granules) = (word as usize & ((1 << SIZE) - 1), (word >> SIZE) as usize & 0xfff);
        let block = Block { first, granules, order: (word >> ORDER) as u32 };
        if granules == 0 || first + granules > self.used {
            return None;
        }
        let mut head = [0; HEAD];
        self.kept.window.read(bytes_of(first), &mut head);
        let number = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let (receiver, have, len) = (number(0)?, number(4)? as usize, number(8)? as usize);
        let header = Header::read_from_bytes(head.get(16..16 + HEADER)?).ok()?;
        if have > len || len > MAX_PAYLOAD || done > have || Block::cost(have) != granules * GRANULE {
            return None;
        }
        let mut bytes = vec![0; have];
        self.kept.window.read(bytes_of(first) + HEAD, &mut bytes);
        Some(Stored { block, receiver, header, len, bytes, done })
    }

    /// False: another block has some of these granules.
    fn take(&mut self, block: &Block) -> bool {
        let Some(granules) = self.free.get_mut(block.first..block.first + block.granules) else {
            return false;
        };
        let free = granules.iter().all(|free| *free);
        if free {
            granules.fill(false);
            self.live += block.granules;
        }
        free
    }

    /// Puts what is left of a packet there: `rest` of its payload, which ends there. Also returns those
    /// bytes. None: there is no room.
    pub fn put(
        &mut self,
        transaction: &Transaction,
        (receiver, header): (u32, &Header),
        (payload, rest): (&Spans, Range<usize>),
    ) -> Option<(Block, Vec<u8>)> {
        let granules = Block::cost(rest.len()) / GRANULE;
        let first = self.find(transaction, granules)?;
        let block = Block { first, granules, order: self.order };
        self.order = self.order.wrapping_add(1);
        let mut bytes = vec![0; rest.len()];
        payload.read(rest.start, &mut bytes);
        let mut head = [0; HEAD];
        for (at, number) in [(0, receiver), (4, bytes.len() as u32), (8, rest.end as u32)] {
            head.get_mut(at..at + 4)?.copy_from_slice(&number.to_le_bytes());
        }
        head.get_mut(16..16 + HEADER)?.copy_from_slice(header.as_bytes());
        self.kept.window.write(bytes_of(first), &head);
        self.kept.window.write(bytes_of(first) + HEAD, &bytes);
        transaction.set(&self.kept, word_of(first), block.word(0));
        Some((block, bytes))
    }

    /// Free granules: behind those that were found last, since blocks mostly go in the order in which they
    /// came; from the beginning where none are in use, so that little of the file is ever used.
    fn find(&mut self, transaction: &Transaction, granules: usize) -> Option<usize> {
        self.release(transaction.commits());
        if self.live == 0 {
            self.next = 0;
        }
        let wrapped = (self.next + granules).min(GRANULES);
        let first =
            self.search(self.next..GRANULES, granules).or_else(|| self.search(0..wrapped, granules))?;
        let end = first + granules;
        if end > self.used {
            self.used = end;
            self.free.resize(end, true);
            transaction.set(&self.kept, at::AREA, end as u64);
        }
        self.free.get_mut(first..end)?.fill(false);
        (self.live, self.next) = (self.live + granules, end);
        Some(first)
    }

    /// So many transactions have become valid.
    fn release(&mut self, commits: u64) {
        let Area { free, leaving, live, .. } = self;
        leaving.retain(|(since, block)| {
            let left = *since < commits;
            if left && let Some(granules) = free.get_mut(block.first..block.first + block.granules) {
                granules.fill(true);
                *live -= block.granules;
            }
            !left
        });
    }

    fn search(&mut self, place: Range<usize>, granules: usize) -> Option<usize> {
        let mut first = place.start;
        for at in place {
            self.searched += 1;
            if !self.free.get(at).copied().unwrap_or(true) {
                first = at + 1;
            } else if at + 1 - first == granules {
                return Some(first);
            }
        }
        None
    }

    /// How many granules were examined for room since this was last asked.
    pub fn take_searched(&mut self) -> usize {
        std::mem::take(&mut self.searched)
    }

    /// So many of its bytes are delivered.
    pub fn moves(&self, transaction: &Transaction, block: &Block, done: usize) {
        transaction.set(&self.kept, word_of(block.first), block.word(done));
    }

    /// It is not in use any more.
    pub fn remove(&mut self, transaction: &Transaction, block: Block) {
        transaction.set(&self.kept, word_of(block.first), 0);
        self.leaving.push((transaction.commits(), block));
    }
}

fn word_of(granule: usize) -> usize {
    at::AREA + WORDS + 8 * granule
}

fn bytes_of(granule: usize) -> usize {
    at::AREA + BLOCKS + GRANULE * granule
}
