//! A netperf that also speaks vsock: a server that serves many clients, and one client call per test.
//!
//! `server` owns everything that answers; `client::run` owns one measurement and returns a
//! `report::Report`. Both ends run the same loops (`load`) over the same sockets (`transport`) and
//! agree on what to do over a control connection (`control`) of the same family as the data, so a
//! vsock test needs no network card. Nothing here knows a device or the daemon.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod address;
mod auth;
pub mod barrier;
pub mod client;
pub mod confidence;
#[doc(hidden)]
pub mod control;
pub mod cpu;
mod datagrams;
pub mod error;
mod load;
mod meter;
mod outcome;
mod progress;
pub mod report;
pub mod server;
mod session_group;
pub mod size;
pub mod spec;
mod sys;
pub mod table;
mod transport;

pub use address::{Address, IpVersion, Target};
pub use auth::Secret;
pub use client::{Hooks, Options, Questions, Reply, ask, run};
pub use error::Error;
pub use progress::Progress;
pub use report::Report;
pub use server::Server;
pub use spec::{Spec, Test};
