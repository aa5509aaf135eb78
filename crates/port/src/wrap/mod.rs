//! Ports that wrap ports: what they add is no part of switching or of a device.

mod faulty_frames;
mod trigger;

pub use faulty_frames::FaultyFrames;
pub use trigger::{Fault, Trigger};
