//! The part of the file that concerns the switch: port groups and NICs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{Range, RangeInclusive};

use toml::{Spanned, Value};
use vmlane_wire::ethernet::Mac;

use super::check::{Checker, Named};
use super::raw::{RawNic, RawPortGroup, RawVm};
use super::{
    NicConfig, NicModel, Policy, PortGroupConfig, Profile, Role, Traffic, VirtioNet, Vlan, VmConfig,
};

const VLANS: RangeInclusive<i64> = 1..=4094;
const QUEUES: RangeInclusive<i64> = 1..=32;
pub(crate) const MTUS: RangeInclusive<i64> = 1280..=9190;
/// Physical slot numbers of PCI Express have 13 bits.
const SLOTS: RangeInclusive<i64> = 1..=8191;
/// Where NICs are that name no port group, and uplinks that name no group.
pub(crate) const DEFAULT: &str = "default";
/// One virtual function a PCI slot: more NICs than this fit no usual machine.
const MOST_NICS: usize = 10;

impl Checker<'_> {
    pub(crate) fn port_groups(&mut self, raws: &[Spanned<RawPortGroup>]) -> Vec<PortGroupConfig> {
        let mut groups: Vec<PortGroupConfig> = Vec::new();
        for (index, spanned) in raws.iter().enumerate() {
            let raw = spanned.get_ref();
            let Some(name) = self.name_of(Named::PortGroup, index, spanned.span(), raw.name.as_ref()) else {
                continue;
            };
            if groups.iter().any(|other| other.name == *name.get_ref()) {
                let text =
                    format!("port_group: name = {:?} is taken by another one; rename one", name.get_ref());
                self.conflict(name.span(), &[name.span()], text);
            }
            let key = format!("port_group {:?}", name.get_ref());
            groups.push(PortGroupConfig {
                name: name.get_ref().clone(),
                vlan: raw.vlan.as_ref().map_or(Vlan::Untagged, |vlan| self.vlan(&key, vlan)),
                policy: policy(Policy::default(), raw.promiscuous, raw.mac_changes, raw.forged_transmits),
                traffic: self.group_traffic(&key, raw),
            });
        }
        if !groups.iter().any(|group| group.name == DEFAULT) {
            groups.push(PortGroupConfig {
                name: DEFAULT.into(),
                vlan: Vlan::Untagged,
                policy: Policy::default(),
                traffic: Traffic::default(),
            });
        }
        groups
    }

    pub(crate) fn vlan(&mut self, key: &str, spanned: &Spanned<Value>) -> Vlan {
        let good = match spanned.get_ref() {
            Value::Integer(0) => Some(Vlan::Untagged),
            Value::Integer(vlan) if VLANS.contains(vlan) => Some(Vlan::Access(*vlan as u16)),
            Value::String(word) if word == "trunk" => Some(Vlan::TrunkAll),
            Value::Array(list) if !list.is_empty() => list
                .iter()
                .map(|vlan| vlan.as_integer().filter(|vlan| VLANS.contains(vlan)).map(|vlan| vlan as u16))
                .collect::<Option<Vec<u16>>>()
                .map(Vlan::Trunk),
            _ => None,
        };
        good.unwrap_or_else(|| {
            let text = format!(
                "{key}: vlan = {}; use 0 (untagged), a number from 1 to 4094 (the switch tags), \"trunk\" or a \
                 list such as [10, 20] (the guest tags)",
                spanned.get_ref()
            );
            self.problem(spanned.span(), text);
            Vlan::Untagged
        })
    }

    pub(crate) fn nics(
        &mut self,
        vm: &str,
        vm_name: &str,
        raw: &RawVm,
        groups: &[PortGroupConfig],
    ) -> Vec<NicConfig> {
        if let Some(last) = raw.nic.get(MOST_NICS) {
            let text = format!("{vm}: nic: {} are too many; use at most {MOST_NICS}", raw.nic.len());
            self.problem(last.span(), text);
        }
        let nics = raw.nic.iter().enumerate();
        let nics =
            nics.map(|(number, nic)| self.nic(&format!("{vm}: nic {number}"), vm_name, number, nic, groups));
        let nics = nics.collect();
        for (number, nic) in raw.nic.iter().enumerate() {
            let Some(slot) = &nic.get_ref().slot else { continue };
            let same = |other: &Spanned<RawNic>| {
                other.get_ref().slot.as_ref().is_some_and(|other| other.get_ref() == slot.get_ref())
            };
            if let Some(other) = raw.nic.iter().take(number).position(same) {
                let slot_number = slot.get_ref();
                let text = format!(
                    "{vm}: nic {number}: slot = {slot_number}: nic {other} is in it; each has its own"
                );
                self.conflict(slot.span(), &[slot.span()], text);
            }
        }
        nics
    }

    fn nic(
        &mut self,
        key: &str,
        vm_name: &str,
        number: usize,
        spanned: &Spanned<RawNic>,
        groups: &[PortGroupConfig],
    ) -> NicConfig {
        let raw = spanned.get_ref();
        let model = self.model(key, spanned);
        let default_queues = if model == NicModel::Vmxnet3 { 8 } else { 1 };
        let group = raw.port_group.as_ref().map_or(DEFAULT, |group| group.get_ref());
        let known = groups.iter().find(|other| other.name == group);
        if known.is_none() {
            let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
            let span = raw.port_group.as_ref().map_or(spanned.span(), Spanned::span);
            let text = format!(
                "{key}: port_group = {group:?}: there is none of that name; known are {}",
                names.join(", ")
            );
            self.unknown(Named::PortGroup, span, text);
        }
        let ovn = self.ovn_nic(key, raw);
        let of_group = match ovn {
            Some(_) => super::ovn::POLICY,
            None => known.map(|group| group.policy).unwrap_or_default(),
        };
        let traffic = known.map(|group| group.traffic).unwrap_or_default();
        let number_of = |checker: &mut Self, name: &str, value: &Option<Spanned<i64>>, default, range| {
            value.as_ref().map_or(default, |value| checker.number(&format!("{key}: {name}"), value, range))
        };
        NicConfig {
            model,
            profile: self.profile(key, raw.profile.as_ref()),
            port_group: group.to_owned(),
            mac: self.mac(key, vm_name, number, raw.mac.as_ref()),
            queues: number_of(self, "queues", &raw.queues, default_queues, QUEUES) as u8,
            mtu: number_of(self, "mtu", &raw.mtu, 9190, MTUS) as u16,
            slot: raw.slot.as_ref().map(|slot| self.number(&format!("{key}: slot"), slot, SLOTS) as u16),
            trapped: raw.trapped,
            policy: policy(of_group, raw.promiscuous, raw.mac_changes, raw.forged_transmits),
            traffic: self.nic_traffic(key, traffic, raw),
            ovn,
        }
    }

    /// The model, and what is said for that model only.
    fn model(&mut self, key: &str, spanned: &Spanned<RawNic>) -> NicModel {
        let raw = spanned.get_ref();
        let mut stray = |name: &str, given: bool, model: &str| {
            if given {
                self.problem(spanned.span(), format!("{key}: {name} is a key of {model} only; remove it"));
            }
        };
        match raw.model.as_ref().map(|model| (model, model.get_ref().as_str())) {
            Some((_, "vmxnet3")) => {
                stray("lro", raw.lro.is_some(), "virtio-net");
                stray("packed", raw.packed.is_some(), "virtio-net");
                stray("role", raw.role.is_some(), "virtio-net");
            }
            Some((_, "virtio-net")) => {
                stray("profile", raw.profile.is_some(), "vmxnet3");
                stray("trapped", raw.trapped, "vmxnet3");
                return NicModel::VirtioNet(VirtioNet {
                    lro: raw.lro.unwrap_or(true),
                    packed: raw.packed.unwrap_or(false),
                    role: raw
                        .role
                        .as_ref()
                        .map_or(Role::Server, |role| self.role(&format!("{key}: role"), role, "the VMM")),
                    announces_mtu: raw.mtu.is_some(),
                });
            }
            Some((model, unknown)) => {
                let text =
                    format!("{key}: model = {unknown:?} is not served; use \"vmxnet3\" or \"virtio-net\"");
                self.problem(model.span(), text);
            }
            None => {
                let text = format!("{key}: model is missing; add model = \"vmxnet3\" or \"virtio-net\"");
                self.problem(spanned.span(), text);
            }
        }
        NicModel::Vmxnet3
    }

    fn profile(&mut self, key: &str, raw: Option<&Spanned<String>>) -> Profile {
        let Some(raw) = raw else { return Profile::default() };
        raw.get_ref().parse().unwrap_or_else(|error| {
            self.problem(raw.span(), format!("{key}: profile: {error}"));
            Profile::default()
        })
    }

    fn mac(&mut self, key: &str, vm_name: &str, number: usize, raw: Option<&Spanned<String>>) -> Mac {
        let Some(raw) = raw else { return derived_mac(vm_name, number) };
        let text = match raw.get_ref().parse::<Mac>() {
            Ok(mac) if mac.is_unicast() => return mac,
            Ok(mac) => format!(
                "{key}: mac = \"{mac}\" is no address of a NIC; its first byte must be even, and not all 0"
            ),
            Err(error) => format!("{key}: mac = {error}"),
        };
        self.problem(raw.span(), text);
        Mac::default()
    }

    /// No address twice in one isolation group.
    pub(crate) fn unique_macs(&mut self, vms: &[VmConfig], raws: &[Spanned<RawVm>]) {
        struct First<'v> {
            vm: &'v str,
            nic: usize,
            address: Range<usize>,
        }
        let mut seen: HashMap<(&str, Mac), First<'_>> = HashMap::new();
        for (vm, raw) in vms.iter().zip(raws) {
            for (number, (nic, raw_nic)) in vm.nics.iter().zip(&raw.get_ref().nic).enumerate() {
                let span = raw_nic.span();
                // An address that is not given is made of the VM's name.
                let name = raw.get_ref().name.as_ref().map_or(raw.span(), Spanned::span);
                let own = raw_nic.get_ref().mac.as_ref().map_or(name, Spanned::span);
                match seen.entry((&vm.group, nic.mac)) {
                    Entry::Vacant(free) => {
                        free.insert(First { vm: &vm.name, nic: span.start, address: own });
                    }
                    Entry::Occupied(first) => {
                        let first = first.get();
                        let text = format!(
                            "vm {:?}: nic {number}: mac = \"{}\" is taken by VM {:?} ({}); give one another",
                            vm.name,
                            nic.mac,
                            first.vm,
                            self.shown(first.nic, span.start)
                        );
                        self.conflict(span, &[first.address.clone(), own], text);
                    }
                }
            }
        }
    }
}

/// The one name of a VM's NIC, its port's and its uplink's.
pub fn nic_name(vm: &str, number: usize) -> String {
    format!("{vm}/nic{number}")
}

fn policy(
    base: Policy,
    promiscuous: Option<bool>,
    mac_changes: Option<bool>,
    forged: Option<bool>,
) -> Policy {
    Policy {
        promiscuous: promiscuous.unwrap_or(base.promiscuous),
        mac_changes: mac_changes.unwrap_or(base.mac_changes),
        forged_transmits: forged.unwrap_or(base.forged_transmits),
    }
}

/// A locally administered address made of the VM's name, the same in every run: FNV-1a, 40 bits.
fn derived_mac(vm: &str, number: usize) -> Mac {
    let words = vm.bytes().chain([0, number as u8]);
    let hash = words.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = (hash ^ hash >> 40).to_le_bytes();
    Mac([0x52, a, b, c, d, e])
}
