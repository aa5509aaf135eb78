//! How a worker waits: how long it spins and naps, how it sleeps, and how it is woken.

mod long_naps;
mod parking;
mod ring_naps;
mod signal;
mod window;

pub use long_naps::LongNaps;
pub use parking::Parking;
pub use ring_naps::Rests;
pub use window::AdaptiveSpin;
