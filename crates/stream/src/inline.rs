//! Streams turned by whoever kicks them: deterministic, single-threaded, for fuzzing and tests of
//! devices. The daemon uses [`crate::Workers`].

use std::time::Instant;

use parking_lot::Mutex;
use vmlane_port::{Resumed, Shutdown, Side, StreamEnd, StreamId, Streams};

use crate::joined::{Broken, Lane, Turn};

/// Bytes per turn; small, so that one kick takes several turns.
const QUOTA: usize = 64 << 10;

/// See the module's text.
#[derive(Default)]
pub struct Inline {
    lanes: Mutex<Vec<Option<Lane>>>,
}

impl Inline {
    fn with(&self, id: StreamId, action: impl FnOnce(&mut Lane) -> Result<(), Broken>) {
        let mut lanes = self.lanes.lock();
        let Some(slot) = lanes.get_mut(id.number as usize) else { return };
        let Some(lane) = slot else { return };
        lane.wake();
        if action(lane).and_then(|()| settle(lane)).is_err() {
            lane.break_up();
            *slot = None;
        } else if lane.is_over() {
            *slot = None;
        }
    }

    /// Turns every lane until it sleeps, as a worker does when guests move indices unannounced.
    pub fn turn_all(&self) {
        let count = self.lanes.lock().len();
        for number in 0..count as u64 {
            self.with(StreamId { worker: 0, number }, |_| Ok(()));
        }
    }
}

/// Turns until the lane sleeps; gives up after a while, since guests may change indices under it.
fn settle(lane: &mut Lane) -> Result<(), Broken> {
    for _ in 0..64 {
        while let Turn::Moved(_) = lane.turn(QUOTA)? {}
        lane.nudge()?;
        if lane.try_sleep(QUOTA, Instant::now())? {
            break;
        }
    }
    lane.inspect().map(|_| ())
}

impl Streams for Inline {
    fn join(&self, ends: [StreamEnd; 2]) -> StreamId {
        let number = {
            let mut lanes = self.lanes.lock();
            lanes.push(Some(Lane::new(ends, Instant::now())));
            lanes.len() as u64 - 1
        };
        let id = StreamId { worker: 0, number };
        self.with(id, |_| Ok(()));
        id
    }

    fn resume(&self, lane: Resumed) -> StreamId {
        let Resumed { ends, left, marks } = lane;
        let number = {
            let mut lanes = self.lanes.lock();
            lanes.push(Some(Lane::resumed(ends, left, Instant::now())));
            lanes.len() as u64 - 1
        };
        let id = StreamId { worker: 0, number };
        self.with(id, |lane| lane.take_up(marks));
        id
    }

    fn kick(&self, lane: StreamId) {
        self.with(lane, |_| Ok(()));
    }

    fn shutdown(&self, lane: StreamId, side: Side, what: Shutdown) {
        self.with(lane, |lane| lane.shutdown(side, what));
    }

    fn reset(&self, lane: StreamId, side: Side) {
        self.with(lane, |lane| lane.reset(side));
    }

    fn leave(&self, ends: &[(StreamId, Side)]) {
        for &(id, side) in ends {
            self.with(id, |lane| lane.leave(side).map(|_| ()));
        }
    }
}
