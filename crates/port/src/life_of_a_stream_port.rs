//! The life of a [`StreamPort`](crate::StreamPort): who calls what, in which order.
//!
//! # Calls
//!
//! A device makes a port over one end's rings and hands it to [`Streams::join`](crate::Streams::join)
//! together with another end's. From then on one worker owns it, and makes all the calls below on one thread,
//! until [`Streams::leave`](crate::Streams::leave) or a fault ends the stream and the port is dropped. The
//! other side of the rings (a guest, a process) moves its own indices at any time, on its own.
//!
//! **Data.** A turn of the stream, from port `a` to port `b`:
//!
//! 1. [`a.readable()`](crate::StreamPort::readable): how many bytes are there, from one load of the index.
//! 2. [`b.writable()`](crate::StreamPort::writable): how much room is there, likewise; less
//!    [`b.keep_free()`](crate::StreamPort::keep_free) if all of it would be filled.
//! 3. [`b.fill(a.source(), len)`](crate::StreamPort::fill): the one copy; then the bytes are published, and
//!    the reader is notified if it may sleep.
//! 4. [`a.consume(len)`](crate::StreamPort::consume): the room is the writer's again; it may be shown to it
//!    later.
//!
//! **Wake-ups.** They are separate from data, and none is sent per byte:
//!
//! * While bytes move, once a millisecond or so: [`renotify_reader`](crate::StreamPort::renotify_reader), for
//!   a reader that waits for more bytes than its last notification announced.
//! * Before the stream sleeps, in this order: one more turn to the last byte; `b.renotify_reader()`;
//!   [`a.arm_readable()`](crate::StreamPort::arm_readable), which publishes all room, and, if that is not
//!   enough, [`b.arm_writable()`](crate::StreamPort::arm_writable): from then on the other side's next move
//!   kicks the stream.
//!
//! **Parts that only some ports have.** A port whose other side sleeps has
//! [`Notifications`](crate::Notifications):
//!
//! * Asleep: [`flush_deferred`](crate::Notifications::flush_deferred) on both ends sends what is due, of what
//!   the last turn announced, too. While it returns true, the worker stays awake and asks again.
//! * A millisecond later: [`notify_late`](crate::Notifications::notify_late), for a guest without fences,
//!   whose last store may have become visible too late for all of these.
//! * Then none, but for the safety net ([`requests`](crate::Notifications::requests), `readable`,
//!   `writable`), and [`notify_both`](crate::Notifications::notify_both) should it find a lost notification.
//!
//! A port whose rings outlive the daemon has [`Survival`](crate::Survival): when the other end has left bytes
//! for which there was no room, [`keep`](crate::Survival::keep) gets them for the next daemon's sake.
//!
//! **The end.** [`end`](crate::StreamPort::end) reports how the stream ends, behind all bytes before it. When
//! this end leaves, what its ring holds still moves on; then the port is dropped.
//!
//! Any call may return a [`PortFault`](crate::PortFault): the other side broke the rules of its ring. Then
//! both ends are notified that the stream is over, and the port is dropped.
//!
//! # A port in memory
//!
//! The least there is: two rings over private pages. A real one checks indices that its other side may set to
//! anything ([`crate::byte_ring`]).
//!
//! ```
//! use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
//! use vmlane_port::{Bytes, End, Notifications, PortFault, RingSlice, StreamInfo, StreamPort, Survival};
//!
//! const SIZE: usize = 4096;
//!
//! struct InMemory {
//!     pages: Pages,
//!     /// Bytes that the other side has written, and those that were taken.
//!     written: usize,
//!     taken: usize,
//!     /// Bytes that the other side was given, and those that it has read.
//!     given: usize,
//!     read: usize,
//!     notified: usize,
//!     ended: Option<End>,
//! }
//!
//! impl StreamPort for InMemory {
//!     fn readable(&mut self) -> Result<usize, PortFault> {
//!         Ok(self.written - self.taken)
//!     }
//!     fn source(&self) -> Bytes<'_> {
//!         Bytes::Ring(RingSlice { pages: &self.pages, base: 0, size: SIZE, at: self.taken % SIZE })
//!     }
//!     fn consume(&mut self, len: usize) -> Result<(), PortFault> {
//!         self.taken += len;
//!         Ok(())
//!     }
//!     fn arm_readable(&mut self) -> Result<bool, PortFault> {
//!         Ok(self.readable()? == 0) // the other side always sees `taken`
//!     }
//!     fn writable(&mut self) -> Result<usize, PortFault> {
//!         Ok(SIZE - (self.given - self.read))
//!     }
//!     fn keep_free(&self) -> usize {
//!         0
//!     }
//!     fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
//!         from.copy_to(RingSlice { pages: &self.pages, base: SIZE, size: SIZE, at: self.given % SIZE }, len);
//!         self.notified += usize::from(self.given == self.read); // it may sleep on an empty ring
//!         self.given += len;
//!         Ok(())
//!     }
//!     fn arm_writable(&mut self) -> Result<bool, PortFault> {
//!         Ok(self.writable()? == 0)
//!     }
//!     fn renotify_reader(&mut self) -> Result<(), PortFault> {
//!         Ok(())
//!     }
//!     fn end(&mut self, end: End) {
//!         self.ended = Some(end);
//!     }
//!     fn info(&self) -> StreamInfo<'_> {
//!         StreamInfo::default()
//!     }
//!     // It has no other parts.
//!     fn notifications(&mut self) -> Option<&mut dyn Notifications> {
//!         None
//!     }
//!     fn survival(&mut self) -> Option<&mut dyn Survival> {
//!         None
//!     }
//! }
//!
//! # fn port() -> InMemory {
//! #     let len = 2 * SIZE as u64;
//! #     let fd = memfd("example", len).unwrap();
//! #     let request = MapRequest { guest: 0, len, offset: 0, fd, writable: true };
//! #     let map = MemoryMap::default().map(request).unwrap();
//! #     let pages = map.pages((0..len).step_by(4096), 12).unwrap();
//! #     InMemory { pages, written: 0, taken: 0, given: 0, read: 0, notified: 0, ended: None }
//! # }
//! // A turn, as an engine makes it.
//! fn turn(a: &mut dyn StreamPort, b: &mut dyn StreamPort) -> Result<usize, PortFault> {
//!     let len = a.readable()?.min(b.writable()?);
//!     if len > 0 {
//!         b.fill(a.source(), len)?;
//!         a.consume(len)?;
//!     }
//!     Ok(len)
//! }
//!
//! let (mut a, mut b) = (port(), port());
//! a.pages.write(0, b"hello"); // the other side's store ...
//! a.written += 5; // ... and its index
//! assert_eq!(turn(&mut a, &mut b).unwrap(), 5);
//! assert_eq!((b.given, b.notified, a.readable().unwrap()), (5, 1, 0));
//! let mut bytes = [0; 5];
//! b.pages.read(SIZE, &mut bytes);
//! assert_eq!(&bytes, b"hello");
//! // Nothing is left: the stream may sleep until the next byte is announced.
//! assert!(a.arm_readable().unwrap());
//! b.end(End::Finished);
//! assert_eq!(b.ended, Some(End::Finished));
//! ```
