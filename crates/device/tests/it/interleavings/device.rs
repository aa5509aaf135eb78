//! The device as a table of states, drawn from the real engine while the model is explored.
//!
//! A state is either between two calls of the engine, or in a call before one access to something
//! shared. Each is worked out once, by running the engine, and then looked up by number.
//!
//! Calls with different pasts are one state if they have come equally far ([`Key`]) and everything
//! visible is equal; many thousand pasts make a few hundred states. That nothing invisible tells them
//! apart is not believed but checked: every past of a state is taken through every result that the
//! state was taken through, and must come to the same state.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use vmlane_port::byte_ring::{Reading, Writing};
use vmlane_port::queue_pair::QueuePairPort;
use vmlane_stream::{Direction, Faulty};

use super::broken::{Make, ModelEnd};
use super::memory::{Access, ModelMemory, Suspended};

/// What the worker calls on a stream that is awake, in any order: how long it spins is a matter of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Turn,
    TrySleep,
    Renotify,
}

impl Call {
    pub const ALL: [Call; 3] = [Call::Turn, Call::TrySleep, Call::Renotify];
}

/// Where the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Between calls; only a notice from a guest sets it going.
    Asleep,
    /// Between calls.
    Awake,
    /// In a call, before this access.
    Before(Access),
    /// The stream is ended: index of the reason.
    Broken(usize),
}

/// What the engine keeps between calls.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Engine {
    direction: Direction,
    reading: Reading,
    writing: Writing,
    awake: bool,
}

/// A call in progress: the engine it began with (by number), and the results of its accesses so far.
type Past = (u32, Call, Vec<u8>);

/// What calls in progress have in common that are one state.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    call: Call,
    /// The accesses so far and the next one: this is how far the call has come.
    path: Vec<Access>,
    access: Access,
    copied: u8,
    now: Engine,
    /// The engine compares the head it publishes with the one before.
    published_before: u64,
    /// Broken engines remember more, and are small enough without sharing states.
    apart: Option<Past>,
}

struct Node {
    at: At,
    copied: u8,
    /// Between calls: the engine, by number.
    engine: u32,
    /// In a call: all that led here.
    pasts: Vec<Past>,
    next: [u32; 8],
}

enum Outcome {
    Suspended(Access, Engine),
    Finished(Engine),
    Failed(String),
}

const UNKNOWN: u32 = u32::MAX;
/// Position in `Node::next` of the state that a notice leads to. Results are smaller.
const KICKED: usize = 7;

pub struct Device {
    pub make: Make,
    memory: ModelMemory,
    engines: Vec<Engine>,
    resting: HashMap<Engine, u32>,
    nodes: Vec<Node>,
    calls: HashMap<Key, u32>,
    pasts: HashMap<Past, u32>,
    reasons: Vec<String>,
}

impl Device {
    /// A device whose state 0 is a stream just joined: awake, all indices zero.
    pub fn new(make: Make) -> Device {
        let memory = ModelMemory::new(make.protocol);
        let size = make.size.into();
        let port = |produce, consume| QueuePairPort::new(memory.clone(), produce, consume);
        let engine = Engine {
            direction: Direction::default(),
            reading: port(size, 0).reading,
            writing: port(0, size).writing,
            awake: true,
        };
        let mut device = Device {
            make,
            memory,
            engines: Vec::new(),
            resting: HashMap::new(),
            nodes: Vec::new(),
            calls: HashMap::new(),
            pasts: HashMap::new(),
            reasons: Vec::new(),
        };
        device.resting(engine);
        device
    }

    pub fn at(&self, state: u32) -> At {
        self.nodes[state as usize].at
    }

    /// Bytes copied to B's ring up to this state.
    pub fn copied(&self, state: u32) -> u8 {
        self.nodes[state as usize].copied
    }

    pub fn reason(&self, index: usize) -> &str {
        &self.reasons[index]
    }

    /// The next access had this result.
    pub fn step(&mut self, state: u32, result: u8) -> u32 {
        self.follow(state, result.into(), |device| {
            let pasts = device.nodes[state as usize].pasts.clone();
            let next = device.after(&pasts[0], result);
            for past in &pasts[1..] {
                assert_eq!(device.after(past, result), next, "{DIFFER}: {past:?} and {:?}", pasts[0]);
            }
            next
        })
    }

    /// The worker makes a call on an engine that is awake.
    pub fn begin(&mut self, state: u32, call: Call) -> u32 {
        self.follow(state, call as usize, |device| {
            let engine = device.nodes[state as usize].engine;
            device.past((engine, call, Vec::new()))
        })
    }

    /// A notice from a guest was taken from the worker's in-tray. As in the worker, the engine itself
    /// is not notified: it is called again.
    pub fn kick(&mut self, state: u32) -> u32 {
        self.follow(state, KICKED, |device| {
            let engine = device.nodes[state as usize].engine;
            device.resting(Engine { awake: true, ..device.engines[engine as usize].clone() })
        })
    }

    fn follow(&mut self, state: u32, way: usize, find: impl FnOnce(&mut Self) -> u32) -> u32 {
        let known = self.nodes[state as usize].next[way];
        if known != UNKNOWN {
            return known;
        }
        let found = find(self);
        self.nodes[state as usize].next[way] = found;
        found
    }

