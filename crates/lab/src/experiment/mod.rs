//! Experiments: the runs of a sweep, made in a lab, kept as raw rows; what is shown comes from the rows.
//!
//! | file | holds |
//! | --- | --- |
//! | `plan.rs` | which runs, in which order |
//! | `run.rs` | makes them in a lab that is up |
//! | `rows.rs` | the raw rows and their file |
//! | `host.rs` | what the host is and uses |
//! | `summary.rs` | medians and ratios |
//! | `table.rs` | both as text |
//!
//! [`crate::figure`] and [`crate::report`] draw from the rows alone.

pub mod host;
pub mod plan;
pub mod rows;
pub mod run;
pub mod summary;
pub mod table;

use std::path::Path;

pub use plan::{Case, Step, Sweep};
pub use rows::{Row, Setup, Writer};
pub use run::{News, Runner};
pub use summary::Summary;

use crate::{LabSpec, Status};

/// Two guests with every device of the sweep.
pub fn lab_spec(name: &str, sweep: &Sweep) -> LabSpec {
    LabSpec { devices: sweep.devices.clone(), ..LabSpec::new(name) }
}

/// What every row says of where it was measured. `program` is the vmlane that runs everywhere.
pub fn setup(status: &Status, spec: &LabSpec, sweep: &Sweep, program: &Path) -> Setup {
    Setup {
        date: host::date(),
        cpu_model: host::cpu_model(),
        cpus: host::cpus(),
        memory_bytes: host::memory_bytes(),
        host_kernel: host::kernel(),
        guest_kernel: status.guests.first().and_then(|guest| guest.release.clone()).unwrap_or_default(),
        guest_cpus: spec.cpus,
        guest_memory_mib: spec.mem_mib,
        qemu: status.qemu_version.clone(),
        vmlane: env!("CARGO_PKG_VERSION").to_owned(),
        commit: host::commit(program),
        pinned: "nothing".into(),
        plan: sweep.name.into(),
        seconds: sweep.seconds,
        warmup_seconds: sweep.warmup,
        runs: sweep.runs,
    }
}
