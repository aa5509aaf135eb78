//! Ports of the switch that lead out of the host.

mod tap;

pub use tap::{Tap, TapError, TapFiles, TapOptions, is_gone, mtu};
