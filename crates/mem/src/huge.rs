//! Guest memory that this process uses much, in huge pages.
//!
//! A VMM hands over its memory in pages of 4 KiB unless it was configured otherwise. Of hundreds of VMs
//! hardly a page's address is in the CPU's cache of translations when its turn comes again. One huge page
//! takes the place of 512 of these (`MADV_COLLAPSE`, Linux 6.1), at a price: the kernel copies 2 MiB, a guest
//! that touches them meanwhile waits, and the new page is charged to the control group of the process that
//! asked, no longer to the VMM's. So it is asked only for ranges that are there as a whole, since others
//! would be filled with zeros, and that this process uses.
#![allow(unsafe_code)] // madvise and mincore of mappings that are kept alive meanwhile

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Weak;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::file::{FileId, HUGE, PAGE};
use crate::region::{self, Large, Mapping};

/// Pages that a huge one takes the place of.
const PAGES: usize = HUGE / PAGE as usize;
/// `MADV_COLLAPSE` (linux/mman.h).
const COLLAPSE: libc::c_int = 25;
/// A range of which this process has so many pages in its tables was used at some time. Whether it still is
/// shows when they are taken out: they come back as they are used (a read brings 16 at once), and so many
/// until the next step are much.
const USED: usize = PAGES / 8;
/// Ranges that a step examines, at most, and those whose pages it takes out: each page that comes back is a
/// fault of a worker's.
const MAX_EXAMINED: usize = 256;
const WATCHED: usize = 16;
/// Ranges that a step passes, those that are not to be examined among them.
const PASSED: usize = 16 << 10;
/// Steps until a range that was not used is examined again, doubled each time, at most so often.
const REST: u32 = 8;
const MOST_DOUBLINGS: u32 = 6;
/// Steps without any try after the host had no huge page.
const NONE_LEFT: u32 = 60;
/// A mapping of which so many ranges were refused, and none was not, is left alone.
const REFUSALS: u32 = 8;
/// Steps for which memory that is mapped no longer counts: the VMM may have it still, on this process's
/// account.
const REMEMBERED: u32 = 3600;
/// An entry of `/proc/self/pagemap` has this bit if the page is in this process's tables.
const PRESENT: u64 = 1 << 63;

/// What a step of [`HugePages`] met that it could do nothing about.
#[derive(Debug, thiserror::Error)]
pub enum HugeError {
    /// Of this mapping, for good.
    #[error(
        "the kernel makes no huge pages of a VM's memory ({0}): it needs Linux 6.1 with transparent huge pages, and memory \
         in a memfd"
    )]
    Unsupported(Errno),
    #[error("no huge page is free on the host, or in the limit of the daemon's control group ({0})")]
    NoneLeft(Errno),
    #[error("asking which pages are in use: {0}")]
    Host(#[from] io::Error),
}

/// Puts what is used much of the memory of all guests into huge pages, a few at a time.
#[derive(Debug)]
pub struct HugePages {
    /// Bytes that may be in them.
    limit: u64,
    pagemap: File,
    known: Vec<Known>,
    /// Which mapping had its turn last.
    turn: usize,
    /// What is in huge pages of files that are mapped.
    huge: HashSet<Place>,
    /// Huge pages of those that are not any more: in which step, and how many.
    gone: VecDeque<(u32, usize)>,
    /// Ranges whose pages were taken out of this process's tables in the last step.
    watched: Vec<(Weak<Mapping>, usize)>,
    step: u32,
    /// No try before that step.
    not_before: u32,
    made: u64,
}

/// A range: its file, and where it begins there.
type Place = (FileId, u64);

/// A mapping that was met.
#[derive(Debug)]
struct Known {
    large: Large,
    /// Those of which something is known: each was in memory as a whole at some time. A VMM may hand over
    /// files that are much larger than what is in them.
    ranges: HashMap<usize, Range>,
    /// The range that is passed next.
    next: usize,
    refusals: u32,
    is_left_alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    /// Not to be examined before `step`; how often it was found out of use.
    Small {
        step: u32,
        doublings: u32,
    },
    Huge,
    /// The kernel makes none of it.
    Refused,
}

impl Known {
    fn place(&self, number: usize) -> Place {
        (self.large.file, self.large.first + (number * HUGE) as u64)
    }
}

