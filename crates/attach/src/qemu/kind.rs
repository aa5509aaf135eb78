//! Which QEMU attaches a VM, and what that one lacks.

use std::fmt;
use std::str::FromStr;

use vmlane_config::paths::TooLong;
use vmlane_config::{FIRST_NICS, NicModel, VmConfig};

/// How often QEMU tries to reach a vhost-user socket whose daemon went away.
const RECONNECT_MS: u32 = 200;
/// The same where QEMU knows seconds only.
const RECONNECT_S: u32 = 1;

/// The first QEMU with vfio-user devices.
const VFIO_USER: Version = Version(10, 1);
/// The first with `reconnect-ms`; `reconnect` is gone some releases later.
const MILLISECONDS: Version = Version(9, 2);
/// The oldest that is tested.
const OLDEST: Version = Version(7, 2);

/// A microvm has so many virtio-mmio transports with its second I/O APIC, and 8 without it.
const MICROVM_DEVICES: u64 = 24;

/// A QEMU's version, major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16);

/// Where virtio devices are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// PCI Express.
    Q35,
    /// PCI.
    Pc,
    /// `-M microvm`: virtio-mmio, and no PCI.
    Microvm,
}

/// What runs the guest's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    Kvm,
    /// Emulation.
    Tcg,
}

/// The QEMU that is to attach a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qemu {
    pub version: Version,
    pub machine: Machine,
    pub accel: Accel,
    /// It waits for a VM that comes from another host.
    pub incoming: bool,
}

/// What a QEMU does not have.
#[derive(Debug, thiserror::Error)]
pub enum Lacks {
    #[error(
        "VM {vm}: {device} is a vfio-user device and needs QEMU >= 10.1, and this is {version}: use a newer QEMU, or \
         {instead}"
    )]
    VfioUser { vm: String, device: String, version: Version, instead: &'static str },
    #[error(
        "VM {vm}: its NIC {number} is behind a port of PCI Express, and the machine pc has none: use the machine q35, or {instead}"
    )]
    Express { vm: String, number: usize, instead: &'static str },
    #[error(
        "VM {vm}: a microvm has room for {MICROVM_DEVICES} virtio devices, disks among them, and this VM has {devices}: use the \
         machine q35, or fewer NICs"
    )]
    Room { vm: String, devices: u64 },
    #[error("VM {vm}: {device} is a PCI device, and a microvm has no PCI: use the machine q35, or {instead}")]
    Pci { vm: String, device: String, instead: &'static str },
    #[error(
        "VM {vm}: vsock_role = \"client\" needs a VMM that listens, and Cloud Hypervisor does for NICs only; remove the key"
    )]
    Listening { vm: String },
    #[error(
        "VM {vm}: vsock = \"hybrid\" is for VMMs that have such sockets themselves, Firecracker and Cloud Hypervisor; with QEMU use \
         vsock = \"virtio\""
    )]
    Hybrid { vm: String },
    #[error(
        "VM {vm}: uml_pci = true is for guests under User Mode Linux, and no VMM has such devices; remove the key"
    )]
    UmlPci { vm: String },
    #[error(
        "VM {vm}: QEMU cannot migrate {device}, {kind} device (up to 11.1), so it cannot come from another host; {instead}"
    )]
    Migration { vm: String, device: String, kind: &'static str, instead: &'static str },
    #[error(
        "VM {vm}: movable = true, and a microvm's virtio-vsock device cannot be unplugged to be moved: use the machine q35, or \
         remove the key"
    )]
    Unplugging { vm: String },
    #[error("VM {vm}: Firecracker has no devices by vfio-user or vhost-user that could be ours; {instead}")]
    Firecracker { vm: String, instead: &'static str },
    #[error(transparent)]
    Path(#[from] TooLong),
}

/// Are its sockets ones that QEMU can have?
///
/// # Errors
/// The VM's VMM has a hybrid socket, which QEMU has not; or it is User Mode Linux.
pub fn check_sockets(vm: &VmConfig) -> Result<(), Lacks> {
    let name = || vm.name.clone();
    match vm {
        _ if vm.vsock.hybrid().is_some() => Err(Lacks::Hybrid { vm: name() }),
        _ if vm.uml_pci => Err(Lacks::UmlPci { vm: name() }),
        _ => Ok(()),
    }
}

/// What to change where there are no ports.
pub(crate) fn without_port(vm: &VmConfig, number: usize) -> &'static str {
    match vm.nics.get(number).and_then(|nic| nic.slot) {
        Some(_) if number < FIRST_NICS => "remove slot",
        _ => "use at most ten NICs, without slots",
    }
}

impl Default for Qemu {
    fn default() -> Qemu {
        Qemu { version: VFIO_USER, machine: Machine::Q35, accel: Accel::Kvm, incoming: false }
    }
}

impl FromStr for Version {
    type Err = String;

