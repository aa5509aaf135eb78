//! The process's half of a ring in memory shared with the daemon: a conforming writer and reader, as a
//! guest is one (`docs/devices/vmci.md`, 6.5.1), with a bit in place of a guest's wait queue.
//!
//! Each half is used by one thread at a time. A half that returns `kick` has made the daemon's next
//! move possible while the daemon may be asleep: send it a signal.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_mem::{MapRequest, MemoryMap, Pages, Word};
use vmlane_wire::host::{INDEX_PAGE, ended, layout, word};

/// How much an operation moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub len: usize,
    /// The daemon may be asleep: signal it.
    pub kick: bool,
}

/// Words that both halves use.
struct Shared {
    announced: Mutex<Word>,
    ended: Word,
}

/// Bytes to the daemon.
pub struct Outgoing {
    data: Pages,
    tail: Word,
    head: Word,
    at: u64,
    size: u64,
    /// Not 0 while this half waits.
    wants: Word,
    shared: Arc<Shared>,
}

/// Bytes from the daemon.
pub struct Incoming {
    data: Pages,
    tail: Word,
    head: Word,
    at: u64,
    size: u64,
    /// Not 0 while this half waits.
    wants: Word,
    shared: Arc<Shared>,
}

/// Tells the daemon what this process does no more, while others use the halves.
pub struct Voice(Arc<Shared>);

impl Voice {
    /// Adds `ANNOUNCED_*` bits; to be followed by a signal.
    pub fn announce_end(&self, what: u64) {
        let announced = self.0.announced.lock();
        announced.store_fenced(announced.load() | what);
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the daemon broke the rules of the ring")
}

fn host(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Maps a ring's file and takes both halves of it.
pub fn map(fd: OwnedFd, size: u64) -> io::Result<(Outgoing, Incoming)> {
    let request = MapRequest { guest: 0, len: layout::file(size), offset: 0, fd, writable: true };
    halves(&MemoryMap::default().map(request).map_err(host)?, size)
}

/// Takes both halves where they are, of a ring that another user gives up. `map`: its file, from address 0.
pub fn halves(map: &MemoryMap, size: u64) -> io::Result<(Outgoing, Incoming)> {
    let pages = |at: u64, bytes: u64| map.pages(std::iter::once(at), bytes.trailing_zeros()).map_err(host);
    let own = pages(layout::process_page(size), INDEX_PAGE)?;
    let theirs = pages(layout::daemon_page(size), INDEX_PAGE)?;
    let shared = Arc::new(Shared {
        announced: Mutex::new(own.word(word::ANNOUNCED)),
        ended: theirs.word(word::ENDED),
    });
    let (tail, head) = (own.load_u64(word::TAIL), own.load_u64(word::HEAD));
    if tail >= size || head >= size {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an index outside its ring"));
    }
    let outgoing = Outgoing {
        data: pages(layout::PROCESS_DATA, size)?,
        tail: own.word(word::TAIL),
        head: theirs.word(word::HEAD),
        at: tail,
        size,
        wants: own.word(word::WANTS_ROOM),
        shared: shared.clone(),
    };
    let incoming = Incoming {
        data: pages(layout::daemon_data(size), size)?,
        tail: theirs.word(word::TAIL),
        head: own.word(word::HEAD),
        at: head,
        size,
        wants: own.word(word::WANTS_BYTES),
        shared,
    };
    Ok((outgoing, incoming))
}

impl Outgoing {
    /// Bytes of room.
    pub fn room(&self) -> io::Result<usize> {
        let head = self.head.load();
        if head >= self.size {
            return Err(broken());
        }
        Ok(((head + self.size - self.at - 1) % self.size) as usize)
    }

    /// Writes what fits of `data`.
    pub fn write(&mut self, data: &[u8]) -> io::Result<Moved> {
        let len = data.len().min(self.room()?);
        if len == 0 {
            return Ok(Moved::default());
        }
        let first = len.min((self.size - self.at) as usize);
        let parts = data.get(..len).and_then(|data| data.split_at_checked(first));
        let (to_the_end, rest) = parts.ok_or_else(broken)?;
        self.data.write(self.at as usize, to_the_end);
        self.data.write(0, rest);
        let before = self.at;
        self.at = (self.at + len as u64) % self.size;
        self.tail.store_fenced(self.at);
        // The ring was empty before these bytes: the daemon may have gone to sleep on it.
        Ok(Moved { len, kick: self.head.load() == before })
    }

    /// About to wait for room: a signal will come once there is some. True if there is some already.
    pub fn arm(&self) -> io::Result<bool> {
        self.wants.store_fenced(1);
        Ok(self.room()? > 0)
    }

    pub fn disarm(&self) {
        self.wants.store(0);
    }

    /// Announces what this process does no more.
    pub fn voice(&self) -> Voice {
        Voice(self.shared.clone())
    }

    /// The ends that this process has announced.
    pub fn announced(&self) -> u64 {
        self.shared.announced.lock().load()
    }

    /// How the stream ended so far: bits of [`ended`].
    pub fn ended(&self) -> u64 {
        self.shared.ended.load()
    }

    /// The peer takes no more bytes.
    pub fn is_refused(&self) -> bool {
        self.ended() & (ended::REFUSED | ended::DETACHED | ended::RESET) != 0
    }
}

impl Incoming {
    /// Bytes that wait.
    pub fn ready(&self) -> io::Result<usize> {
        let tail = self.tail.load();
        if tail >= self.size {
            return Err(broken());
        }
        Ok(((tail + self.size - self.at) % self.size) as usize)
    }

    /// Copies what is ready into `out`, at most as much as it holds, and keeps it.
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.ready()?);
        let first = len.min((self.size - self.at) as usize);
        let parts = out.get_mut(..len).and_then(|out| out.split_at_mut_checked(first));
        let (to_the_end, rest) = parts.ok_or_else(broken)?;
        self.data.read(self.at as usize, to_the_end);
        self.data.read(0, rest);
        Ok(len)
    }

    /// Gives `len` bytes, which are ready, back as room. True: signal the daemon.
    pub fn consume(&mut self, len: usize) -> bool {
        if len == 0 {
            return false;
        }
        let before = self.at;
        self.at = (self.at + len as u64) % self.size;
        self.head.store_fenced(self.at);
        // The ring was exactly full: the daemon may have gone to sleep on it.
        (self.tail.load() + 1) % self.size == before
    }

    /// Reads what is ready, at most as much as `out` holds.
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<Moved> {
        let len = self.peek(out)?;
        Ok(Moved { len, kick: self.consume(len) })
    }

    /// About to wait for bytes: a signal will come once there are some, or once the stream ends. True
    /// if there is something already.
    pub fn arm(&self) -> io::Result<bool> {
        self.wants.store_fenced(1);
        Ok(self.ready()? > 0 || self.is_over())
    }

    pub fn disarm(&self) {
        self.wants.store(0);
    }

    /// How the stream ended so far: bits of [`ended`].
    pub fn ended(&self) -> u64 {
        self.shared.ended.load()
    }

    /// No more bytes will come behind those that are ready. To be asked before [`Self::ready`].
    pub fn is_over(&self) -> bool {
        self.ended() & (ended::FINISHED | ended::DETACHED | ended::RESET) != 0
    }
}
