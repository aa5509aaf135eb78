//! The daemon's half of a program's ring, where the daemon has left it to the helper: a reader and a writer
//! that trust the program no further than they can check (`vmlane_port::byte_ring`). The program notices no
//! difference.
//!
//! A program announces bytes where its ring was empty, and room where the other was exactly full; beyond that
//! its indices are polled. A bit in its page shows whether it waits, and for what: only then is it signalled.

use std::io;
use std::os::fd::OwnedFd;

use vmlane_mem::{MapRequest, MemoryMap, Pages, Word};
use vmlane_port::PortFault;
use vmlane_port::byte_ring::{Reading, Writing};
use vmlane_wire::host::{
    ANNOUNCED_CLOSE, ANNOUNCED_RECEIVE, ANNOUNCED_SEND, INDEX_PAGE, RING, ended, layout, word,
};

/// Bytes that are announced at once to a program that waits, the rest at the end of the turn.
const AT_ONCE: usize = 64 << 10;
/// The same of room: a program that waits for it writes much at a time then.
const MUCH_ROOM: u64 = RING / 2;

/// See the module's text.
pub struct Far {
    reading: Reading,
    writing: Writing,
    program_data: Pages,
    our_data: Pages,
    program_tail: Word,
    program_head: Word,
    wants_bytes: Word,
    wants_room: Word,
    announced: Word,
    our_tail: Word,
    our_head: Word,
    ended: Word,
    /// Bytes that a program which waits was not notified of yet, and whether the same goes for room.
    bytes_due: usize,
    room_due: bool,
}

/// What a program waits for: bytes (or the end) or room that are there, or room that is not (`blocked`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asks {
    pub bytes: bool,
    pub room: bool,
    pub blocked: bool,
}

fn broken(fault: PortFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault.to_string())
}

impl Far {
    /// Maps a ring that is new: both of its indices are 0.
    pub fn map(memory: OwnedFd) -> io::Result<Far> {
        let host = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let request = MapRequest { guest: 0, len: layout::file(RING), offset: 0, fd: memory, writable: true };
        let map = MemoryMap::default().map(request).map_err(|error| host(&error))?;
        let pages = |at: u64, bytes: u64| {
            map.pages(std::iter::once(at), bytes.trailing_zeros()).map_err(|error| host(&error))
        };
        let program = pages(layout::process_page(RING), INDEX_PAGE)?;
        let ours = pages(layout::daemon_page(RING), INDEX_PAGE)?;
        Ok(Far {
            reading: Reading::new(RING),
            writing: Writing::new(RING),
            program_data: pages(layout::PROCESS_DATA, RING)?,
            our_data: pages(layout::daemon_data(RING), RING)?,
            program_tail: program.word(word::TAIL),
            program_head: program.word(word::HEAD),
            wants_bytes: program.word(word::WANTS_BYTES),
            wants_room: program.word(word::WANTS_ROOM),
            announced: program.word(word::ANNOUNCED),
            our_tail: ours.word(word::TAIL),
            our_head: ours.word(word::HEAD),
            ended: ours.word(word::ENDED),
            bytes_due: 0,
            room_due: false,
        })
    }

    /// Bytes that wait.
    pub fn ready(&mut self) -> io::Result<usize> {
        self.reading.poll(self.program_tail.load()).map_err(broken)
    }

