//! The workers as devices see them: streams are joined, kicked, shut down and left.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use vmlane_port::role::Role;
use vmlane_port::wrap::StreamTap;
use vmlane_port::{Resumed, Shutdown, Side, StreamEnd, StreamId, Streams};
use vmlane_worker::{Calls, Heartbeat, Parking, RoundRobin};

use crate::engine::StreamEngine;
use crate::requests::{Command, Requests, Signals};
use crate::settings::Settings;
use crate::stats::WorkerStats;

/// A worker of streams: a thread of [`Workers`], or turned by its owner.
pub type Worker = vmlane_worker::Worker<StreamEngine>;

/// The worker threads; dropping it stops them.
pub struct Workers {
    requests: Vec<Arc<Requests>>,
    /// Held while they are changed; workers never take it.
    taps: Mutex<Vec<Arc<dyn StreamTap>>>,
    placement: RoundRobin,
    threads: Vec<JoinHandle<()>>,
    stats: Arc<WorkerStats>,
    heartbeats: Vec<Arc<Heartbeat>>,
}

impl Workers {
    /// Starts the threads.
    pub fn start(settings: Settings) -> std::io::Result<Workers> {
        let (mut workers, unstarted) = Workers::unstarted(settings)?;
        for (number, worker) in unstarted.into_iter().enumerate() {
            workers.threads.push(worker.spawn(format!("worker-{number}"))?);
        }
        Ok(workers)
    }

    /// The workers without threads: nothing moves unless the caller calls [`Worker::step`]. For
    /// benchmarks of the engine alone.
    pub fn unstarted(settings: Settings) -> std::io::Result<(Workers, Vec<Worker>)> {
        let stats = Arc::new(WorkerStats::default());
        let parkings = (0..settings.workers.max(1)).map(|_| Parking::new());
        let requests = parkings.map(|parking| Ok(Arc::new(Requests::new(parking?))));
        let requests: Vec<_> = requests.collect::<std::io::Result<_>>()?;
        let heartbeats: Vec<Arc<Heartbeat>> = requests.iter().map(|_| Arc::default()).collect();
        let Settings { spin, poll, .. } = settings;
        let runtime = vmlane_worker::Settings { role: Role::Worker, spin, poll };
        let start = |(requests, heartbeat): (&Arc<Requests>, &Arc<Heartbeat>)| {
            let engine = StreamEngine::new(requests.clone(), settings, stats.clone(), heartbeat.clone());
            Worker::new(engine, requests.clone(), heartbeat.clone(), runtime)
        };
        let unstarted = requests.iter().zip(&heartbeats).map(start).collect();
        let placement = RoundRobin::new(requests.len());
        let (taps, threads) = (Mutex::default(), Vec::new());
        Ok((Workers { requests, taps, placement, threads, stats, heartbeats }, unstarted))
    }

    pub fn stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }

    /// The heartbeat of each worker; it serves streams.
    pub fn heartbeats(&self) -> &[Arc<Heartbeat>] {
        &self.heartbeats
    }

    /// Has `tap` look at the bytes of all streams, until [`Self::remove_tap`]: it says itself which concern it. Streams
    /// go on meanwhile; their ends are wrapped.
    pub fn add_tap(&self, tap: Arc<dyn StreamTap>) {
        let mut taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.push(tap);
        self.place_taps(&taps);
    }

    /// Ends what [`Self::add_tap`] began: when this returns, no worker uses the tap any more.
    pub fn remove_tap(&self, tap: &Arc<dyn StreamTap>) {
        let mut taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.retain(|other| !Arc::ptr_eq(other, tap));
        self.place_taps(&taps);
    }

    fn place_taps(&self, taps: &[Arc<dyn StreamTap>]) {
        let calls = Calls::new();
        for requests in &self.requests {
            // Refused by a worker that has stopped: it looks at nothing any more.
            let _ = requests.call(|_| Some(Command::Tap { taps: taps.to_vec(), answer: calls.answer() }));
        }
        calls.wait();
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
