//! Workers of streams: an honest VM whose streams always have bytes to move, and VMs whose streams do not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_guestsim::endless::{BROKEN, Counts, Endless, RING};
use vmlane_port::{Budget, StreamEnd, StreamId, Streams};
use vmlane_stream::{Settings, Worker, Workers};

use super::{Attack, Neighbours, POLL, TURN};

/// What an owner may cause in a round, in bytes copied.
const QUOTA: usize = 1 << 20;

const fn row(name: &'static str, make: fn() -> Box<dyn Neighbours>) -> Attack {
    Attack { name, vms: 1, quota: QUOTA, alone, make }
}

/// Every attack on a worker of streams.
pub const ATTACKS: &[Attack] = &[
    row("streams: 600 of single bytes", || many(600, 1)),
    row("streams: 300 of all they can", || many(300, RING)),
    row("streams: 800 that are kicked and have nothing", kicked),
    row("streams: made, and broken at once", made_in_vain),
];

/// Does its worst before a round; what it has caused by that.
type Deed = Box<dyn FnMut(&Workers, &Owner) -> usize>;

/// Who is charged, and what its streams have sent.
struct Owner {
    budget: Arc<Budget>,
    counts: Counts,
}

/// An honest VM and an attack on one worker.
struct World {
    workers: Workers,
    worker: Worker,
    honest: Owner,
    attacker: Owner,
    deed: Deed,
    /// What the deeds have caused.
    caused: u64,
}

fn alone() -> Box<dyn Neighbours> {
    World::with(|_, _| Box::new(|_, _| 0))
}

impl World {
    fn with(attack: impl FnOnce(&Workers, &Owner) -> Deed) -> Box<dyn Neighbours> {
        let (workers, mut worker) =
            Workers::unstarted(Settings { poll: true, ..Settings::default() }).expect("an event fd");
        let (honest, attacker) = (Owner::new(), Owner::new());
        for _ in 0..16 {
            honest.open(&workers, RING);
        }
        let deed = attack(&workers, &attacker);
        Box::new(World { worker: worker.remove(0), workers, honest, attacker, deed, caused: 0 })
    }
}

impl Neighbours for World {
    fn act(&mut self) {
        self.caused += (self.deed)(&self.workers, &self.attacker) as u64;
    }

    fn turn(&mut self) {
        assert!(self.worker.step());
    }

    fn honest(&self) -> u64 {
        self.honest.counts.sent.load(Ordering::Relaxed)
    }

    fn caused(&self) -> u64 {
        let Counts { sent, turns, polls } = &self.attacker.counts;
        let [sent, turns, polls] = [sent, turns, polls].map(|count| count.load(Ordering::Relaxed));
        self.caused + sent + turns * TURN as u64 + polls.saturating_sub(turns) * POLL as u64
    }
}

impl Owner {
    fn new() -> Owner {
        Owner { budget: Arc::new(Budget::new(0)), counts: Counts::default() }
    }

    /// A stream to another owner, which sends nothing; this one has `chunk` bytes at a time.
    fn open(&self, workers: &Workers, chunk: usize) -> StreamId {
        let far = Owner::new();
        let end = |owner: &Owner, chunk| StreamEnd {
            port: Box::new(Endless::new(chunk, owner.counts.clone())),
            budget: owner.budget.clone(),
            slow: false,
            worker: None,
        };
        workers.join([end(self, chunk), end(&far, 0)])
    }
}

fn many(count: usize, chunk: usize) -> Box<dyn Neighbours> {
    World::with(|workers, attacker| {
        for _ in 0..count {
            attacker.open(workers, chunk);
        }
        Box::new(|_, _| 0)
    })
}

fn kicked() -> Box<dyn Neighbours> {
    World::with(|workers, attacker| {
        let streams: Vec<_> = (0..800).map(|_| attacker.open(workers, 0)).collect();
        Box::new(move |workers, _| {
            streams.iter().for_each(|&stream| workers.kick(stream));
            0
        })
    })
}

/// Streams whose rings make no sense, so that each ends in its first turn.
fn made_in_vain() -> Box<dyn Neighbours> {
    World::with(|_, _| {
        Box::new(move |workers, attacker| {
            for _ in 0..64 {
                attacker.open(workers, BROKEN);
            }
            64 * 2 * TURN
        })
    })
}
