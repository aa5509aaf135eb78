//! The rings that an AF_XDP socket shares with the kernel (linux/if_xdp.h,
//! Documentation/networking/af_xdp.rst).
//!
//! Each ring has one producer and one consumer, who publish how far they are as counters that wrap around.
//! The kernel is trusted, and its counter is checked all the same: more entries than the ring holds are none.
#![allow(unsafe_code)] // mmap, and accesses to what the kernel shares

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Entries of each ring: a power of two, and no less than the frames that may be in it.
pub const ENTRIES: u32 = 2048;

/// A frame in the ring of received frames, or of frames to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Desc {
    /// Where it begins, counted from the start of the queue's memory.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Nothing that is used here.
    pub options: u32,
}

const _: () = assert!(size_of::<Desc>() == size_of::<libc::xdp_desc>());

/// Plain numbers, for which all bytes are valid.
pub trait Entry: Copy + Default {}
impl Entry for u64 {}
impl Entry for Desc {}

/// A ring, mapped.
struct Ring<T> {
    start: NonNull<u8>,
    len: usize,
    producer: usize,
    consumer: usize,
    flags: usize,
    desc: usize,
    entries: PhantomData<T>,
}

// SAFETY: a mapping of this value's own, accessed by atomics, and by raw copies of entries that the counters
// give to us.
unsafe impl<T> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps the ring at `page_offset` of `socket`, whose fields lie at the offsets of `at`.
    fn map(socket: impl AsFd, page_offset: u64, at: &libc::xdp_ring_offset) -> io::Result<Ring<T>> {
        let usual = |offset: u64| usize::try_from(offset).ok().filter(|offset| *offset <= 1 << 20);
        let fields = [at.producer, at.consumer, at.flags, at.desc].map(usual);
        let [Some(producer), Some(consumer), Some(flags), Some(desc)] = fields else {
            return Err(io::Error::other("the kernel reports impossible offsets of a ring"));
        };
        let len = desc + ENTRIES as usize * size_of::<T>();
        let aligned = [producer, consumer, flags].iter().all(|at| at.is_multiple_of(4) && at + 4 <= len);
        if !aligned || !desc.is_multiple_of(align_of::<T>()) {
            return Err(io::Error::other("the kernel reports impossible offsets of a ring"));
        }
        let flags_of_map = MapFlags::SHARED | MapFlags::POPULATE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags_of_map, socket, page_offset)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { start, len, producer, consumer, flags, desc, entries: PhantomData })
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned, as checked when it was made.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Where the entry of a counter lies.
    #[inline]
    fn entry(&self, counter: u32) -> *mut T {
        let index = (counter & (ENTRIES - 1)) as usize;
        // SAFETY: the mapping has `ENTRIES` entries from `desc` on, which is aligned.
        unsafe { self.start.as_ptr().add(self.desc).cast::<T>().add(index) }
    }

    /// The kernel asks to be notified of new entries.
    #[inline]
    fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A ring that we fill.
pub struct Producer<T> {
    ring: Ring<T>,
    /// The next entry's counter; those before `published` are the kernel's.
    next: u32,
    published: u32,
    /// The kernel's counter when it was last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// Puts an entry in, to be published later. False: the ring is full.
    #[inline]
    pub fn put(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) >= ENTRIES {
            self.consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) >= ENTRIES {
                return false;
            }
        }
        // SAFETY: a place inside the mapping that the kernel has read, or never had.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Gives the kernel what was put in. True if there was anything.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let any = self.next != self.published;
        if any {
            self.published = self.next;
            self.ring.word(self.ring.producer).store(self.next, Ordering::Release);
        }
        any
    }

    /// Entries that the kernel has not taken yet.
    #[inline]
    pub fn untaken(&mut self) -> u32 {
        self.consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        self.published.wrapping_sub(self.consumed).min(ENTRIES)
    }

    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring that the kernel fills.
pub struct Consumer<T> {
    ring: Ring<T>,
    /// The next entry's counter.
    next: u32,
    published: u32,
    /// The kernel's counter when it was last read.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    /// Entries that wait.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        if self.next == self.produced {
            self.produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
        }
        match self.produced.wrapping_sub(self.next) {
            waiting if waiting <= ENTRIES => waiting,
            _ => 0,
        }
    }

    /// The entry that is `ahead` of the next one, if so many wait.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<T> {
        let waiting = self.produced.wrapping_sub(self.next);
        (ahead < waiting && waiting <= ENTRIES).then(|| {
            // SAFETY: inside the mapping, published by the kernel (acquire), and ours until `publish`.
            unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() }
        })
    }

    /// The next entry.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.waiting() == 0 {
            return None;
        }
        let entry = self.peek(0)?;
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of what was taken back to the kernel.
    #[inline]
    pub fn publish(&mut self) {
        if self.next != self.published {
            self.published = self.next;
            self.ring.word(self.ring.consumer).store(self.next, Ordering::Release);
        }
    }
}

/// The four rings of a socket.
pub struct Rings {
    /// Frames that were received.
    pub rx: Consumer<Desc>,
    /// Frames to be sent.
    pub tx: Producer<Desc>,
    /// Free frames for the kernel to receive into.
    pub fill: Producer<u64>,
    /// Frames that were sent.
    pub completion: Consumer<u64>,
}

impl Rings {
    /// Maps the rings of a socket whose rings have [`ENTRIES`] entries each, and have not been used yet.
    /// Before Linux 6.4, the kernel refuses (EBUSY) once the socket is bound.
    pub fn map(socket: impl AsFd) -> io::Result<Rings> {
        let at = offsets(&socket)?;
        let (rx, tx) = (libc::XDP_PGOFF_RX_RING as u64, libc::XDP_PGOFF_TX_RING as u64);
        let (fill, completion) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        Ok(Rings {
            rx: consumer(Ring::map(&socket, rx, &at.rx)?),
            tx: producer(Ring::map(&socket, tx, &at.tx)?),
            fill: producer(Ring::map(&socket, fill, &at.fr)?),
            completion: consumer(Ring::map(&socket, completion, &at.cr)?),
        })
    }
}

fn producer<T: Entry>(ring: Ring<T>) -> Producer<T> {
    let next = ring.word(ring.producer).load(Ordering::Acquire);
    Producer { ring, next, published: next, consumed: next }
}

fn consumer<T: Entry>(ring: Ring<T>) -> Consumer<T> {
    let next = ring.word(ring.consumer).load(Ordering::Acquire);
    Consumer { ring, next, published: next, produced: next }
}

/// Where the fields of a socket's rings lie.
fn offsets(socket: impl AsFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: a structure of plain numbers, for which zeros are valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `offsets`, which outlives the call.
    let result = unsafe {
        let to = (&raw mut offsets).cast();
        let fd = socket.as_fd().as_raw_fd();
        libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, to, &raw mut len)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    match len as usize == size_of::<libc::xdp_mmap_offsets>() {
        true => Ok(offsets),
        false => Err(io::Error::other("Linux 5.4 or later is needed")),
    }
}
