//! NICs of a VM.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_device::vmxnet3::Profile;
use vmlane_switch::{Policy, Traffic};
use vmlane_wire::ethernet::Mac;

use crate::names::{hash, nic_name};
use crate::notes::{Named, Notes};
use crate::ovn::{self, OvnNic};
use crate::port_group::{MTUS, PortGroupConfig};
use crate::raw::{RawNic, RawVm};
use crate::role::{self, Role};
use crate::switch::{self, policy};
use crate::traffic;
use crate::wire::{self, WireConfig};

const QUEUES: RangeInclusive<i64> = 1..=32;
/// Physical slot numbers of PCI Express have 13 bits.
const SLOTS: RangeInclusive<i64> = 1..=8191;
/// So many fit the bus of a q35 beside other devices (`vmlane_attach`), and the interrupts of a guest with
/// two processors (`interrupts.rs`).
pub const MOST_NICS: usize = 64;
/// What a machine has for any VM is for the first so many NICs: places on its own bus, and queues for eight
/// processors. Those after them have a root port each, and fewer queues by default. It goes by a NIC's
/// number, so that nothing changes for a NIC when the VM gets others.
pub const FIRST_NICS: usize = 10;

/// One element of `nic`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    pub model: NicModel,
    /// Of a VMXNET3 NIC.
    pub profile: Profile,
    /// Its port group's, or its wire's network.
    pub switch: String,
    /// [`wire::NO_PORT_GROUP`] on a wire.
    pub port_group: String,
    pub mac: Mac,
    /// The most queues of each direction.
    pub queues: u8,
    /// The largest MTU of the guest that the port carries.
    pub mtu: u16,
    /// The number of its PCI Express slot, which guests name it after; None: QEMU places it.
    pub slot: Option<u16>,
    /// Doorbells are messages instead of stores into a shared page.
    pub trapped: bool,
    /// The port group's, with the NIC's own in front.
    pub policy: Policy,
    /// Likewise.
    pub traffic: Traffic,
    /// It is a port of OVN's, and not of the switch.
    pub ovn: Option<OvnNic>,
}

impl NicConfig {
    /// The wire that it is an end of.
    pub fn wire(&self) -> Option<&str> {
        wire::of_network(&self.switch)
    }
}

/// What a guest finds in its PCI slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicModel {
    /// By vfio-user.
    Vmxnet3,
    /// By vhost-user.
    VirtioNet(VirtioNet),
}

/// What is decided about a virtio NIC only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioNet {
    /// Super-frames may reach the guest whole.
    pub lro: bool,
    /// Packed rings are on offer.
    pub packed: bool,
    /// Who listens at the socket.
    pub role: Role,
    /// The configured MTU is announced to the guest.
    pub announces_mtu: bool,
}

/// All NICs of a VM, which messages call `label`.
pub fn judge(
    label: &str,
    raw: &RawVm,
    (groups, wires): (&[PortGroupConfig], &[WireConfig]),
    notes: &mut Notes<'_>,
) -> Vec<NicConfig> {
    if let Some(last) = raw.nic.get(MOST_NICS) {
        let text = format!("{label}: nic: {} are too many; use at most {MOST_NICS}", raw.nic.len());
        notes.problem(last.span(), text);
    }
    let nics = raw.nic.iter().enumerate();
    let nics = nics.map(|(number, nic)| {
        let key = format!("{label}: nic {number}");
        let mac = match &nic.get_ref().mac {
            Some(mac) => given_mac(&key, mac, notes),
            None => derived_mac(raw.name.as_ref().map_or("", |name| name.get_ref()), number),
        };
        let name = raw.name.as_ref().map(|name| nic_name(name.get_ref(), number));
        let place = match name.and_then(|name| wire::of_end(wires, &name)) {
            Some(wire) => on_wire(&key, nic, wire, notes),
            None => on_switch(&key, nic, groups, notes),
        };
        judge_one(&key, (number, nic), mac, place, notes)
    });
    let nics = nics.collect();
    for (number, nic) in raw.nic.iter().enumerate() {
        let Some(slot) = &nic.get_ref().slot else { continue };
        let same = |other: &Spanned<RawNic>| {
            other.get_ref().slot.as_ref().is_some_and(|other| other.get_ref() == slot.get_ref())
        };
        if let Some(other) = raw.nic.iter().take(number).position(same) {
            let slot_number = slot.get_ref();
            let text = format!(
                "{label}: nic {number}: slot = {slot_number}: nic {other} is in it; each has its own"
            );
            notes.conflict(slot.span(), &[slot.span()], text);
        }
    }
    nics
}

/// Where a NIC is, and what it has from there.
struct Place {
    switch: String,
    port_group: String,
    policy: Policy,
    traffic: Traffic,
}

fn on_wire(key: &str, spanned: &Spanned<RawNic>, wire: &WireConfig, notes: &mut Notes<'_>) -> Place {
    wire::judge_nic(key, spanned, wire, notes);
    Place {
        switch: wire::network(&wire.name),
        port_group: wire::NO_PORT_GROUP.to_owned(),
        policy: wire::POLICY,
        traffic: Traffic::default(),
    }
}