impl HugePages {
    /// For at most `limit` bytes. Opens a file that a confined process may not be able to open.
    pub fn open(limit: u64) -> io::Result<HugePages> {
        Ok(HugePages {
            limit,
            pagemap: File::open("/proc/self/pagemap")?,
            known: Vec::new(),
            turn: 0,
            huge: HashSet::new(),
            gone: VecDeque::new(),
            watched: Vec::new(),
            step: 0,
            not_before: 0,
            made: 0,
        })
    }

    /// Bytes in huge pages: of memory that is mapped, and of what was mapped in the last hour.
    pub fn bytes(&self) -> u64 {
        let gone: usize = self.gone.iter().map(|(_, pages)| pages).sum();
        ((self.huge.len() + gone) * HUGE) as u64
    }

    /// Huge pages that were made so far.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Examines some ranges. To be called about once a second: ranges are judged by what is used of them
    /// from one step to the next.
    ///
    /// The error is the first one that this step met; the next one tries again.
    pub fn step(&mut self) -> Result<(), HugeError> {
        self.step_among(region::large())
    }

    fn step_among(&mut self, mappings: Vec<Large>) -> Result<(), HugeError> {
        self.step = self.step.saturating_add(1);
        self.meet(mappings);
        let mut met = Ok(());
        for (mapping, number) in std::mem::take(&mut self.watched) {
            if self.step >= self.not_before {
                met = met.and(self.judge(&mapping, number));
            }
        }
        if self.step >= self.not_before { met.and(self.choose()) } else { met }
    }

    /// Learns of mappings that came, and forgets those that went.
    fn meet(&mut self, mappings: Vec<Large>) {
        let before = self.known.len();
        self.known.retain(|known| known.large.mapping.strong_count() > 0);
        let some_went = self.known.len() != before;
        let known: HashSet<_> = self.known.iter().map(|known| known.large.mapping.as_ptr()).collect();
        for large in mappings.into_iter().filter(|large| !known.contains(&large.mapping.as_ptr())) {
            let ranges = HashMap::new();
            self.known.push(Known { large, ranges, next: 0, refusals: 0, is_left_alone: false });
        }
        // What was mapped anew has not gone.
        if some_went {
            let files: HashSet<FileId> = self.known.iter().map(|known| known.large.file).collect();
            let mapped = self.huge.len();
            self.huge.retain(|(file, _)| files.contains(file));
            self.gone.push_back((self.step, mapped - self.huge.len()));
        }
        while self.gone.front().is_some_and(|(step, _)| self.step - step > REMEMBERED) {
            self.gone.pop_front();
        }
    }

    /// May one more be made?
    fn has_room(&self) -> bool {
        self.bytes() + HUGE as u64 <= self.limit
    }

    /// Is a range that was watched used?
    fn judge(&mut self, mapping: &Weak<Mapping>, number: usize) -> Result<(), HugeError> {
        let Some(alive) = mapping.upgrade().filter(|alive| !alive.poisoned()) else { return Ok(()) };
        let range = alive.huge_range(number);
        let is_used = self.present(range)? >= USED && is_whole(range)?;
        if is_used && !self.has_room() {
            return Ok(());
        }
        let outcome = is_used.then(|| collapse(range));
        let is_it = |known: &&mut Known| known.large.mapping.ptr_eq(mapping);
        let Some(known) = self.known.iter_mut().find(is_it) else { return Ok(()) };
        let place = known.place(number);
        match outcome {
            Some(Ok(())) => {
                known.ranges.insert(number, Range::Huge);
                self.made += u64::from(self.huge.insert(place));
            }
            Some(Err(error @ Errno::NOMEM)) => {
                self.not_before = self.step.saturating_add(NONE_LEFT);
                return Err(HugeError::NoneLeft(error));
            }
            Some(Err(error @ Errno::INVAL)) => {
                known.ranges.insert(number, Range::Refused);
                known.refusals += 1;
                if known.refusals == REFUSALS && !known.ranges.values().any(|range| *range == Range::Huge) {
                    known.is_left_alone = true;
                    return Err(HugeError::Unsupported(error));
                }
            }
            // Pages of it are in use by the kernel just now, a limit of the control group is reached, or it
            // is not used.
            Some(Err(_)) | None => {
                let before = known.ranges.get(&number);
                let before = if let Some(Range::Small { doublings, .. }) = before { *doublings } else { 0 };
                let doublings = (before + 1).min(MOST_DOUBLINGS);
                let step = self.step.saturating_add(REST << doublings);
                known.ranges.insert(number, Range::Small { step, doublings });
            }
        }
        Ok(())
    }

