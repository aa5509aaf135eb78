//! Joins stream ports: moves what fits, once, from one end's memory to the other's.
//!
//! A *direction* is one hop in, one hop out: a conforming reader of one end's ring and a conforming
//! writer of the other's. A *stream* is two of them between the same two ends, plus how it closes.
//! A *worker* owns streams whole and runs them to completion on one thread, so no lock is ever held
//! across a copy. Why notifications are made here and never forwarded: `docs/devices/vmci.md`.
//!
//! A device asks [`Workers`] (as [`vmlane_port::Streams`]) to join two ends; from then on the worker turns
//! the stream. [`Streams::kick`](vmlane_port::Streams::kick) announces a change of a ring,
//! [`Streams::leave`](vmlane_port::Streams::leave) takes an end out.
//!
//! | file | what |
//! | --- | --- |
//! | `workers.rs` | the workers as devices see them |
//! | `settings.rs`, `stats.rs` | how they behave, what they count |
//! | `requests.rs` | what other threads ask of one |
//! | `engine.rs` | its streams: turns, sleep, the safety net; run by `vmlane_worker` |
//! | `bells.rs` | the doorbells of host programs: files by which they announce something |
//! | `joined.rs` | one stream: two ends, two directions |
//! | `direction.rs` | one direction: the copy, and when it may sleep |
//! | `inline.rs` | the same without threads, for tests |

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod direction;
mod doorbells;
mod engine;
mod inline;
mod joined;
mod requests;
mod settings;
mod stats;
mod workers;

pub use direction::{Direction, Faulty, Left, Sleep};
pub use engine::StreamEngine;
pub use inline::Inline;
pub use settings::Settings;
pub use stats::WorkerStats;
pub use workers::{Worker, Workers};
