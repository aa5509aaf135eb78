//! Where a program that is built of the daemon may add what the installed one has not. `vmlane-labdaemon`
//! does (docs/decisions/0029-labdaemon.md). Nothing here is called while bytes move.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use vmlane_api::{Done, Failure};
use vmlane_config::Config;
use vmlane_device::irq::Interrupts;
use vmlane_device::pci::PciDevice;
use vmlane_device::virtio::vsock::Home;
use vmlane_port::wrap::Fault;
use vmlane_port::{Budget, Frames, Streams};
use vmlane_transport::{Server, SessionStats, VhostEnd};

/// What may be added. By default, nothing is.
#[derive(Clone, Default)]
pub struct Extras {
    /// For a configuration with `fault_injection`.
    pub faults: Option<Arc<dyn Faults>>,
    /// For VMs with `uml_pci`.
    pub bus: Option<Arc<dyn PciBus>>,
}

/// Takes the place of parts of the daemon, so that they go wrong on request.
pub trait Faults: Send + Sync {
    /// What joins streams.
    fn streams(&self, workers: Arc<dyn Streams>) -> Arc<dyn Streams>;
    /// What the NIC called `name` is attached to.
    fn frames(&self, name: &str, switch: Arc<dyn Frames>) -> Arc<dyn Frames>;
    /// A PCI function called `name`.
    fn function(&self, name: &str, function: Box<dyn PciDevice>) -> Box<dyn PciDevice>;
    /// The part `at` of what serves a VM goes wrong.
    fn provoke(&self, vm: &Target<'_>, at: &str, what: Provoked) -> Result<Done, Failure>;
}

/// What is to go wrong.
#[derive(Clone, Copy, Debug)]
pub enum Provoked {
    Fault(Fault),
    Impairment(Impairment),
}

/// What is to happen to frames on their way to a NIC. The default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Of 1000 frames, how many are lost.
    pub loss: u16,
    /// Of 1000 frames, how many are overtaken by later ones.
    pub reorder: u16,
    /// How long every frame takes.
    pub delay: Duration,
    /// Frames with more bytes are lost; 0: none.
    pub longest: u32,
    /// The same frames with the same seed are lost and overtaken again.
    pub seed: u64,
}

/// A VM that is served.
pub struct Target<'v> {
    pub name: &'v str,
    /// Whose its streams are, if it has a VMCI device.
    pub streams: Option<Arc<Budget>>,
    /// The worker of its virtio-vsock device, and its CID.
    pub virtio: Option<(&'v Home, u32)>,
}

/// Another way to a guest's PCI functions than vfio-user.
pub trait PciBus: Send + Sync {
    fn attach(&self, stats: Arc<SessionStats>) -> io::Result<Box<dyn Attached>>;
}

/// A place on that bus, for one function.
pub trait Attached: Send {
    /// Where the function is to raise its interrupts.
    fn interrupts(&self) -> Arc<dyn Interrupts>;
    /// Serves it at a vhost-user socket. Nothing of it is held for the next daemon.
    fn serve(self: Box<Self>, name: &str, function: Box<dyn PciDevice>, end: VhostEnd) -> io::Result<Server>;
}

/// Where what is missing can be had.
pub const PROGRAM: &str = "this program has none; start vmlane-labdaemon in its place (of vmlane's sources: `cargo build --release \
                           -p vmlane-labdaemon`), or remove the key";

impl Extras {
    /// What `config` asks for and is not there.
    pub fn missing(&self, config: &Config) -> Option<String> {
        if config.daemon.fault_injection && self.faults.is_none() {
            return Some(format!("daemon: fault_injection = true: faults on request: {PROGRAM}"));
        }
        let vm = config.vms.iter().find(|vm| vm.uml_pci && self.bus.is_none())?;
        Some(format!("vm {:?}: uml_pci = true: a PCI bus of User Mode Linux: {PROGRAM}", vm.name))
    }
}
