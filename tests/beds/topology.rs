//! The beds: labs that several tests share, by what is in them.

use vmlane_lab::{Forward, LabSpec, Machine};

use crate::lab;

/// A lab that tests run in one after another.
#[derive(Debug)]
pub struct Topology {
    pub name: &'static str,
    /// The kernel of each guest: a, b, c ...
    pub kernels: &'static [&'static str],
    pub cpus: u32,
    /// What they run in: empty for q35, or one a guest.
    pub machines: &'static [Machine],
    /// The version of QEMU, if it is not the lab's newest.
    pub qemu: Option<&'static str>,
    /// As `--device` of `vmlane lab up` takes them.
    pub devices: &'static [&'static str],
    /// Isolation groups, one a guest; none for one group of all.
    pub groups: &'static [&'static str],
    /// `(port, to_port)`: guest a's connects to these ports of CID 2 reach guest b.
    pub forwards: &'static [(u32, u32)],
    /// The host is a peer behind so many uplinks.
    pub uplinks: u32,
    /// TOML that is merged over the lab's configuration of the daemon.
    pub config: &'static str,
    /// The daemon connects to sockets on which a QEMU listens: it has to run as QEMU's user, to whom they
    /// belong.
    pub connects: bool,
    /// Its tests kill guests or daemons; those of others may not.
    pub kills: bool,
}

impl PartialEq for Topology {
    fn eq(&self, other: &Topology) -> bool {
        self.name == other.name
    }
}

/// One guest of 6.12 with nothing, which the others change.
const PLAIN: Topology = Topology {
    name: "",
    kernels: &["6.12"],
    cpus: 1,
    machines: &[],
    qemu: None,
    devices: &[],
    groups: &[],
    forwards: &[],
    uplinks: 0,
    config: "",
    connects: false,
    kills: false,
};

/// VMCI between new and old guests: c has byte ports, which are slow under emulation; d is in a group of its
/// own.
pub static VMCI: Topology = Topology {
    name: "vmci",
    kernels: &["6.12", "6.12", "5.10", "6.12"],
    devices: &["vmci"],
    groups: &["red", "red", "red", "blue"],
    ..PLAIN
};

/// VMCI in guests whose programs need a flag, or a forward, to reach others.
pub static VMCI_FLAG: Topology = Topology {
    name: "vmci-flag",
    kernels: &["7.2", "7.2"],
    devices: &["vmci"],
    // The echo server's port differs from the forwarded one, so that the forward must translate it.
    forwards: &[(5000, 5000), (7001, 7000)],
    ..PLAIN
};

/// VMCI and VMXNET3 in guests that are killed, with faults on request.
pub static FAULTS: Topology = Topology {
    name: "faults",
    kernels: &["6.12", "6.1", "6.12"],
    devices: &["vmci", "vmxnet3"],
    config: "[daemon]\nfault_injection = true\nfault_limit = 4\nfault_window_s = 3600\n",
    kills: true,
    ..PLAIN
};

/// VMCI and VMXNET3 under daemons that are killed. c may have been booted from the network, and then does so
/// at each restart from inside; b does not.
pub static KILLS: Topology = Topology {
    name: "kills",
    kernels: &["6.12", "6.12", "6.12"],
    devices: &["vmci", "vmxnet3"],
    kills: true,
    ..PLAIN
};

/// The same for the long tests of daemons that are killed again and again, so that both halves run side by
/// side.
pub static SURVIVAL: Topology = Topology { name: "survival", ..KILLS };

/// Two cards of each model under daemons that are killed.
pub static CARDS: Topology = Topology {
    name: "cards",
    kernels: &["6.12", "6.12"],
    devices: &["vmxnet3", "virtio-net", "vmxnet3", "virtio-net"],
    kills: true,
    ..PLAIN
};

/// VMXNET3 between three guests and the host; a's is in slot 192.
pub static VMXNET3: Topology = Topology {
    name: "vmxnet3",
    kernels: &["6.12", "6.12", "6.12"],
    devices: &["vmxnet3", "vmci"],
    uplinks: 1,
    config: "[[vm]]\nname = \"a\"\nnic = [{ model = \"vmxnet3\", port_group = \"net0\", mac = \"52:54:00:77:00:01\", \
             slot = 192 }]\n",
    ..PLAIN
};

/// Several CPUs, and a card of each kind: VMXNET3 with a queue a CPU, virtio-net with packed rings and two
/// pairs of queues, VMXNET3's oldest and newest revision.
pub static QUEUES: Topology = Topology {
    name: "queues",
    kernels: &["6.12", "6.12"],
    cpus: 4,
    devices: &[
        "vmxnet3",
        "virtio-net:queues=2,packed=true",
        "vmxnet3:profile=vmxnet2-class",
        "vmxnet3:profile=full",
    ],
    ..PLAIN
};

