//! The built program as laboratories run it: parts of its daemon go wrong on request; guests whose PCI bus is
//! virtio.

use vmlane_api::Method;
use vmlane_api::call::DebugPanic;
use vmlane_guestsim::vfio_user::Client as Vmm;
use vmlane_testkit::Daemon;

mod confinement;
mod faults;
mod pci_over_virtio;
#[path = "../../../../crates/cli/tests/it/common/vsock.rs"]
#[allow(dead_code)] // what only tests of vmlane need
mod vsock;

/// A register of a VMCI device, in BAR 1.
const CONTROL: u64 = 0x20004;

/// A place for daemons, of which none runs yet.
fn place(config: &str) -> Daemon {
    Daemon::new(env!("CARGO_BIN_EXE_vmlane-labdaemon"), config)
}

/// A daemon that runs.
fn daemon(config: &str) -> Daemon {
    let place = place(config);
    place.start();
    place
}

/// Has the daemon carry out a call, or returns why it did not.
fn call<M: Method>(daemon: &Daemon, call: &M) -> Result<(), String> {
    let done = vmlane_api::Client::connect(&daemon.runtime()).and_then(|mut client| client.call(call));
    done.map(drop).map_err(|error| error.to_string())
}

/// A part of a VM's service panics: without `at`, its VMCI device at the next register access.
fn panic(daemon: &Daemon, vm: &str, at: Option<&str>) -> Result<(), String> {
    call(daemon, &DebugPanic { vm: vm.into(), at: at.map(str::to_owned) })
}

/// A VMM that is attached to a VM's VMCI device.
fn vmm(daemon: &Daemon, vm: &str) -> Vmm {
    Vmm::connect(daemon.socket(vm, "vmci.sock")).unwrap()
}
