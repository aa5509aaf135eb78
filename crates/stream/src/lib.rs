//! Joins stream ports: moves what fits, once, from one end's memory to the other's.
//!
//! A *direction* is one hop in, one hop out: a conforming reader of one end's ring and a conforming
//! writer of the other's. A *lane* is two of them between the same two ends, plus how it closes.
//! A *worker* owns lanes whole and runs them to completion on one thread, so no lock is ever held
//! across a copy. Why notifications are made here and never forwarded: `docs/devices/vmci.md`.

mod direction;
mod inline;
mod joined;
mod payers;
mod queue;
mod worker;

pub use direction::{Blame, Direction, Left, Sleep};
pub use inline::Inline;
pub use worker::{Settings, Worker, WorkerStats, Workers};
