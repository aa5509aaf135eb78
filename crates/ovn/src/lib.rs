//! Ports of OVN's integration bridge: what `vmlane ovn run` does.
//!
//! A NIC with `ovn = "LOGICAL-PORT"` is joined to a TAP interface of its own. This helper makes that
//! interface a port of the bridge and reports to OVN, in Open vSwitch's database, which logical port it is.
//! It is the only process of vmlane's that opens the database. Which interface and which logical port belong
//! to a NIC, it reads in the configuration; the daemon only reports whether the NIC is up
//! ([`vmlane_api::OvnEntry`]).
//!
//! | file | what |
//! | --- | --- |
//! | `framing.rs` | whole messages of a stream |
//! | `database.rs` | a connection to the database: requests, answers, updates |
//! | `rows.rs` | the rows of interest |
//! | `bridge.rs` | what is to be done about a port |
//! | `helper.rs` | the loop: daemon, database, interfaces |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod bridge;
mod database;
mod framing;
mod helper;
mod rows;

/// What reads the database's messages, for tests.
#[doc(hidden)]
pub mod input {
    pub use crate::framing::{Broken, Framing};
    pub use crate::rows::Rows;
}

pub use bridge::Entry;
pub use helper::{Daemon, Helper, Interfaces, Settings, Signals};
