//! The daemon: serves the devices of each VM of the configuration, answers the control socket.
//!
//! | file | what |
//! | --- | --- |
//! | `run.rs` | the process: options, signals, a clean end |
//! | `assembly.rs` | the daemon, built of its parts; the answers to control requests |
//! | `host.rs` | a part: workers, the router, the hypervisor, the switch |
//! | `served.rs`, `change.rs`, `differences.rs` | a part: what is served at this moment; how that changes, and what is reported of it |
//! | `containment.rs`, `watchdog.rs`, `faults.rs` | a part: stuck workers, VMs whose devices fail too often |
//! | `views.rs`, `ports.rs`, `wires.rs`, `bounds.rs` | what is shown of all parts |
//! | `counters.rs` | counters that the next daemon continues |
//! | `vm.rs`, `vsock.rs`, `hybrid.rs`, `nic.rs`, `uplink.rs`, `serve.rs` | a served VM, its devices and their sockets; uplinks |
//! | `ovn.rs`, `ovn/` | NICs that are ports of OVN's: requests and reports of its helper |
//! | `mirrors.rs`, `captures.rs` | what is copied from ports: to other ports, to clients |
//! | `cpus.rs` | where the workers run |
//! | `extras.rs` | where other programs than `vmlane` add what that has not |
//! | `periodic.rs` | periodic threads: the watchdog's, and the one that moves NICs to other workers |
//! | `control.rs` | the control socket |
//! | `access.rs`, `grants.rs`, `owners.rs` | who may ask what; who may use which socket; who may own the daemon's directories |
//! | `runtime.rs` | the runtime directory |
//! | `log.rs`, `notify.rs` | stderr, systemd |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "below directories of the tests' own"))]

mod access;
pub mod assembly;
mod bounds;
mod captures;
mod change;
mod containment;
pub mod control;
mod counters;
pub mod cpus;
mod differences;
pub mod extras;
mod faults;
mod grants;
mod host;
mod hybrid;
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
mod served;
pub mod uplink;
mod views;
mod vm;
mod vsock;
mod watchdog;
mod wires;

/// Exit code of a confined daemon that made a system call that it may not make.
pub use vmlane_confine::EXIT_CODE as VIOLATION;
