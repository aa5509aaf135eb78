//! Streams whose bytes the daemon leaves to the helper for other hosts: the helper has the daemon's half of
//! the program's ring, and a copy of the daemon's end of its signal line. To the router and to the workers it
//! is a stream like any, but for its two ends: they have no bytes, and only pass on how the stream ends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::SendFlags;
use vmlane_mem::{Pages, Word};
use vmlane_port::shared_ring::{RingProcess, SharedMap};
use vmlane_port::{Bytes, End, Notifications, PortFault, StreamInfo, StreamPort, Survival};
use vmlane_wire::host::{ANNOUNCED_CLOSE, INDEX_PAGE, RING, SIGNAL, layout, word};

use super::inbox::{StreamWaker, Token};

/// What both halves of such a stream are known by, until the first of them has gone.
pub struct LeftStream {
    pub map: SharedMap,
    /// For the program and then for the helper, which get it in this order.
    pub memory: Option<OwnedFd>,
    pub program: Option<Token>,
    pub helper: Option<Token>,
    /// The program was notified, and the helper may be.
    pub notified: bool,
    pub joined: bool,
}

impl LeftStream {
    pub fn new() -> io::Result<LeftStream> {
        let memory = vmlane_mem::memfd("vmlane-host", layout::file(RING))?;
        let map = SharedMap::new(memory.try_clone()?, RING).map_err(io::Error::other)?;
        Ok(LeftStream {
            map,
            memory: Some(memory),
            program: None,
            helper: None,
            notified: false,
            joined: false,
        })
    }
}

/// The daemon's part in a joined one, as the program's stream has it.
pub struct Left {
    announced: Word,
    /// Of the helper, as long as it is there.
    pub line: Option<Arc<OwnedFd>>,
}

impl Left {
    pub fn new(map: &SharedMap) -> io::Result<Left> {
        Ok(Left { announced: page(map, layout::process_page(RING))?.word(word::ANNOUNCED), line: None })
    }

    /// Announces an end in place of a program that has left its ring to the daemon.
    pub fn announce_end(&self, what: u64) {
        self.announced.store_fenced(self.announced.load() | what);
        self.signal();
    }

    /// Has the helper check the ring.
    pub fn signal(&self) {
        self.line.iter().for_each(|line| signal(line));
    }
}

fn signal(line: &OwnedFd) {
    // One that does not fetch its signals has some already.
    let _ = rustix::net::send(line, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn page(map: &SharedMap, at: u64) -> io::Result<Pages> {
    map.memory().pages(std::iter::once(at), INDEX_PAGE.trailing_zeros()).map_err(io::Error::other)
}

/// One end, as its worker has it.
pub struct LeftEnd {
    page: Pages,
    of: Of,
}

enum Of {
    Program(Arc<StreamWaker>),
    Helper(Arc<OwnedFd>),
}

impl LeftEnd {
    pub fn of_program(map: &SharedMap, waker: Arc<StreamWaker>) -> io::Result<LeftEnd> {
        Ok(LeftEnd { page: page(map, layout::daemon_page(RING))?, of: Of::Program(waker) })
    }

    pub fn of_helper(map: &SharedMap, line: Arc<OwnedFd>) -> io::Result<LeftEnd> {
        Ok(LeftEnd { page: page(map, layout::process_page(RING))?, of: Of::Helper(line) })
    }

    fn add(&self, at: usize, bits: u64) {
        let word = self.page.word(at);
        word.store_fenced(word.load() | bits);
    }
}

/// The program's stream has ended with a reset, whatever the helper reports.
pub fn reset(map: &SharedMap, waker: &Arc<StreamWaker>) {
    if let Ok(mut end) = LeftEnd::of_program(map, waker.clone()) {
        end.end(End::Reset);
    }
}

impl StreamPort for LeftEnd {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(0)
    }

    fn source(&self) -> Bytes<'_> {
        Bytes::Private(&[])
    }

    fn consume(&mut self, _len: usize) -> Result<(), PortFault> {
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        Ok(true)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        Ok(0)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn fill(&mut self, _from: Bytes<'_>, _len: usize) -> Result<(), PortFault> {
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(true)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn end(&mut self, end: End) {
        match &self.of {
            Of::Program(waker) => {
                self.add(word::ENDED, end.bit());
                waker.wake(false);
                waker.ended(end);
            }
            // The program has gone. What it has written still counts.
            Of::Helper(line) => {
                self.add(word::ANNOUNCED, ANNOUNCED_CLOSE);
                signal(line);
            }
        }
    }

    fn info(&self) -> StreamInfo<'_> {
        StreamInfo::default()
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        None
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        None
    }
}
