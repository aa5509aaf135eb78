//! Ports of the switch that lead out of the host.

mod flow;
mod link;
mod link_events;
mod rtnetlink;
mod tap;
pub mod vhost_user;
pub mod xdp;

pub use link_events::{LinkEvent, LinkEvents, LinkState};
pub use tap::{Tap, TapError, TapFiles, TapOptions, is_gone, is_up, mtu, set_up};