/// virtio-net and virtio-vsock under User Mode Linux: eth0 with LRO, eth1 without.
pub static VIRTIO: Topology = Topology {
    name: "virtio",
    kernels: &["7.2um1"; 3],
    machines: &[Machine::Uml; 3],
    devices: &["virtio-net", "virtio-net:lro=false", "virtio-vsock"],
    ..PLAIN
};

/// virtio-net and virtio-vsock in guests that are killed, under daemons that are killed, in the oldest QEMU
/// that has a place in distributions: a is a microvm, b's QEMU listens.
pub static VIRTIO_KILLS: Topology = Topology {
    name: "virtio-kills",
    kernels: &["6.12", "6.12"],
    machines: &[Machine::Microvm, Machine::Q35],
    qemu: Some("7.2"),
    devices: &["virtio-net", "virtio-vsock"],
    config: "[[vm]]\nname = \"b\"\nvsock_role = \"client\"\nnic = [{ model = \"virtio-net\", role = \"client\", \
             port_group = \"net0\", mac = \"52:54:00:77:00:02\" }]\n",
    connects: true,
    kills: true,
    ..PLAIN
};

/// Sockets of both kinds in the lab's newest QEMU under daemons that are killed again and again.
pub static VSOCK_SURVIVAL: Topology = Topology {
    name: "vsock-survival",
    kernels: &["6.12"; 3],
    devices: &["a:virtio-vsock", "b:virtio-vsock", "c:vmci"],
    kills: true,
    ..PLAIN
};

/// VMCI and VMXNET3 in QEMU beside User Mode Linux with virtio devices; both are killed.
pub static MIXTURE: Topology = Topology {
    name: "mixture",
    kernels: &["7.2um1", "6.12"],
    machines: &[Machine::Uml, Machine::Q35],
    devices: &["vmxnet3", "vmci"],
    kills: true,
    ..PLAIN
};

/// Every kind of device in one VLAN: a has VMCI in QEMU, and of its cards eth0 is VMXNET3, eth1 virtio-net; b
/// and c have virtio-vsock and virtio-net under User Mode Linux.
///
/// b's connects to ports 7000 and 7001 of the host reach a and c; for c the host has CID 9, as the parent has
/// for an enclave.
pub static KINDS: Topology = Topology {
    name: "kinds",
    kernels: &["6.12", "7.2um1", "7.2um1"],
    machines: &[Machine::Q35, Machine::Uml, Machine::Uml],
    devices: &["a:vmci", "b:virtio-vsock", "c:virtio-vsock", "vmxnet3:vlan=20", "virtio-net:vlan=20"],
    config: "[[vm]]\nname = \"b\"\n\
             forward = [ { port = 7000, to = \"a:6100\" }, { port = 7001, to = \"c:6100\" } ]\n\
             [[vm]]\nname = \"c\"\nparent_cid = 9\nforward = [ { port = 7002, to = \"a:6100\" } ]\n",
    ..PLAIN
};

/// The same in QEMU for all, with d like a: pairs of one kind and of two beside each other.
pub static MIXED: Topology = Topology {
    name: "mixed",
    kernels: &["6.12"; 4],
    machines: &[],
    devices: &[
        "a:vmci",
        "b:virtio-vsock",
        "c:virtio-vsock",
        "d:vmci",
        "vmxnet3:vlan=20",
        "virtio-net:vlan=20",
    ],
    ..KINDS
};

impl Topology {
    /// The lab that this is, with the id of this process in its name.
    pub fn spec(&self) -> LabSpec {
        let mut spec = lab(self.name, self.devices);
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        spec.kernels = owned(self.kernels);
        spec.guests = self.kernels.len();
        spec.groups = owned(self.groups);
        spec.cpus = self.cpus;
        spec.machines = self.machines.to_vec();
        spec.qemu = self.qemu.map(str::to_owned);
        spec.uplinks = self.uplinks;
        let forward =
            |&(port, to_port): &(u32, u32)| Forward { from: "a".into(), port, to: "b".into(), to_port };
        spec.forwards = self.forwards.iter().map(forward).collect();
        spec
    }

    /// What is merged over the lab's configuration of the daemon.
    pub fn config(&self) -> String {
        let own = self.connects && rustix::process::getuid().is_root();
        (if own { "[daemon]\nuser = \"root\"\n" } else { "" }).to_owned() + self.config
    }
}