    /// Takes `7.2` and `11.1.3`.
    fn from_str(text: &str) -> Result<Version, String> {
        let mut parts = text.split('.').map(str::parse::<u16>);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if Version(major, minor) >= OLDEST => {
                Ok(Version(major, minor))
            }
            (Some(Ok(_)), Some(Ok(_))) => Err(format!("QEMU {text} is too old: {OLDEST} or later")),
            _ => Err(format!("{text:?} is no version: write it as 7.2 or 11.1")),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl FromStr for Machine {
    type Err = String;

    fn from_str(text: &str) -> Result<Machine, String> {
        match text {
            "q35" => Ok(Machine::Q35),
            "pc" => Ok(Machine::Pc),
            "microvm" => Ok(Machine::Microvm),
            _ => Err(format!("{text:?}: choose from q35, pc, microvm")),
        }
    }
}

impl Accel {
    /// KVM, if this process may use it: who starts QEMU mostly may what its caller may.
    pub fn of_this_host() -> Accel {
        let kvm = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
        if kvm.is_ok() { Accel::Kvm } else { Accel::Tcg }
    }
}

impl FromStr for Accel {
    type Err = String;

    fn from_str(text: &str) -> Result<Accel, String> {
        match text {
            "kvm" => Ok(Accel::Kvm),
            "tcg" => Ok(Accel::Tcg),
            _ => Err(format!("accelerator {text:?}: kvm or tcg")),
        }
    }
}

impl Qemu {
    /// Whether a vhost-user NIC may have MSI-X. QEMU 7.2 sets these interrupts up as if there were KVM, and
    /// without it reads what was never created, and ends (virtio_pci_set_guest_notifiers asks whether a mask
    /// function is there, not whether it is used). With INTx it does not, and newer ones do not at all.
    pub(super) fn has_msi_x(self) -> bool {
        self.accel == Accel::Kvm || self.version >= VFIO_USER
    }

    /// Whether the VM's arguments are others under another accelerator.
    pub fn minds_accel(self, vm: &VmConfig) -> bool {
        let has_nic = vm.nics.iter().any(|nic| matches!(nic.model, NicModel::VirtioNet(_)));
        self.version < VFIO_USER && self.machine != Machine::Microvm && has_nic
    }

    /// Whether it can have all of the VM's devices.
    pub fn check(self, vm: &VmConfig) -> Result<(), Lacks> {
        check_sockets(vm)?;
        let vmxnet3 = vm.nics.iter().position(|nic| !matches!(nic.model, NicModel::VirtioNet(_)));
        let (device, instead) = match vmxnet3 {
            _ if vm.vsock.is_vmci() => ("its VMCI device".to_owned(), "vsock = \"virtio\""),
            Some(number) => (format!("its NIC {number}, a vmxnet3,"), "model = \"virtio-net\""),
            None => return self.check_virtio(vm),
        };
        self.check_ports(vm)?;
        let vm = vm.name.clone();
        if self.incoming {
            return Err(Lacks::Migration { vm, device, kind: "a vfio-user", instead });
        }
        if self.machine == Machine::Microvm {
            return Err(Lacks::Pci { vm, device, instead });
        }
        if self.version < VFIO_USER {
            return Err(Lacks::VfioUser { vm, device, version: self.version, instead });
        }
        Ok(())
    }

    /// Whether it has the ports that NICs are behind.
    fn check_ports(self, vm: &VmConfig) -> Result<(), Lacks> {
        let number = (0..vm.nics.len()).find(|number| vm.port_slot(*number).is_some());
        match number.filter(|_| self.machine == Machine::Pc) {
            Some(number) => {
                let instead = without_port(vm, number);
                Err(Lacks::Express { vm: vm.name.clone(), number, instead })
            }
            None => Ok(()),
        }
    }

    /// The same of a VM that has virtio devices only.
    fn check_virtio(self, vm: &VmConfig) -> Result<(), Lacks> {
        self.check_ports(vm)?;
        if self.machine == Machine::Microvm && vm.devices() > MICROVM_DEVICES {
            return Err(Lacks::Room { vm: vm.name.clone(), devices: vm.devices() });
        }
        let name = || vm.name.clone();
        let virtio = vm.vsock.virtio().is_some();
        if virtio && self.incoming && !vm.movable {
            let device = "its virtio-vsock".to_owned();
            return Err(Lacks::Migration {
                vm: name(),
                device,
                kind: "a vhost-user",
                instead: "set movable = true",
            });
        }
        if virtio && vm.movable && self.machine == Machine::Microvm {
            return Err(Lacks::Unplugging { vm: name() });
        }
        Ok(())
    }

    /// A virtio device's name.
    pub(super) fn virtio(self, kind: &str) -> String {
        let bus = if self.machine == Machine::Microvm { "device" } else { "pci" };
        format!("{kind}-{bus}")
    }

    /// The option that makes its sockets reconnect.
    pub(super) fn reconnect(self) -> String {
        if self.version < MILLISECONDS {
            format!("reconnect={RECONNECT_S}")
        } else {
            format!("reconnect-ms={RECONNECT_MS}")
        }
    }
}
