//! One runtime for the threads that move bytes: streams, the switch, virtio-vsock.
//!
//! An [`Engine`] knows ports and what a round over them is. A [`Worker`] runs one engine on one thread: it
//! carries out what other threads ask for, has rounds while something moves, and then waits: it spins,
//! yields, naps or sleeps (`waiting.rs`). Other threads reach it by its [`Requests`].
//!
//! The order of calls on the worker's thread:
//!
//! 1. [`Engine::run_command`] for each command that waits. Its caller is answered in any case: when the
//!    command is done, when it panics, when the thread ends.
//! 2. [`Rounds::round`]: every port is polled that may have work.
//! 3. If nothing moved, [`Rounds::ports`] reports what its ports can do by themselves, and [`Policy::decide`]
//!    how the worker waits.
//! 4. It goes to sleep in this order: it is marked asleep; **[`Rounds::flush_deferred`]: every port
//!    delivers what it deferred** (completions, notices, credit, interrupts); [`Rounds::arm`] asks every port
//!    to announce what comes, and polls it once more; the requests are polled once more; it sleeps.
//! 5. [`Rounds::woken`] is called with what woke it.
//!
//! | file | what |
//! | --- | --- |
//! | `engine.rs` | what an engine does |
//! | `worker.rs` | the loop above |
//! | `riding.rs` | engines on the thread of another one |
//! | `command_queue.rs` | commands of other threads, always answered |
//! | `doorbells.rs` | the files by which guests announce something, as one |
//! | `waiting.rs`, `waiting/` | how it waits: what decides that, and how it sleeps without losing a wake-up |
//! | `contain.rs` | a panic ends what had its turn, not the worker |
//! | `heartbeat.rs` | what a watchdog reads |
//! | `meter.rs` | who caused how much work, and who has to wait |
//! | `placement.rs` | which worker gets what is new |
//! | `sync.rs` | the types that the model checker replaces in unit tests |

#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod command_queue;
mod contain;
mod doorbells;
mod engine;
mod heartbeat;
mod meter;
#[cfg(test)]
mod model;
mod placement;
#[cfg(not(test))]
mod riding;
mod sync;
mod waiting;
#[cfg(not(test))]
mod worker;

pub use rustix::thread::CpuSet;

pub use command_queue::{Answer, Calls, CommandQueue, Refused, Shared};
pub use contain::{FaultStreak, contained};
pub use doorbells::{Doorbell, Doorbells};
pub use engine::{Engine, Event, Rounds, WakeFds, Woken};
pub use heartbeat::{Heartbeat, HeartbeatReading, serving};
pub use meter::{Account, Meter, Work};
pub use placement::RoundRobin;
#[cfg(not(test))]
pub use riding::{Ride, Rider, Riding};
pub use waiting::{Decision, Inputs, Interval, Parking, Policy, Polling, Ports, QUIET, SLEEP, Source, Watch};
#[cfg(not(test))]
pub use worker::{Requests, Settings, Worker};
