//! What several subjects need: the program and its daemons, and synthetic VMs.

pub mod openmetrics;
pub mod two_hosts;
pub mod vsock;

use std::process::Command;

use vmlane_guestsim::vfio_user::Client as Vmm;
use vmlane_testkit::{Daemon, Ran, run};

pub const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
/// A register of a VMCI device, in BAR 1.
pub const CONTROL: u64 = 0x20004;

/// Runs the program.
pub fn vmlane(words: &[&str]) -> Ran {
    let mut command = Command::new(VMLANE);
    command.args(words);
    run(command)
}

/// A place for daemons, of which none runs yet.
pub fn place(config: &str) -> Daemon {
    Daemon::new(VMLANE, config)
}

/// A daemon that runs.
pub fn daemon(config: &str) -> Daemon {
    let place = place(config);
    place.start();
    place
}

/// A VMM that is attached to a VM's VMCI device.
pub fn vmm(daemon: &Daemon, vm: &str) -> Vmm {
    Vmm::connect(daemon.socket(vm, "vmci.sock")).unwrap()
}
