//! Ports of the switch that lead out of the host.

mod flow;
mod tap;
pub mod vhost_user;

pub use tap::{Tap, TapError, TapFiles, TapOptions, is_gone, mtu};