    /// Chooses ranges to watch until the next step. Mappings take turns, a range of each.
    fn choose(&mut self) -> Result<(), HugeError> {
        if !self.has_room() {
            return Ok(());
        }
        let all: usize = self.known.iter().map(|known| known.large.count).sum();
        let mut examined = 0;
        for _ in 0..PASSED.min(all) {
            self.turn = (self.turn + 1) % self.known.len();
            let Some(known) = self.known.get_mut(self.turn) else { break };
            let number = known.next;
            known.next = (number + 1) % known.large.count;
            let place = known.place(number);
            let is_due = match known.ranges.get(&number) {
                None => !known.is_left_alone,
                Some(Range::Small { step, .. }) => *step <= self.step && !known.is_left_alone,
                Some(Range::Huge | Range::Refused) => false,
            };
            // Another mapping of the same file has it already.
            if is_due && self.huge.contains(&place) {
                known.ranges.insert(number, Range::Huge);
                continue;
            }
            let mapping = known.large.mapping.clone();
            let Some(alive) = mapping.upgrade().filter(|alive| is_due && !alive.poisoned()) else { continue };
            examined += 1;
            let range = alive.huge_range(number);
            if self.present(range)? >= USED && is_whole(range)? {
                // SAFETY: a mapping of a shared file, which `alive` keeps: the bytes stay where they are, in
                // the file.
                unsafe { madvise(range.cast(), HUGE, Advice::LinuxDontNeed) }.map_err(io::Error::from)?;
                self.watched.push((mapping, number));
            }
            if examined == MAX_EXAMINED || self.watched.len() == WATCHED {
                break;
            }
        }
        Ok(())
    }

    /// Pages of a range that are in this process's tables.
    fn present(&self, range: *mut u8) -> io::Result<usize> {
        let mut entries = [0; 8 * PAGES];
        self.pagemap.read_exact_at(&mut entries, range as u64 / PAGE * 8)?;
        let (words, _) = entries.as_chunks::<8>();
        Ok(words.iter().filter(|word| u64::from_ne_bytes(**word) & PRESENT != 0).count())
    }
}

