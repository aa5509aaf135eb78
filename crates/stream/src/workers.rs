//! The workers as devices see them: streams are joined, kicked, shut down and left.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use vmlane_port::role::Role;
use vmlane_port::{Resumed, Shutdown, Side, StreamEnd, StreamId, Streams};
use vmlane_stats::counters;
use vmlane_worker::{Calls, Heartbeat, Parking, RoundRobin};

use crate::engine::StreamEngine;
use crate::joined;
use crate::requests::{Command, Requests, Signals};

/// How workers behave.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads. Every stream belongs to one of them.
    pub workers: u16,
    /// How long a stream is polled at most after its last byte before it is armed and left alone.
    pub spin: Duration,
    /// Never sleep: a core of its own is spent on latency.
    pub poll: bool,
    /// Bytes a stream moves per turn at most, so that one cannot hold the worker.
    pub quota: usize,
    /// Looks of the safety net, a tenth of a second apart, before a notice counts as lost; more of them
    /// where guests' threads may stand still for longer. Guests that are slow to send have 30 at least.
    pub looks: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let spin = Duration::from_micros(500);
        Settings { workers: 1, spin, poll: false, quota: 1 << 20, looks: joined::LOOKS }
    }
}

counters! {
    /// What the workers did, all of them together.
    pub struct WorkerStats {
        /// Bytes copied from end to end.
        bytes,
        /// Turns that moved something.
        turns,
        /// Streams put to sleep.
        sleeps,
        /// Times a worker parked.
        parks,
        /// Streams joined.
        joined,
        /// Streams ended because an end broke the rules of its ring.
        broken,
        /// Streams ended because our own code panicked on them.
        panics,
        /// Bytes kept for a peer after their sender had left.
        spilled_bytes,
        /// Bytes lost because their sender left and its budget was spent.
        lost_bytes,
        /// Safety net: notices that had got lost. Stays 0 unless there is a bug here or in a guest.
        lost_notices,
        /// Safety net: bytes taken without a notice from a sender that stood still.
        still_senders,
        /// Turns put off because the opener of the stream had used up its share of the round.
        deferred,
        /// Rings topped up that their readers had made room in without announcing it yet.
        refills,
    }
}

/// A worker of streams: a thread of [`Workers`], or turned by its owner.
pub type Worker = vmlane_worker::Worker<StreamEngine>;

/// The worker threads; dropping it stops them.
pub struct Workers {
    requests: Vec<Arc<Requests>>,
    placement: RoundRobin,
    threads: Vec<JoinHandle<()>>,
    stats: Arc<WorkerStats>,
    beats: Vec<Arc<Heartbeat>>,
}

impl Workers {
    /// Starts the threads.
    pub fn start(settings: Settings) -> std::io::Result<Workers> {
        let (mut workers, unstarted) = Workers::unstarted(settings);
        for (number, worker) in unstarted.into_iter().enumerate() {
            workers.threads.push(worker.spawn(format!("worker-{number}"))?);
        }
        Ok(workers)
    }

    /// The workers without threads: nothing moves unless the caller calls [`Worker::step`]. For
    /// benchmarks of the engine alone.
    pub fn unstarted(settings: Settings) -> (Workers, Vec<Worker>) {
        let stats = Arc::new(WorkerStats::default());
        let requests = || Arc::new(Requests::new(Parking::for_thread()));
        let requests: Vec<_> = (0..settings.workers.max(1)).map(|_| requests()).collect();
        let beats: Vec<Arc<Heartbeat>> = requests.iter().map(|_| Arc::default()).collect();
        let Settings { spin, poll, .. } = settings;
        let runtime = vmlane_worker::Settings { role: Role::Worker, spin, poll };
        let start = |(requests, beat): (&Arc<Requests>, &Arc<Heartbeat>)| {
            let engine = StreamEngine::new(requests.clone(), settings, stats.clone(), beat.clone());
            Worker::new(engine, requests.clone(), beat.clone(), runtime)
        };
        let unstarted = requests.iter().zip(&beats).map(start).collect();
        let placement = RoundRobin::new(requests.len());
        (Workers { requests, placement, threads: Vec::new(), stats, beats }, unstarted)
    }

    pub fn stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }

    /// The heartbeat of each worker; it serves streams.
    pub fn beats(&self) -> &[Arc<Heartbeat>] {
        &self.beats
    }

    fn of(&self, stream: StreamId) -> Option<&Requests> {
        self.requests.get(usize::from(stream.worker)).map(|requests| &**requests)
    }

    /// A new stream on the worker whose turn it is.
    fn place(&self, command: impl FnOnce(usize) -> Command) -> StreamId {
        let worker = self.placement.pick();
        let Some(requests) = self.requests.get(worker) else {
            return StreamId { worker: 0, number: u64::MAX };
        };
        let number = requests.post(|slots| {
            let (slot, number) = slots.begin();
            (Some(command(slot)), number)
        });
        StreamId { worker: worker as u16, number }
    }

    fn signal(&self, stream: StreamId, signals: Signals) {
        if let Some(requests) = self.of(stream) {
            requests.post(|slots| (slots.signal(stream.number, signals), ()));
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.requests.iter().for_each(|requests| requests.stop());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Streams for Workers {
    fn join(&self, ends: [StreamEnd; 2]) -> StreamId {
        self.place(|slot| Command::Join { slot, ends })
    }

    fn resume(&self, stream: Resumed) -> StreamId {
        self.place(|slot| Command::Resume { slot, stream: Box::new(stream) })
    }

    fn kick(&self, stream: StreamId) {
        self.signal(stream, Signals::KICK);
    }

    fn shutdown(&self, stream: StreamId, side: Side, what: Shutdown) {
        self.signal(stream, Signals::shutdown(side, what));
    }

    fn reset(&self, stream: StreamId, side: Side) {
        self.signal(stream, Signals::reset(side));
    }

    fn leave(&self, ends: &[(StreamId, Side)]) {
        let calls = Calls::new();
        for &(stream, side) in ends {
            let Some(requests) = self.of(stream) else { continue };
            // Refused by a worker that has stopped: it touches nothing any more.
            let _ = requests.call(|slots| {
                let slot = slots.of(stream.number)?;
                Some(Command::Leave { slot, side, answer: calls.answer() })
            });
        }
        calls.wait();
    }
}
