//! The workers as devices see them: streams are joined, kicked, shut down and left.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use vmlane_port::role::Role;
use vmlane_port::wrap::StreamTap;
use vmlane_port::{Resumed, Shutdown, Side, StreamEnd, StreamId, Streams};
use vmlane_worker::{Calls, CpuSet, Heartbeat, Parking, Ride, Riding, RoundRobin};

use crate::engine::StreamEngine;
use crate::requests::{Command, Requests, Signals};
use crate::settings::Settings;
use crate::stats::WorkerStats;

/// Of a stream that was not joined.
const NOWHERE: StreamId = StreamId { worker: 0, number: u64::MAX };

/// A worker of streams: a thread of [`Workers`], or turned by its owner.
pub type Worker = vmlane_worker::Worker<StreamEngine>;

/// The worker threads; dropping it stops them.
pub struct Workers {
    /// Those with threads of their own, then those that ride.
    requests: Vec<Arc<Requests>>,
    heartbeats: Vec<Arc<Heartbeat>>,
    settings: Settings,
    /// Held while they are changed; workers never take it.
    taps: Mutex<Vec<Arc<dyn StreamTap>>>,
    /// Among those with threads.
    placement: RoundRobin,
    threads: Vec<JoinHandle<()>>,
    stats: Arc<WorkerStats>,
}

impl Workers {
    /// Starts the threads.
    pub fn start(settings: Settings) -> std::io::Result<Workers> {
        Workers::start_on(settings, &[])
    }

    /// The same, each on the CPUs `on`, by its number; one that is not in the list runs where the caller may.
    pub fn start_on(settings: Settings, on: &[CpuSet]) -> std::io::Result<Workers> {
        let (mut workers, unstarted) = Workers::unstarted(settings)?;
        for (number, worker) in unstarted.into_iter().enumerate() {
            workers.threads.push(worker.spawn(format!("worker-{number}"), on.get(number))?);
        }
        Ok(workers)
    }

    /// The workers without threads: nothing moves unless the caller calls [`Worker::step`]. For
    /// benchmarks of the engine alone.
    pub fn unstarted(settings: Settings) -> std::io::Result<(Workers, Vec<Worker>)> {
        let count = settings.workers.max(1);
        let mut workers = Workers {
            requests: Vec::new(),
            heartbeats: Vec::new(),
            settings,
            taps: Mutex::default(),
            placement: RoundRobin::new(usize::from(count)),
            threads: Vec::new(),
            stats: Arc::default(),
        };
        let Settings { spin, poll, .. } = settings;
        let runtime = vmlane_worker::Settings { role: Role::Worker, spin, poll };
        let mut unstarted = Vec::new();
        for _ in 0..count {
            let (engine, requests, heartbeat) = workers.engine()?;
            unstarted.push(Worker::new(engine, requests, heartbeat, runtime));
        }
        Ok((workers, unstarted))
    }

    /// One more, for the thread of another engine, whose ports are ends of its streams
    /// ([`StreamEnd::worker`]). Before any stream is joined.
    pub fn ride(&mut self) -> std::io::Result<Ride> {
        let number = self.requests.len() as u16;
        let (engine, requests, heartbeat) = self.engine()?;
        let parking = requests.parking().clone();
        Ok(Ride { number, parking, heartbeat, engine: Box::new(Riding::new(engine, requests)) })
    }

    fn engine(&mut self) -> std::io::Result<(StreamEngine, Arc<Requests>, Arc<Heartbeat>)> {
        let (requests, heartbeat) = (Arc::new(Requests::new(Parking::new()?)), Arc::<Heartbeat>::default());
        self.requests.push(requests.clone());
        self.heartbeats.push(heartbeat.clone());
        let engine =
            StreamEngine::new(requests.clone(), self.settings, self.stats.clone(), heartbeat.clone());
        Ok((engine, requests, heartbeat))
    }

    pub fn stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }

    /// The heartbeat of each worker with a thread of its own; it serves streams.
    pub fn heartbeats(&self) -> &[Arc<Heartbeat>] {
        self.heartbeats.get(..self.placement.count()).unwrap_or_default()
    }

    /// Has `tap` examine the bytes of all streams, until [`Self::remove_tap`]: it decides itself which
    /// concern it. Streams go on meanwhile; their ends are wrapped.
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
            // Refused by a worker that has stopped: it reads no commands any more.
            let _ = requests.call(|_| Some(Command::Tap { taps: taps.to_vec(), answer: calls.answer() }));
        }
        calls.wait();
    }

    fn of(&self, stream: StreamId) -> Option<&Requests> {
        self.requests.get(usize::from(stream.worker)).map(|requests| &**requests)
    }

    /// A new stream on `worker`, or else on the one whose turn it is.
    fn place(&self, worker: Option<u16>, command: impl FnOnce(usize) -> Command) -> StreamId {
        let worker = worker.map_or_else(|| self.placement.pick(), usize::from);
        let Some(requests) = self.requests.get(worker) else { return NOWHERE };
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
        let workers = ends.each_ref().map(|end| end.worker);
        if let [Some(a), Some(b)] = workers
            && a != b
        {
            tracing::warn!("a connection is reset: its VMs are served by different workers");
            for (worker, end) in [a, b].into_iter().zip(ends) {
                if let Some(requests) = self.requests.get(usize::from(worker)) {
                    requests.post(|_| (Some(Command::TurnAway { end }), ()));
                }
            }
            return NOWHERE;
        }
        self.place(workers.into_iter().flatten().next(), |slot| Command::Join { slot, ends })
    }

    fn resume(&self, stream: Resumed) -> StreamId {
        let worker = stream.ends.iter().flatten().find_map(|end| end.worker);
        self.place(worker, |slot| Command::Resume { slot, stream: Box::new(stream) })
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
            let heartbeat = self.heartbeats.get(usize::from(stream.worker));
            if heartbeat.is_some_and(Heartbeat::is_own_thread) {
                requests.post(|slots| {
                    let slot = slots.of(stream.number);
                    (slot.map(|slot| Command::Leave { slot, side, answer: None }), ())
                });
                continue;
            }
            // Refused by a worker that has stopped: it touches nothing any more.
            let _ = requests.call(|slots| {
                let slot = slots.of(stream.number)?;
                Some(Command::Leave { slot, side, answer: Some(calls.answer()) })
            });
        }
        calls.wait();
    }
}
