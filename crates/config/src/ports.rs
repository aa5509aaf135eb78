//! All ports of the switch, by their names.

use crate::names::nic_name;
use crate::nic::NicConfig;
use crate::port_group::PortGroupConfig;
use crate::uplink::UplinkConfig;
use crate::vm::VmConfig;

/// All ports of the switch, and their groups.
#[derive(Clone, Copy)]
pub struct Ports<'c> {
    pub vms: &'c [VmConfig],
    pub uplinks: &'c [UplinkConfig],
    pub port_groups: &'c [PortGroupConfig],
}

impl<'c> Ports<'c> {
    /// All NICs, each behind its name, `VM/nicN`, and its VM.
    pub fn nics(&self) -> impl Iterator<Item = (String, &'c VmConfig, &'c NicConfig)> {
        let nics = |vm: &'c VmConfig| (0..).zip(&vm.nics).map(move |(number, nic)| (vm, number, nic));
        let nics = self.vms.iter().flat_map(nics);
        nics.map(|(vm, number, nic)| (nic_name(&vm.name, number), vm, nic))
    }

    /// The names of all: of NICs, and of uplinks.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.nics().map(|(name, ..)| name).chain(self.uplinks.iter().map(|uplink| uplink.name.clone()))
    }

    pub fn has_group(&self, name: &str) -> bool {
        self.port_groups.iter().any(|group| group.name == name)
    }

    /// The switch of a NIC, an uplink or a port group.
    pub fn switch_of(&self, name: &str) -> Option<&'c str> {
        let nics = self.nics().filter(|(own, ..)| own == name).map(|(_, _, nic)| &nic.switch);
        let uplinks = self.uplinks.iter().filter(|uplink| uplink.name == name).map(|uplink| &uplink.switch);
        let groups = self.port_groups.iter().filter(|group| group.name == name).map(|group| &group.switch);
        nics.chain(uplinks).chain(groups).next().map(String::as_str)
    }

    /// What may be named.
    pub fn known(&self, groups: bool) -> String {
        let groups = self.port_groups.iter().filter(|_| groups).map(|group| group.name.clone());
        listed(self.names().chain(groups))
    }
}

/// Names, for messages.
pub fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() { "there are none".into() } else { format!("there are {}", names.join(", ")) }
}
