//! An end of a stream whose other side is the test: bytes are counted, not examined.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
use vmlane_port::{
    Budget, End, Notifications, PortFault, RingSlice, StreamEnd, StreamInfo, StreamPort, Survival,
};

const RING: usize = 64 << 10;

/// Bytes that the other side has for the stream, and those that it got.
#[derive(Default)]
pub struct Bytes {
    pub stored: AtomicUsize,
    pub got: AtomicUsize,
    pub resets: AtomicUsize,
}

/// The other side of an end.
pub trait OtherSide: Send + Sync + 'static {
    fn bytes(&self) -> &Bytes;

    fn renotify(&self) {}

    fn defers(&self) -> bool {
        false
    }

    fn answer(&self, _doorbell: &UnixStream) -> bool {
        false
    }
}

struct Port<O> {
    pages: Pages,
    other: Arc<O>,
    doorbell: Option<UnixStream>,
}

impl<O> Port<O> {
    fn ring(&self) -> RingSlice<'_> {
        RingSlice { pages: &self.pages, base: 0, size: RING, at: 0 }
    }
}

impl<O: OtherSide> StreamPort for Port<O> {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(self.other.bytes().stored.load(SeqCst))
    }

    fn source(&self) -> vmlane_port::Bytes<'_> {
        vmlane_port::Bytes::Ring(self.ring())
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.other.bytes().stored.fetch_sub(len, SeqCst);
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        Ok(self.readable()? == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        Ok(RING)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn fill(&mut self, from: vmlane_port::Bytes<'_>, len: usize) -> Result<(), PortFault> {
        from.copy_to(self.ring(), len);
        self.other.bytes().got.fetch_add(len, SeqCst);
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(true)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        self.other.renotify();
        Ok(())
    }

    fn end(&mut self, end: End) {
        self.other.bytes().resets.fetch_add(usize::from(end == End::Reset), SeqCst);
    }

    fn info(&self) -> StreamInfo<'_> {
        StreamInfo {
            doorbell: self.doorbell.as_ref().map(|doorbell| doorbell.as_fd()),
            ..StreamInfo::default()
        }
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        Some(self)
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        None
    }
}

impl<O: OtherSide> Notifications for Port<O> {
    fn flush_deferred(&mut self) -> bool {
        self.other.defers()
    }

    fn notify_late(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn notify_both(&mut self) {}

    fn answer_doorbell(&mut self) -> bool {
        self.doorbell.as_ref().is_some_and(|doorbell| self.other.answer(doorbell))
    }

    fn requests(&self) -> Option<u64> {
        None
    }
}

/// An end of a stream; `bell`: by which it is announced that there are bytes.
pub fn end<O: OtherSide>(other: &Arc<O>, doorbell: Option<UnixStream>) -> StreamEnd {
    let fd = memfd("test", RING as u64).unwrap();
    let request = MapRequest { guest: 0, len: RING as u64, offset: 0, fd, writable: true };
    let map = MemoryMap::default().map(request).unwrap();
    let pages = map.pages((0..RING as u64).step_by(4096), 12).unwrap();
    StreamEnd {
        port: Box::new(Port { pages, other: other.clone(), doorbell }),
        budget: Arc::new(Budget::new(0)),
        slow: false,
        worker: None,
    }
}
