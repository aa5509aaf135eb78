//! `vmlane doctor`: finds what makes the network between two machines slow or broken.
//!
//! The order of the calls: [`examine()`] reads the [`facts`] of both ends and measures between them, which
//! makes the [`evidence`]; each of the [`checks`] examines that and returns [`finding`]s; a [`report`] shows
//! them, the most important first. The machine at the other end answers [`question`]s through `vmlane bench
//! server --doctor`. docs/guide/slow-network.md explains the checks. Evidence can be a [`capture`], too: then
//! no machine is asked; or what a [`host`] knows of its VMs.
//!
//! An examination changes nothing: remedies are commands as argument vectors, which are shown. Only a
//! [`proof`] changes settings of this machine, for as long as it measures; see there. What comes from the
//! other end is bounded and escaped when it arrives.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod capture;
mod cgroup;
pub mod change;
pub mod checks;
pub mod evidence;
mod examine;
pub mod facts;
pub mod finding;
mod guests;
pub mod host;
mod loopback;
mod prelude;
pub mod proof;
pub mod question;
pub mod remedy;
pub mod report;
mod sys;
#[cfg(test)]
mod testing;
mod text;

pub use examine::{Plan, examine};
pub use guests::join;
pub use proof::{Proven, prove};
pub use question::examiner;
pub use report::Diagnosis;
pub use text::printable_lines;
