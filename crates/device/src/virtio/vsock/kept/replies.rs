//! Packets without payload that the daemon sends to a guest, while they wait for buffers.

use std::collections::VecDeque;
use std::sync::Arc;

use vmlane_wire::virtio_vsock::{HEADER, Header, op};
use zerocopy::{FromBytes, IntoBytes};

use super::file::Kept;
use super::layout as at;
use super::layout::replies::{MOST, PLACE, PLACES};
use super::transaction::Words;

pub struct Replies {
    kept: Arc<Kept>,
    waiting: VecDeque<Header>,
    /// Number of the first one, here and in the file.
    first: u32,
    valid_first: u32,
    /// By the file some wait.
    noted: bool,
}

impl Replies {
    /// Those that wait for the guest `cid`.
    pub fn open(kept: Arc<Kept>, cid: u32) -> Replies {
        let word = kept.window.load_u64(at::REPLIES);
        let (first, next) = (word as u32, (word >> 32) as u32);
        let count = next.wrapping_sub(first);
        let mut waiting = VecDeque::new();
        if count as usize <= MOST {
            waiting.extend((0..count).filter_map(|number| read(&kept, first.wrapping_add(number), cid)));
        }
        // A damaged one is forgotten, and so the places are not those of the file.
        let first = next.wrapping_sub(waiting.len() as u32);
        let mut replies = Replies { kept, waiting, first, valid_first: first, noted: count != 0 };
        if replies.waiting.len() != count as usize {
            replies.write_all();
        }
        replies
    }

    fn write_all(&mut self) {
        for (number, header) in (0..).zip(&self.waiting) {
            self.kept.window.write(place(self.first.wrapping_add(number)), header.as_bytes());
        }
    }

    /// Its driver has begun anew.
    pub fn clear(&mut self) {
        (0..self.waiting.len()).for_each(|_| self.pop());
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn front(&self) -> Option<Header> {
        self.waiting.front().copied()
    }

    /// It is forgotten if too many wait.
    pub fn push(&mut self, header: Header) {
        let next = self.first.wrapping_add(self.waiting.len() as u32);
        if self.waiting.len() < MOST && next.wrapping_sub(self.valid_first) < PLACES {
            self.kept.window.write(place(next), header.as_bytes());
            self.waiting.push_back(header);
        }
    }

    pub fn pop(&mut self) {
        if self.waiting.pop_front().is_some() {
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Adds what has changed since it was last valid.
    pub fn note(&mut self, words: &mut Words) {
        let count = self.waiting.len() as u32;
        if count > 0 || self.noted {
            let next = self.first.wrapping_add(count);
            words.set(&self.kept, at::REPLIES, u64::from(self.first) | u64::from(next) << 32);
        }
        self.noted = count > 0;
        self.valid_first = self.first;
    }
}

fn place(number: u32) -> usize {
    at::REPLIES + 64 + (number % PLACES) as usize * PLACE
}

/// One that a previous daemon left, if it is one for this guest.
fn read(kept: &Kept, number: u32, cid: u32) -> Option<Header> {
    let mut bytes = [0; HEADER];
    kept.window.read(place(number), &mut bytes);
    let header = Header::read_from_bytes(&bytes).ok()?;
    let known = (op::REQUEST..=op::CREDIT_REQUEST).contains(&header.op.get()) && header.op.get() != op::RW;
    (known && header.dst_cid.get() == u64::from(cid) && header.len.get() == 0).then_some(header)
}
