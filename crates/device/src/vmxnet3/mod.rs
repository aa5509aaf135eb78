//! The VMXNET3 NIC (PCI 15ad:07b0).
//!
//! | file | what |
//! | --- | --- |
//! | `device.rs`, `pci.rs` | the PCI function: regions, registers; configuration space |
//! | `nic.rs` | the NIC: its state, resets, what ends an activation |
//! | `command.rs` | its commands, each done when its write returns |
//! | `vectors.rs` | interrupt masks and who may fire |
//! | `doorbell.rs` | what wakes the worker, where a driver's doorbells are trapped |
//! | `checkpoint.rs` | what the next daemon needs, and how it continues |
//! | `out_of_service.rs` | a NIC that the operator has taken out of service |
//! | `activate.rs` | the shared area checked once and for all |
//! | `driver_config.rs`, `rss.rs` | filters, features, scaling, moderation as the driver last set them |
//! | `profile.rs` | which NIC the guest is given |
//! | `handle.rs`, `stats.rs` | the operator's view: link, counters |
//! | `setup.rs` | what session and worker share |
//! | `port` | the data path |
//!
//! Two threads share a NIC. The *session* owns the registers: it executes commands, validates what
//! the driver put into shared memory, and makes of it a [`setup::Setup`] that is checked once and
//! for all. The *worker* owns the rings while the NIC is active: [`port`] is the setup as a
//! `FramePort`. Between them lies [`setup::Shared`]: what changes while traffic flows.
//!
//! A NIC is *down* until its driver latches an address of a shared area, *ready* then, and *active*
//! between ACTIVATE and whatever ends it: QUIESCE, RESET, a new choice of revision or area, a
//! function reset, bus mastering switched off, memory taken away, the end of the session.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod activate;
mod checkpoint;
mod command;
mod config;
mod device;
mod doorbell;
mod driver_config;
mod handle;
mod nic;
mod out_of_service;
mod pci;
pub mod port;
mod profile;
mod rss;
pub mod setup;
mod stats;
pub mod vectors;

pub use activate::{RefusedActivation, RingName};
pub use config::{CreateError, MAX_QUEUES, NicConfig};
pub use device::Vmxnet3Device;
pub use doorbell::Doorbell;
pub use handle::{NicHandle, NicView};
pub use profile::{Profile, UnknownProfile};
pub use stats::NicStats;