/// Is all of a range in memory?
fn is_whole(range: *mut u8) -> io::Result<bool> {
    let mut pages = [0u8; PAGES];
    // SAFETY: a range of a mapping that the caller keeps; the answer is a byte for each of its pages.
    let answer = unsafe { libc::mincore(range.cast(), HUGE, pages.as_mut_ptr()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages.iter().all(|page| page & 1 != 0))
}

/// Has the kernel make one page of a range.
fn collapse(range: *mut u8) -> Result<(), Errno> {
    // SAFETY: a range of a mapping that the caller keeps; its bytes stay the same.
    let answer = unsafe { libc::madvise(range.cast(), HUGE, COLLAPSE) };
    if answer == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};

    use super::*;
    use crate::file::Backing;
    use crate::{MapRequest, MemoryMap, memfd};

    const LEN: u64 = 4 * HUGE as u64;
    const GUEST: u64 = 1 << 20;

    /// Guest memory of which the first bytes are there.
    struct Memory {
        fd: OwnedFd,
        map: MemoryMap,
    }

    impl Memory {
        fn new(bytes: u64) -> Memory {
            let fd = memfd("huge", LEN).unwrap();
            File::from(fd.try_clone().unwrap()).write_all_at(&vec![0xa5; bytes as usize], 0).unwrap();
            let map = Memory::map(&fd);
            Memory { fd, map }
        }

        fn map(fd: &OwnedFd) -> MemoryMap {
            let fd = fd.try_clone().unwrap();
            MemoryMap::default()
                .map(MapRequest { guest: GUEST, len: LEN, offset: 0, fd, writable: true })
                .unwrap()
        }

        fn large(&self, map: &MemoryMap) -> Vec<Large> {
            map.large(Backing::of(self.fd.as_fd()).unwrap().id)
        }

        /// Reads a byte of each page of the first `bytes`.
        fn touch(&self, bytes: u64) {
            for at in (0..bytes).step_by(PAGE as usize) {
                let mut byte = [0];
                self.map.read(GUEST + at, &mut byte).unwrap();
                assert_eq!(byte, [0xa5]);
            }
        }
    }

    /// Makes steps, with something between them, until enough is in huge pages. False: the kernel has none
    /// for us.
    fn until(pages: &mut HugePages, bytes: u64, mut mappings: impl FnMut() -> Vec<Large>) -> bool {
        for _ in 0..200 {
            match pages.step_among(mappings()) {
                Err(error @ (HugeError::Unsupported(_) | HugeError::NoneLeft(_))) => {
                    vmlane_testkit::skipped(&error.to_string());
                    return false;
                }
                other => other.unwrap(),
            }
            if pages.bytes() >= bytes {
                return true;
            }
        }
        panic!("{pages:?} has not put {bytes} bytes into huge pages");
    }

    #[test]
    fn what_is_used_and_there_as_a_whole_goes_into_huge_pages_up_to_the_limit() {
        // The third range has a hole, the fourth is not there.
        let two = 2 * HUGE as u64;
        let memory = Memory::new(two + HUGE as u64 / 2);
        let used = || {
            memory.touch(two + HUGE as u64 / 2);
            memory.large(&memory.map)
        };
        let mut one = HugePages::open(HUGE as u64 + 1).unwrap();
        if !until(&mut one, HUGE as u64, used) {
            return;
        }
        (0..20).for_each(|_| one.step_among(used()).unwrap());
        assert_eq!((one.bytes(), one.made()), (HUGE as u64, 1), "no more than the limit");
        let mut all = HugePages::open(LEN).unwrap();
        assert!(until(&mut all, two, used));
        (0..20).for_each(|_| all.step_among(used()).unwrap());
        assert_eq!((all.bytes(), all.made()), (two, 2), "none with a hole in it");
        // A second mapping of the same file: the same huge pages.
        let again = Memory::map(&memory.fd);
        let both = || [used(), memory.large(&again)].concat();
        for _ in 0..20 {
            again.read(GUEST, &mut vec![0; two as usize]).unwrap();
            all.step_among(both()).unwrap();
        }
        assert_eq!((all.bytes(), all.made()), (two, 2));
    }

    #[test]
    fn what_was_made_counts_for_an_hour_after_it_went() {
        let memory = Memory::new(LEN);
        let mut pages = HugePages::open(LEN).unwrap();
        let used = || {
            memory.touch(HUGE as u64);
            memory.large(&memory.map)
        };
        if !until(&mut pages, HUGE as u64, used) {
            return;
        }
        drop(memory);
        for _ in 0..=REMEMBERED {
            pages.step_among(Vec::new()).unwrap();
            assert_eq!(pages.bytes(), HUGE as u64);
        }
        pages.step_among(Vec::new()).unwrap();
        assert_eq!(pages.bytes(), 0);
    }

    #[test]
    fn a_file_that_is_mapped_anew_counts_once() {
        let mut memory = Memory::new(LEN);
        let mut pages = HugePages::open(LEN).unwrap();
        let used = || {
            memory.touch(HUGE as u64);
            memory.large(&memory.map)
        };
        if !until(&mut pages, HUGE as u64, used) {
            return;
        }
        memory.map = Memory::map(&memory.fd);
        for _ in 0..20 {
            memory.touch(HUGE as u64);
            pages.step_among(memory.large(&memory.map)).unwrap();
        }
        assert_eq!((pages.bytes(), pages.made()), (HUGE as u64, 1));
    }

    #[test]
    fn a_file_with_little_in_it_takes_no_memory_of_ours_whatever_its_length() {
        let fd = memfd("sparse", 1 << 40).unwrap();
        let request = MapRequest { guest: 0, len: 1 << 40, offset: 0, fd, writable: true };
        let file = Backing::of(request.fd.as_fd()).unwrap().id;
        let map = MemoryMap::default().map(request).unwrap();
        let mut pages = HugePages::open(1 << 40).unwrap();
        (0..4).for_each(|_| pages.step_among(map.large(file)).unwrap());
        assert_eq!(pages.known[0].large.count, 1 << 19);
        assert!(pages.known[0].ranges.is_empty() && pages.known[0].next > 0);
    }

    #[test]
    fn what_is_not_used_stays_and_is_asked_about_less_and_less() {
        let memory = Memory::new(LEN);
        memory.touch(LEN);
        let mut pages = HugePages::open(LEN).unwrap();
        let steps = |pages: &mut HugePages, count: u32| {
            (0..count).for_each(|_| pages.step_among(memory.large(&memory.map)).unwrap());
            match pages.known[0].ranges[&0] {
                Range::Small { step, doublings } => (step, doublings),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(steps(&mut pages, 2), (2 + 2 * REST, 1));
        // Used meanwhile, but only once.
        memory.touch(LEN);
        assert_eq!(steps(&mut pages, 2 * REST + 1).1, 2);
        assert_eq!(pages.bytes(), 0);
    }
}
