//! What the tests of `promises/` share: labs of guests, programs in them, and what must hold at the end of
//! every test.
//!
//! The programs that run in guests know nothing of vmlane: socat, and the Python scripts of `programs/`.
//! Tests that can share a lab do ([`topology`], [`harness`]), because a boot takes longer than most of what
//! is tested.

pub mod alone;
mod bed;
mod carry;
pub mod harness;
mod load;
pub mod moving;
pub mod netns;
mod programs;
pub mod readme;
pub mod siblings;
mod state;
pub mod topology;
pub mod traffic;
pub mod tree;

pub use bed::{Bed, Configured, lab, spec};
pub use carry::{Carrier, Mode, PATIENT, Route, carry, flagged};
pub use load::Load;
pub use programs::{
    Service, begin, begin_tcp, give, give_tcp, json, moves, passes, python, python_on_host, reload_driver,
    reload_virtio_vsock, serve, take, take_tcp, trickle, whole,
};

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use vmlane_testkit::{Process, eventually, wait_until};

/// How long a step may take on a machine that emulates its guests and has other work.
pub const TIMEOUT: Duration = vmlane_testkit::LONGEST;

/// Whether the long form was requested: `VMLANE_TESTS=full`, as `make acceptance` does.
pub fn full() -> bool {
    std::env::var_os("VMLANE_TESTS").is_some_and(|v| v == "full")
}

/// Lets this process, and what it starts, have as many files open as it may.
pub fn open_many_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// A line for the acceptance report. `promise` is the short name of a row of PROMISES.md.
pub fn kept(promise: &str, what: &str) {
    println!("promise {promise} kept: {what}");
}

/// The middle one of several measurements.
pub fn median(values: Vec<f64>) -> f64 {
    vmlane_experiment::summary::Spread::of(values).expect("there is one").median
}
