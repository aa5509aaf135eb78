//! What this machine can do without VMs and without vmlane: the numbers ours are put beside.
//!
//! Each function runs one such benchmark for about `length` and returns its rate, so that `report` can
//! interleave them: on a shared machine only neighbours in time compare. Every rate is "more is better".

mod copy;
mod memory;
mod one_way;
mod place;
mod ring;
mod rows;
mod socket;

pub use copy::{Scatter, copy_frames};
pub use place::Cpus;
pub use rows::register;
pub use socket::PAUSE;