fn on_switch(
    key: &str,
    spanned: &Spanned<RawNic>,
    groups: &[PortGroupConfig],
    notes: &mut Notes<'_>,
) -> Place {
    let raw = spanned.get_ref();
    // Each switch has a port group of its name.
    let named = raw.port_group.as_ref().or(raw.switch.as_ref());
    let group = named.map_or(switch::DEFAULT, |group| group.get_ref());
    let known = groups.iter().find(|other| other.name == group);
    if known.is_none() {
        let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        let (name, kind) = match &raw.port_group {
            Some(_) => ("port_group", Named::PortGroup),
            None => ("switch", Named::Switch),
        };
        let text =
            format!("{key}: {name} = {group:?}: there is none of that name; known are {}", names.join(", "));
        notes.unknown(kind, named.map_or(spanned.span(), Spanned::span), text);
    }
    let switch = known.map_or(switch::DEFAULT, |group| &group.switch);
    if let Some(given) = raw.switch.as_ref().filter(|given| known.is_some() && given.get_ref() != switch) {
        let text = format!(
            "{key}: switch = {:?}: port group {group:?} is on switch {switch:?}; remove one of the two keys",
            given.get_ref()
        );
        notes.conflict(given.span(), &[given.span()], text);
    }
    Place {
        switch: switch.to_owned(),
        port_group: group.to_owned(),
        policy: known.map(|group| group.policy).unwrap_or_default(),
        traffic: known.map(|group| group.traffic).unwrap_or_default(),
    }
}

fn judge_one(
    key: &str,
    (number, spanned): (usize, &Spanned<RawNic>),
    mac: Mac,
    Place { switch, port_group, policy: of_place, traffic }: Place,
    notes: &mut Notes<'_>,
) -> NicConfig {
    let raw = spanned.get_ref();
    let model = model(key, spanned, notes);
    let ovn = ovn::judge_nic(key, raw, notes);
    let of_place = ovn.as_ref().map_or(of_place, |_| ovn::POLICY);
    NicConfig {
        model,
        profile: profile(key, raw, notes),
        switch,
        port_group,
        mac,
        queues: notes
            .number(key, "queues", &raw.queues, QUEUES)
            .unwrap_or_else(|| default_queues(model, number)),
        mtu: notes.number(key, "mtu", &raw.mtu, MTUS).unwrap_or(9190),
        slot: notes.number(key, "slot", &raw.slot, SLOTS),
        trapped: raw.trapped,
        policy: policy(of_place, raw.promiscuous, raw.mac_changes, raw.forged_transmits),
        traffic: traffic::of_nic(key, traffic, raw, notes),
        ovn,
    }
}

/// Linux's VMXNET3 driver uses as many as it has processors, and an interrupt for each.
fn default_queues(model: NicModel, number: usize) -> u8 {
    match model {
        NicModel::VirtioNet(_) => 1,
        NicModel::Vmxnet3 if number < FIRST_NICS => 8,
        NicModel::Vmxnet3 => 2,
    }
}

/// See [`VmConfig::port_slot`](crate::VmConfig::port_slot).
pub fn port_slot(nics: &[NicConfig], number: usize) -> Option<u16> {
    let own = nics.get(number)?.slot;
    if own.is_some() || number < FIRST_NICS {
        return own;
    }
    let is_given = |slot: u16| nics.iter().any(|nic| nic.slot == Some(slot));
    let last = u16::try_from(*SLOTS.end()).ok()?;
    (u16::try_from(number).ok()?..=last).step_by(MOST_NICS).find(|slot| !is_given(*slot))
}

/// The model, and the keys of that model only.
fn model(key: &str, spanned: &Spanned<RawNic>, notes: &mut Notes<'_>) -> NicModel {
    let raw = spanned.get_ref();
    let mut stray = |name: &str, given: bool, model: &str| {
        if given {
            notes.problem(spanned.span(), format!("{key}: {name} is a key of {model} only; remove it"));
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
                role: role::judge(key, "role", &raw.role, "the VMM", notes).unwrap_or_default(),
                announces_mtu: raw.mtu.is_some(),
            });
        }
        Some((model, unknown)) => {
            let text = format!("{key}: model = {unknown:?} is not served; use \"vmxnet3\" or \"virtio-net\"");
            notes.problem(model.span(), text);
        }
        None => {
            let text = format!("{key}: model is missing; add model = \"vmxnet3\" or \"virtio-net\"");
            notes.problem(spanned.span(), text);
        }
    }
    NicModel::Vmxnet3
}

fn profile(key: &str, raw: &RawNic, notes: &mut Notes<'_>) -> Profile {
    let Some(raw) = &raw.profile else { return Profile::default() };
    raw.get_ref().parse().unwrap_or_else(|error| {
        notes.problem(raw.span(), format!("{key}: profile: {error}"));
        Profile::default()
    })
}

fn given_mac(key: &str, raw: &Spanned<String>, notes: &mut Notes<'_>) -> Mac {
    let text = match raw.get_ref().parse::<Mac>() {
        Ok(mac) if mac.is_unicast() => return mac,
        Ok(mac) => format!(
            "{key}: mac = \"{mac}\" is no address of a NIC; its first byte must be even, and not all 0"
        ),
        Err(error) => format!("{key}: mac = {error}"),
    };
    notes.problem(raw.span(), text);
    Mac::default()
}

/// A locally administered address made of the VM's name: 40 bits of a hash.
fn derived_mac(vm: &str, number: usize) -> Mac {
    let hash = hash(vm, number);
    let [a, b, c, d, e, ..] = (hash ^ hash >> 40).to_le_bytes();
    Mac([0x52, a, b, c, d, e])
}
