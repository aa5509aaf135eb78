//! The virtual switch: joins frame ports.
//!
//! | file | what |
//! | --- | --- |
//! | `switch.rs`, `switch/ports.rs`, `switch/links.rs` | ports to manage, ends to attach; as they come and go; their links, wires and carriers: for other threads |
//! | `queue.rs`, `worker.rs` | what they ask; the thread that does it and when it sleeps |
//! | `core.rs`, `table.rs`, `ports.rs`, `port.rs`, `port_state.rs` | what a worker owns: each stage's state; what all stages share; ports, groups, owners; one port, and what others see of it |
//! | `round.rs`, `flight.rs`, `batch.rs` | the round, which alone knows all stages; a frame on its way; frames that need no stage |
//! | `price.rs`, `allowances.rs` | what work costs; what each owner may still send in a round |
//! | `ingress.rs`, `access.rs`, `rate_limit.rs` | stage 1: what a frame is, and whether and how often it may be sent |
//! | `fdb.rs` | stage 2: where it goes |
//! | `carrier.rs` | whether the other end of a direct port is up |
//! | `multicast.rs`, `multicast/` | which ports asked for which groups; queries of the switch's own |
//! | `fan.rs` | the receivers of a frame to several |
//! | `coalesce.rs`, `coalesce/flow.rs`, `coalesce/history.rs` | in front of stage 3: segments of a burst merged to super-frames; one of these; whether that is worth while |
//! | `egress.rs`, `segment.rs`, `deliver.rs` | stage 3: into its receiver's port, whole or in segments, checksums; what was merged |
//! | `team.rs`, `team/` | uplinks that serve as one: which of them a frame leaves through, and which one it may come from |
//! | `announce.rs`, `announce/` | the network behind uplinks is notified of where addresses are |
//! | `pending.rs`, `pending/queue.rs`, `retry.rs` | stage 4, where the receiver has no buffers: frames that wait for them, served by their owners' shares |
//! | `handover.rs`, `handover/` | frames from a port of one worker to a port of another |
//! | `moving.rs`, `moving/ask.rs` | a port goes to another worker |
//! | `balance.rs` | which ones, and when |
//! | `shaping.rs`, `shaping/` | ports that are shaped: token buckets, what waits for tokens |
//! | `impair.rs`, `impair/` | wires on which frames are late, lost or changed: what happens to each, what is on its way |
//! | `mirror.rs`, `mirror/` | mirrors: copies of what passes some ports go to another one |
//! | `parse.rs`, `spec.rs`, `stats.rs` | layers of a frame; how ports are configured; counters |
//!
//! Each port belongs to one worker, which alone touches its rings; the receiver's worker copies. No lock is
//! ever held across a copy, and no VM waits for another's lock. Frames stay in their sender's memory until
//! each receiver has its copy. A frame passes each stage at most once; frames move between the stages and
//! over the ports in bursts.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod access;
mod allowances;
mod announce;
mod balance;
mod batch;
mod carrier;
mod coalesce;
mod core;
mod deliver;
mod egress;
mod fan;
mod fdb;
mod flight;
mod handover;
mod impair;
mod ingress;
mod mirror;
mod moving;
mod multicast;
mod numbers;
mod parse;
mod pending;
mod polled;
mod port;
mod port_state;
mod ports;
mod price;
mod queue;
mod rate_limit;
mod retry;
mod round;
mod segment;
mod shaping;
mod spec;
mod stats;
mod switch;
mod table;
mod team;
mod turns;
mod worker;

/// The place of a port in the worker's table.
type Slot = u16;

/// The place of number `at` in a table, which is made long enough for it.
#[inline]
fn place_of<T: Default>(table: &mut Vec<T>, at: u16) -> &mut T {
    let at = usize::from(at);
    if table.len() <= at {
        table.resize_with(at + 1, T::default);
    }
    #[expect(clippy::indexing_slicing, reason = "made long enough just above")]
    &mut table[at]
}

/// What the switch does to a frame's first bytes, by itself.
#[doc(hidden)]
pub mod heads {
    pub use crate::ingress::{Frame, Job, MAX_SEGMENTS, Segmentation, job};
    pub use crate::parse::{inner, layers, payload};
    pub use crate::segment::{Cutter, complete};
}

pub use balance::{Balancer, Relief};
pub use handover::MOST_WORKERS;
pub use impair::Impairment;
pub use mirror::{MirrorDirection, MirrorSpec, MirrorView};
#[doc(hidden)]
pub use moving::Move;
pub use numbers::{MOST_PORTS, SwitchFull};
pub use spec::{LearnedAddress, Policy, PortSpec, PortView, Rate, Settings, Shape, Traffic, VlanMode};
pub use stats::WorkerStats;
pub use switch::Switch;
pub use team::{MOST_MEMBERS, MemberState, TeamMember, TeamPolicy, TeamSpec, TeamStats, TeamView};
pub use worker::Worker;
