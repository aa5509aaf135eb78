//! The daemon: serves the devices of each VM of the configuration, answers the control socket.
//!
//! | file | what |
//! | --- | --- |
//! | `run.rs` | the process: options, signals, a clean end |
//! | `assembly.rs` | workers, the switch, the VMs; the answers to control requests |
//! | `vm.rs`, `vsock.rs`, `hybrid.rs`, `nic.rs`, `uplink.rs`, `serve.rs` | a served VM, its devices and their sockets; uplinks |
//! | `ovn.rs` | NICs that are ports of OVN's: what its helper says, and is told |
//! | `mirrors.rs`, `captures.rs` | what is copied from ports: to other ports, to clients |
//! | `bounds.rs` | what each VM may use |
//! | `cpus.rs` | where the workers run |
//! | `confine/` | user, capabilities, files, system calls |
//! | `watchdog.rs`, `containment.rs`, `faults.rs` | stuck workers, VMs whose devices fail too often |
//! | `periodic.rs` | threads that look again and again: the watchdog's, and the one that moves NICs to other workers |
//! | `control.rs` | the control socket |
//! | `access.rs`, `grants.rs`, `owners.rs` | who may ask what; who may use which socket; who may own the daemon's directories |
//! | `runtime.rs` | the runtime directory |
//! | `log.rs`, `notify.rs` | stderr, systemd |
//! | `keeper/` | holds descriptors while no daemon runs |
//! | `takeover.rs` | whether this program knows the state that another daemon keeps |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "below directories of the tests' own"))]

mod access;
pub mod assembly;
mod bounds;
mod captures;
pub mod confine;
mod containment;
pub mod control;
pub mod cpus;
mod faults;
mod grants;
mod hybrid;
pub mod keeper;
pub mod log;
mod mirrors;
mod nic;
pub mod notify;
mod ovn;
pub mod owners;
mod periodic;
mod ports;
mod presence;
pub mod run;
pub mod runtime;
mod serve;
pub mod takeover;
pub mod uplink;
mod vm;
mod vsock;
mod watchdog;
