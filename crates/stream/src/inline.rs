//! Streams turned on the thread that kicks them: deterministic, single-threaded, for fuzzing and tests of
//! devices. The daemon uses [`crate::Workers`].

use std::time::Instant;

use parking_lot::Mutex;
use vmlane_port::{Resumed, Shutdown, Side, StreamEnd, StreamId, Streams};

use crate::joined::{Broken, JoinedStream, Turn};

/// Bytes per turn; small, so that one kick takes several turns.
const QUOTA: usize = 64 << 10;

/// See the module's text.
#[derive(Default)]
pub struct Inline {
    streams: Mutex<Vec<Option<JoinedStream>>>,
}

impl Inline {
    fn with(&self, id: StreamId, action: impl FnOnce(&mut JoinedStream) -> Result<(), Broken>) {
        let mut streams = self.streams.lock();
        let Some(slot) = streams.get_mut(id.number as usize) else { return };
        let Some(stream) = slot else { return };
        stream.wake();
        if action(stream).and_then(|()| run_until_asleep(stream)).is_err() {
            stream.break_up();
            *slot = None;
        } else if stream.is_over() {
            *slot = None;
        }
    }

    fn begin(
        &self,
        stream: JoinedStream,
        action: impl FnOnce(&mut JoinedStream) -> Result<(), Broken>,
    ) -> StreamId {
        let number = {
            let mut streams = self.streams.lock();
            streams.push(Some(stream));
            streams.len() as u64 - 1
        };
        let id = StreamId { worker: 0, number };
        self.with(id, action);
        id
    }

    /// Turns every stream until it sleeps, as a worker does when guests move indices unannounced.
    pub fn turn_all(&self) {
        let count = self.streams.lock().len();
        for number in 0..count as u64 {
            self.with(StreamId { worker: 0, number }, |_| Ok(()));
        }
    }
}

/// Turns until the stream sleeps; gives up after a while, since guests may change indices under it.
fn run_until_asleep(stream: &mut JoinedStream) -> Result<(), Broken> {
    for _ in 0..64 {
        while let Turn::Moved(_) = stream.turn(QUOTA)? {}
        stream.renotify_reader()?;
        if stream.try_sleep(QUOTA, Instant::now())? && stream.flush_deferred()? {
            break;
        }
    }
    stream.inspect().map(|_| ())
}

impl Streams for Inline {
    fn join(&self, ends: [StreamEnd; 2]) -> StreamId {
        self.begin(JoinedStream::new(ends, Instant::now()), |_| Ok(()))
    }

    fn resume(&self, Resumed { ends, left, marks }: Resumed) -> StreamId {
        let stream = JoinedStream::resumed(ends, left, Instant::now());
        self.begin(stream, |stream| stream.restore_marks(marks))
    }

    fn kick(&self, stream: StreamId) {
        self.with(stream, |_| Ok(()));
    }

    fn shutdown(&self, stream: StreamId, side: Side, what: Shutdown) {
        self.with(stream, |stream| stream.shutdown(side, what));
    }

    fn reset(&self, stream: StreamId, side: Side) {
        self.with(stream, |stream| stream.reset(side));
    }

    fn leave(&self, ends: &[(StreamId, Side)]) {
        for &(id, side) in ends {
            self.with(id, |stream| stream.leave(side).map(|_| ()));
        }
    }
}
