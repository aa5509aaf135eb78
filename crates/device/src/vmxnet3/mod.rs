//! The VMXNET3 NIC (PCI 15ad:07b0).
//!
//! Two parties share a NIC. The *session* owns the registers: it executes commands, validates what
//! the driver put into shared memory, and makes of it a [`setup::Setup`] that is checked once and
//! for all. The *worker* owns the rings while the NIC is active: [`port`] is the setup as a
//! `FramePort`. Between them lies [`setup::Shared`]: what changes while traffic flows.

pub mod port;
pub mod setup;
pub mod vectors;
