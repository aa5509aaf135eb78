//! The end of a stream that is captured: what its guest sends, as it is copied.

use std::any::Any;
use std::sync::Arc;

use vmlane_mem::Spans;
use vmlane_wire::virtio_vsock::Header;

use super::{StreamWrapper, wall_clock};
use crate::{Bytes, End, PortFault, StreamAddress, StreamInfo, StreamPort};

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// It is new.
    Begins,
    /// An end is notified that its peer sends or reads no more, or is gone.
    Ends,
}

/// Looks at what sockets of VMs send. Workers call it with the bytes of each step of a stream, while they lie
/// where their sender put them; it must not wait. Several threads may call at once. Times are nanoseconds
/// since 1970.
pub trait StreamTap: Send + Sync {
    /// `from` sent `len` bytes, which lie at the begin of `bytes`.
    fn sent(&self, from: StreamAddress, bytes: Bytes<'_>, len: usize, time: u64);

    /// Something else happened to the stream of which `of` is an end.
    fn event(&self, of: StreamAddress, event: StreamEvent, time: u64);

    /// A packet from one virtio-vsock guest to another: its header, and where its payload lies, if it has
    /// one.
    fn packet(&self, header: &Header, payload: Option<PacketPayload<'_>>, time: u64);

    /// `from` sent a datagram to its peer.
    fn datagram(&self, from: StreamAddress, bytes: &[u8], time: u64);
}

/// The payload of a packet, in its sender's memory: `len` bytes of `spans` from `at` on.
#[derive(Clone, Copy)]
pub struct PacketPayload<'a> {
    /// Has these bytes.
    pub spans: &'a Spans,
    /// The first byte.
    pub at: usize,
    /// How many bytes.
    pub len: usize,
}

/// An end with taps. It is there only while there is a capture: [`CapturedStream::wrap`] and
/// [`CapturedStream::unwrap`] may be called between any two turns of the stream.
pub struct CapturedStream {
    inner: Box<dyn StreamPort>,
    taps: Vec<Arc<dyn StreamTap>>,
    address: StreamAddress,
}

impl CapturedStream {
    /// Has `taps` examine an end of a stream whose addresses are known; none: the end as it is.
    pub fn wrap(
        inner: Box<dyn StreamPort>,
        taps: &[Arc<dyn StreamTap>],
        address: Option<StreamAddress>,
    ) -> Box<dyn StreamPort> {
        match address {
            Some(address) if !taps.is_empty() => {
                Box::new(CapturedStream { inner, taps: taps.to_vec(), address })
            }
            _ => inner,
        }
    }

    /// The end as it was before [`CapturedStream::wrap`].
    pub fn unwrap(end: Box<dyn StreamPort>) -> Box<dyn StreamPort> {
        let any: &dyn Any = &*end;
        if !any.is::<CapturedStream>() {
            return end;
        }
        let any: Box<dyn Any> = end;
        match any.downcast::<CapturedStream>() {
            Ok(captured) => captured.inner,
            Err(_) => unreachable!("just found to be one"),
        }
    }
}

impl StreamWrapper for CapturedStream {
    fn inner(&self) -> &dyn StreamPort {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn StreamPort {
        &mut *self.inner
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        if len > 0 {
            let now = wall_clock();
            self.taps.iter().for_each(|tap| tap.sent(self.address, self.inner.source(), len, now));
        }
        self.inner.consume(len)
    }

    fn end(&mut self, end: End) {
        let now = wall_clock();
        self.taps.iter().for_each(|tap| tap.event(self.address, StreamEvent::Ends, now));
        self.inner.end(end);
    }

    fn info(&self) -> StreamInfo<'_> {
        StreamInfo { address: Some(self.address), ..self.inner.info() }
    }
}