    /// Copies as many of the bytes that were ready at the last poll as `out` holds.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.reading.pending() as usize);
        self.reading.source(&self.program_data, 0).read(out.get_mut(..len).unwrap_or_default());
        len
    }

    /// Gives `len` bytes, which are ready, back as room. True: the program waits for it.
    pub fn consume(&mut self, len: usize) -> bool {
        self.reading.consume(len.min(self.reading.pending() as usize));
        self.reading.published = self.reading.cur;
        self.our_head.store_fenced(self.reading.cur);
        self.room_due = true;
        self.reading.room() >= MUCH_ROOM && self.take_due_room()
    }

    /// Takes the notification of room that is due. True: the program waits for it.
    pub fn take_due_room(&mut self) -> bool {
        std::mem::take(&mut self.room_due) && self.wants_room.load() != 0
    }

    /// Bytes of room.
    pub fn room(&mut self) -> io::Result<usize> {
        self.writing.poll(self.program_head.load()).map_err(broken)
    }

    /// Writes what fits of `data`: so many bytes. True: the program is to be notified now.
    pub fn write(&mut self, data: &[u8]) -> io::Result<(usize, bool)> {
        let data = data.get(..data.len().min(self.room()?)).unwrap_or_default();
        if data.is_empty() {
            return Ok((0, false));
        }
        self.writing.sink(&self.our_data, 0).write(data);
        self.writing.produce(data.len());
        self.our_tail.store_fenced(self.writing.tail);
        self.bytes_due += data.len();
        Ok((data.len(), self.bytes_due >= AT_ONCE && self.take_due_bytes()))
    }

    /// Takes the notification of bytes that is due. True: the program waits for it.
    pub fn take_due_bytes(&mut self) -> bool {
        std::mem::take(&mut self.bytes_due) > 0 && self.wants_bytes.load() != 0
    }

    /// Announces how the stream ends, as bits of `ANNOUNCED_*`; to be followed by a signal.
    pub fn announce_end(&self, what: u64) {
        let pairs = [
            (ANNOUNCED_SEND, ended::FINISHED),
            (ANNOUNCED_RECEIVE, ended::REFUSED),
            (ANNOUNCED_CLOSE, ended::DETACHED),
        ];
        let bits =
            pairs.iter().filter(|(announced, _)| what & announced != 0).fold(0, |all, (_, bit)| all | bit);
        self.ended.store_fenced(self.ended.load() | bits);
    }

    /// How the program has ended the stream so far, as bits of [`ended`]. To be asked before [`Self::ready`].
    pub fn ended(&self) -> u64 {
        let announced = self.announced.load();
        let pairs = [
            (ANNOUNCED_SEND, ended::FINISHED),
            (ANNOUNCED_RECEIVE, ended::REFUSED),
            // The daemon announces it once the program is gone.
            (ANNOUNCED_CLOSE, ended::DETACHED),
        ];
        pairs.iter().filter(|(bit, _)| announced & bit != 0).fold(0, |all, (_, bit)| all | bit)
    }

    /// What the program waits for.
    pub fn asks(&self) -> Asks {
        let over = self.ended.load() != 0;
        let bytes = over || self.writing.tail != self.program_head.load();
        let full = self.program_tail.load().wrapping_add(1) % RING == self.reading.cur;
        let wants_room = self.wants_room.load() != 0;
        Asks {
            bytes: bytes && self.wants_bytes.load() != 0,
            room: wants_room && (over || !full),
            blocked: wants_room && full && !over,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vmlane_sock::ring::{self, Incoming, Outgoing};

    use super::*;

    fn pair() -> (Far, Outgoing, Incoming, Pages) {
        let memory = vmlane_mem::memfd("test", layout::file(RING)).unwrap();
        let again = |memory: &OwnedFd| memory.try_clone().unwrap();
        let (out, incoming) = ring::map(again(&memory), RING).unwrap();
        let request =
            MapRequest { guest: 0, len: layout::file(RING), offset: 0, fd: again(&memory), writable: true };
        let map = MemoryMap::default().map(request).unwrap();
        let page = map.pages(std::iter::once(layout::process_page(RING)), 12).unwrap();
        (Far::map(memory).unwrap(), out, incoming, page)
    }

    /// A program that writes into its page what it likes is found out, and nothing outside its ring is
    /// touched.
    #[test]
    fn indices_that_cannot_be_are_refused() {
        for index in [RING, RING + 1, u64::MAX, 1 << 63] {
            let (mut far, _, _, page) = pair();
            page.store_u64(word::TAIL, index);
            assert!(far.ready().is_err(), "a tail of {index:#x}");
            page.store_u64(word::HEAD, index);
            assert!(far.room().is_err() && far.write(b"x").is_err(), "a head of {index:#x}");
            let _ = far.asks();
        }
        let (mut far, mut out, _, page) = pair();
        out.write(&[7; 100]).unwrap();
        assert_eq!(far.ready().unwrap(), 100);
        page.store_u64(word::TAIL, 50);
        assert!(far.ready().is_err(), "a tail that goes back");
        assert_eq!(far.write(&[1; 10]).unwrap().0, 10);
        page.store_u64(word::HEAD, 11);
        assert!(far.room().is_err(), "more read than was written");
    }

    #[test]
    fn a_program_that_waits_is_notified_and_no_other() {
        let (mut far, mut out, mut incoming, _) = pair();
        assert!(out.write(&[1; 1000]).unwrap().kick, "the ring was empty");
        assert!(!out.write(&[1; 1000]).unwrap().kick, "its ring is polled");
        assert_eq!(far.ready().unwrap(), 2000);
        assert!(!far.consume(2000) && !far.take_due_room(), "it does not wait");
        assert_eq!(out.write(&vec![1; RING as usize]).unwrap().len, RING as usize - 1);
        assert!(!out.arm().unwrap());
        assert_eq!(far.asks(), Asks { bytes: false, room: false, blocked: true });
        assert!(far.ready().unwrap() > 0 && !far.consume(1000), "little room, and more may follow");
        assert!(far.take_due_room() && !far.take_due_room(), "notified once");
        assert!(far.consume(RING as usize / 2));
        assert!(!incoming.arm().unwrap());
        assert_eq!(far.write(b"abc").unwrap(), (3, false));
        assert!(far.take_due_bytes() && !far.take_due_bytes());
        assert!(far.asks().bytes);
        assert_eq!(far.write(&vec![2; RING as usize]).unwrap(), (RING as usize - 4, true));
        let mut byte = [0];
        assert!(incoming.read(&mut byte).unwrap().kick, "it was full");
        far.announce_end(ANNOUNCED_SEND);
        assert_eq!((incoming.ended(), out.ended()), (ended::FINISHED, ended::FINISHED));
        far.announce_end(ANNOUNCED_CLOSE | ANNOUNCED_RECEIVE);
        assert!(out.is_refused());
        out.voice().announce_end(ANNOUNCED_SEND);
        assert_eq!(far.ended(), ended::FINISHED);
        out.voice().announce_end(ANNOUNCED_CLOSE);
        assert_eq!(far.ended(), ended::FINISHED | ended::DETACHED);
    }

    proptest! {
        /// Both directions at once, in any order: bytes arrive whole, and no half that sleeps is forgotten.
        #[test]
        fn bytes_pass_whole_and_neither_side_sleeps_for_ever(steps in prop::collection::vec((0..4u8, 1..300_000usize), 1..120)) {
            let (mut far, mut out, mut incoming, _) = pair();
            let byte = |at: usize| (at % 251) as u8;
            let (mut written, mut read, mut sent, mut taken) = (0, 0, 0, 0);
            for (what, len) in steps {
                let data = |from: usize| (from..from + len).map(byte).collect::<Vec<_>>();
                match what {
                    0 => {
                        let empty = read == written;
                        let moved = out.write(&data(written)).unwrap();
                        prop_assert_eq!(moved.kick, empty && moved.len > 0);
                        written += moved.len;
                    }
                    1 => {
                        let ready = far.ready().unwrap();
                        prop_assert_eq!(ready, written - read);
                        let mut some = vec![0; len.min(ready)];
                        prop_assert_eq!(far.peek(&mut some), some.len());
                        prop_assert!(some.iter().enumerate().all(|(at, &got)| got == byte(read + at)));
                        far.consume(some.len());
                        read += some.len();
                    }
                    2 => sent += far.write(&data(sent)).unwrap().0,
                    _ => {
                        let full = sent - taken == RING as usize - 1;
                        let mut some = vec![0; len];
                        let moved = incoming.read(&mut some).unwrap();
                        prop_assert_eq!(moved.kick, full && moved.len > 0);
                        prop_assert!(some[..moved.len].iter().enumerate().all(|(at, &got)| got == byte(taken + at)));
                        taken += moved.len;
                    }
                }
            }
        }
    }
}
