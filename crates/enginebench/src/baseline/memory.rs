//! Shared memory for the baseline benchmarks: a memfd mapping, and a bare byte ring for one producer and
//! one consumer in it.
//!
//! `unsafe` is opened here because the point is to measure memcpy on memory that two threads share, as
//! the daemon and its guests do. The safe face rests on three facts: a `Mapping` is never resized or
//! unmapped while it lives; a `Mapping` used alone is only reached through `&mut`; and in a ring the
//! bytes from head to tail belong to the consumer, the others to the producer, ownership changing hands
//! by a release store of one index and an acquire load at the other end.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Reached through `&mut` or a ring's indices alone: see the head of the file.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, valid on every thread until the drop; who may touch which byte
// is decided by `&mut Mapping` or by the ring's indices.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` alone gives access only to `Ring`, below.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of a memfd, written once so that no page fault is measured.
    pub fn new(len: usize) -> io::Result<Mapping> {
        let file = rustix::fs::memfd_create("vmlane-enginebench", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours; the memfd
        // is known to no one else and is never truncated.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: `base` is valid for `len` bytes, and no one else knows it yet.
        unsafe { base.as_ptr().write_bytes(0x5a, len) };
        Ok(Mapping { base, len })
    }

    /// Copies a block out of `from`, as one memcpy.
    pub fn copy_from(&mut self, at: usize, from: &Mapping, from_at: usize, len: usize) {
        assert!(at + len <= self.len && from_at + len <= from.len);
        // SAFETY: both ranges are inside their mappings (asserted), and two mappings never overlap:
        // `&mut self` cannot be `from`.
        unsafe {
            from.base.as_ptr().add(from_at).copy_to_nonoverlapping(self.base.as_ptr().add(at), len);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The indices, a cache line pair apart, in a page of their own before the data.
#[repr(C, align(128))]
struct Index(AtomicU64);
const DATA: usize = 4096;

struct Ring {
    memory: Mapping,
    size: usize,
    closed: AtomicBool,
}

impl Ring {
    /// Bytes ever written; stored by the producer.
    fn tail(&self) -> &AtomicU64 {
        self.index(0)
    }

    /// Bytes ever read; stored by the consumer.
    fn head(&self) -> &AtomicU64 {
        self.index(1)
    }

    fn index(&self, which: usize) -> &AtomicU64 {
        // SAFETY: the first page holds nothing but two `Index` (2 * 128 <= DATA); the mapping is page
        // aligned, lives as long as `self`, and these words are only ever used as atomics.
        unsafe { &self.memory.base.cast::<Index>().add(which).as_ref().0 }
    }

    /// Where counter `at` lies in the data, and how much follows without a wrap.
    fn place(&self, at: u64, len: usize) -> (NonNull<u8>, usize) {
        let offset = at as usize & (self.size - 1);
        // SAFETY: offset < size, and the mapping has DATA + size bytes.
        let place = unsafe { self.memory.base.add(DATA + offset) };
        (place, len.min(self.size - offset))
    }
}

pub struct Producer {
    ring: Arc<Ring>,
    tail: u64,
    /// The head as last seen: room computed from it is never too much.
    head: u64,
}

pub struct Consumer {
    ring: Arc<Ring>,
    head: u64,
    /// The tail as last seen: what it says is readable is.
    tail: u64,
}

/// A ring of `size` bytes, a power of two.
pub fn ring(size: usize) -> io::Result<(Producer, Consumer)> {
    assert!(size.is_power_of_two());
    let ring = Ring { memory: Mapping::new(DATA + size)?, size, closed: AtomicBool::new(false) };
    ring.tail().store(0, Ordering::Relaxed);
    ring.head().store(0, Ordering::Relaxed);
    let ring = Arc::new(ring);
    Ok((Producer { ring: ring.clone(), tail: 0, head: 0 }, Consumer { ring, head: 0, tail: 0 }))
}

impl Producer {
    /// Writes what fits and returns how much that was.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let size = self.ring.size;
        if size - ((self.tail - self.head) as usize) < bytes.len() {
            self.head = self.ring.head().load(Ordering::Acquire);
        }
        let count = bytes.len().min(size - (self.tail - self.head) as usize);
        let (first, until_wrap) = self.ring.place(self.tail, count);
        let (second, _) = self.ring.place(self.tail + until_wrap as u64, 0);
        // SAFETY: `count` free bytes follow the tail (the head was loaded with acquire, so the consumer is
        // done with them) and are ours until the store below; `place` keeps both parts inside the data.
        unsafe {
            first.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), until_wrap);
            second.as_ptr().copy_from_nonoverlapping(bytes.as_ptr().add(until_wrap), count - until_wrap);
        }
        self.tail += count as u64;
        if count > 0 {
            self.ring.tail().store(self.tail, Ordering::Release);
        }
        count
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Release);
    }
}

impl Producer {
    /// Whether the other end is gone.
    pub fn is_closed(&self) -> bool {
        self.ring.closed.load(Ordering::Acquire)
    }
}

impl Consumer {
    /// Reads what there is, at most a buffer full, and returns how much that was.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        if self.tail == self.head {
            self.tail = self.ring.tail().load(Ordering::Acquire);
        }
        let count = buffer.len().min((self.tail - self.head) as usize);
        let (first, until_wrap) = self.ring.place(self.head, count);
        let (second, _) = self.ring.place(self.head + until_wrap as u64, 0);
        // SAFETY: the tail was loaded with acquire, so the `count` bytes after the head are written and
        // stay as they are until the store below; `place` keeps both parts inside the data.
        unsafe {
            first.as_ptr().copy_to_nonoverlapping(buffer.as_mut_ptr(), until_wrap);
            second.as_ptr().copy_to_nonoverlapping(buffer.as_mut_ptr().add(until_wrap), count - until_wrap);
        }
        self.head += count as u64;
        if count > 0 {
            self.ring.head().store(self.head, Ordering::Release);
        }
        count
    }

    /// Whether the producer is gone. Bytes may still be there: read once more after a yes.
    pub fn is_closed(&self) -> bool {
        self.ring.closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_fills_and_empties() {
        let (mut producer, mut consumer) = ring(8).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(consumer.read(&mut buffer), 0);
        assert_eq!(producer.write(b"abcdefghij"), 8);
        assert_eq!(producer.write(b"x"), 0);
        assert_eq!(consumer.read(&mut buffer[..5]), 5);
        assert_eq!(producer.write(b"ij"), 2); // wraps
        assert_eq!(consumer.read(&mut buffer[5..]), 3); // what was seen before
        assert_eq!(consumer.read(&mut buffer[8..]), 2);
        assert_eq!(&buffer[..10], b"abcdefghij");
        assert!(!consumer.is_closed());
        drop(producer);
        assert!(consumer.is_closed());
    }

    #[test]
    fn two_threads_agree_on_every_byte() {
        let (mut producer, mut consumer) = ring(64).unwrap();
        const TOTAL: usize = 100_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut sent = 0;
                while sent < TOTAL {
                    let chunk: Vec<u8> = (sent..TOTAL.min(sent + 37)).map(|at| (at % 251) as u8).collect();
                    sent += producer.write(&chunk);
                    std::thread::yield_now();
                }
            });
            let (mut buffer, mut got) = ([0; 29], 0);
            while got < TOTAL {
                let count = consumer.read(&mut buffer);
                assert!(
                    buffer[..count].iter().zip(got..).all(|(&byte, at)| byte == (at % 251) as u8),
                    "at {got}"
                );
                got += count;
                std::thread::yield_now();
            }
        });
    }
}