    /// The state between calls with this engine.
    fn resting(&mut self, engine: Engine) -> u32 {
        if let Some(&state) = self.resting.get(&engine) {
            return state;
        }
        let number = self.engines.len() as u32;
        self.engines.push(engine.clone());
        let at = if engine.awake { At::Awake } else { At::Asleep };
        let state = self.node(at, engine.direction.moved() as u8, number);
        self.resting.insert(engine, state);
        state
    }

    fn node(&mut self, at: At, copied: u8, engine: u32) -> u32 {
        self.nodes.push(Node { at, copied, engine, pasts: Vec::new(), next: [UNKNOWN; 8] });
        self.nodes.len() as u32 - 1
    }

    fn broken(&mut self, why: String) -> u32 {
        self.reasons.push(why);
        self.node(At::Broken(self.reasons.len() - 1), 0, 0)
    }

    fn after(&mut self, past: &Past, result: u8) -> u32 {
        let mut past = past.clone();
        past.2.push(result);
        self.past(past)
    }

    /// The state that this past leads to.
    fn past(&mut self, past: Past) -> u32 {
        if let Some(&state) = self.pasts.get(&past) {
            return state;
        }
        let engine = self.engines[past.0 as usize].clone();
        let (before, published_before) = (engine.direction.moved() as u8, engine.reading.published);
        let outcome = self.run(engine, past.1, &past.2);
        let state = match (outcome, self.check_copy(before)) {
            (Outcome::Failed(why), _) | (_, Err(why)) => self.broken(why),
            (Outcome::Finished(engine), Ok(copied)) if engine.direction.moved() != u64::from(copied) => {
                self.broken("moved() is not what was copied".into())
            }
            (Outcome::Finished(engine), Ok(_)) => self.resting(engine),
            (Outcome::Suspended(access, now), Ok(copied)) => {
                let (call, path) = (past.1, self.memory.path());
                let broken = self.make.breaks.is_some() || self.memory.reordered();
                let apart = broken.then(|| past.clone());
                self.in_call(&past, Key { call, path, access, copied, now, published_before, apart })
            }
        };
        self.pasts.insert(past, state);
        state
    }

    /// The state in a call that this past belongs to.
    fn in_call(&mut self, past: &Past, key: Key) -> u32 {
        let state = match self.calls.get(&key) {
            Some(&state) => state,
            None => {
                let state = self.node(At::Before(key.access), key.copied, UNKNOWN);
                self.calls.insert(key, state);
                state
            }
        };
        self.nodes[state as usize].pasts.push(past.clone());
        for result in 0..KICKED as u8 {
            let next = self.nodes[state as usize].next[usize::from(result)];
            assert!(next == UNKNOWN || self.after(past, result) == next, "{DIFFER}: {past:?}, then {result}");
        }
        state
    }

    /// Runs one call of the real engine up to the first access without a result.
    fn run(&mut self, engine: Engine, call: Call, results: &[u8]) -> Outcome {
        let Engine { mut direction, reading, writing, .. } = engine;
        let Make { size, quota, breaks, .. } = self.make;
        self.memory.rewind(results, size);
        let mut from = QueuePairPort::new(self.memory.clone(), size.into(), 0);
        from.reading = reading;
        let mut to = QueuePairPort::new(self.memory.clone(), 0, size.into());
        to.writing = writing;
        let (mut from, mut to) = (ModelEnd::new(from, breaks), ModelEnd::new(to, breaks));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let ends = (Some(from.as_port()), Some(to.as_port()));
            let awake = match call {
                Call::Turn => direction.turn(ends, quota).map(|_| true),
                Call::TrySleep => direction.try_sleep(ends, quota).map(|asleep| !asleep),
                Call::Renotify => to.as_port().renotify_reader().map(|()| true).map_err(Faulty::Sink),
            };
            self.memory.drain();
            awake
        }));
        let reading = from.port.reading.with_last_heads();
        let writing = to.port.writing.with_last_tails();
        let now = |awake| Engine { direction, reading, writing, awake };
        match ended {
            Ok(Ok(awake)) => Outcome::Finished(now(awake)),
            Ok(Err(faulty)) => Outcome::Failed(format!("{call:?} failed: {faulty:?}")),
            Err(payload) if payload.is::<Suspended>() => Outcome::Suspended(self.memory.wanted(), now(true)),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Both rings are of one size, so byte number n lies at offset n mod size in both. Returns how
    /// many bytes are copied, the first `before` of them by earlier calls.
    fn check_copy(&self, before: u8) -> Result<u8, String> {
        let size = self.make.size;
        let marks = self.memory.copied(size);
        let len = marks.iter().filter(|&&mark| mark != 0).count() as u8;
        let right = (before..before + len).map(|byte| byte % size).all(|at| marks[usize::from(at)] == at + 1);
        if right { Ok(before + len) } else { Err(format!("bytes were copied to wrong places: {marks:?}")) }
    }
}

const DIFFER: &str = "calls with the same key continue differently: the key of a state lacks something";
