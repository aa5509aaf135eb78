//! The daemon: reads the configuration, serves each VM's device, answers the control socket.
//!
//! | file | what |
//! | --- | --- |
//! | `config.rs` | the configuration file, checked as a whole |
//! | `run.rs` | the process: options, signals, a clean end |
//! | `assembly.rs`, `vm.rs` | workers, the fabric, a served VM each; the answers to control requests |
//! | `confine/` | user, capabilities, files, system calls |
//! | `plan.rs` | what a reload does |
//! | `care.rs`, `containment.rs`, `watchdog.rs`, `faults.rs` | stuck workers, VMs whose devices fail too often |
//! | `control.rs` | the control socket |
//! | `runtime.rs`, `paths.rs` | the runtime directory |
//! | `log.rs`, `notify.rs` | stderr, systemd |
//! | `keeper/` | who holds descriptors while no daemon runs |
//! | `qemu.rs`, `vmm/` | how VMMs attach |

pub mod assembly;
mod bounds;
mod care;
pub mod config;
pub mod confine;
mod containment;
pub mod control;
mod faults;
pub mod keeper;
pub mod log;
mod nic;
pub mod notify;
pub mod paths;
pub mod plan;
pub mod qemu;
pub mod run;
pub mod runtime;
mod serve;
mod uplink;
mod vm;
pub mod vmm;
mod vsock;
mod watchdog;
