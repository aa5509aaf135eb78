//! What no two VMs or NICs may have: names, CIDs, paths, addresses, domains, logical ports.

use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;

use crate::notes::{Notes, first, places};
use crate::raw::RawVm;
use crate::vm::VmConfig;

/// No name and no CID twice, over all groups: sockets are named after the one, packets
/// addressed by the other.
pub fn names_and_cids(raws: &[Spanned<RawVm>], notes: &mut Notes<'_>) {
    let mut names = HashMap::new();
    let mut cids: HashMap<i64, (&str, Range<usize>)> = HashMap::new();
    for (index, raw) in raws.iter().enumerate() {
        let vm = raw.get_ref();
        if let Some(name) = &vm.name
            && let Some(before) = first(&mut names, name.get_ref(), name.span())
        {
            let place = notes.shown(before.start, name.span().start);
            let text = format!("vm: name = {:?} is taken by the VM of {place}; rename one", name.get_ref());
            notes.conflict(name.span(), &[name.span(), before], text);
        }
        if let Some(cid) = &vm.cid {
            let name = vm.name.as_ref().map_or("", |name| name.get_ref());
            let Some((other, before)) = first(&mut cids, *cid.get_ref(), (name, cid.span())) else {
                continue;
            };
            let text = format!(
                "{}: cid = {} is taken by VM {other:?} ({}); give one another",
                vm.label(index),
                cid.get_ref(),
                notes.shown(before.start, cid.span().start)
            );
            notes.conflict(cid.span(), &[cid.span(), before], text);
        }
    }
}

/// The daemon would take one VM for the other.
pub fn uds_paths(raws: &[Spanned<RawVm>], notes: &mut Notes<'_>) {
    let mut seen = HashMap::new();
    for path in raws.iter().filter_map(|vm| vm.get_ref().uds_path.as_ref()) {
        let Some(before) = first(&mut seen, path.get_ref(), path.span()) else { continue };
        let text = format!(
            "vm: uds_path = {:?} is taken by the VM of {}; give each VM its own",
            path.get_ref(),
            notes.shown(before.start, path.span().start)
        );
        notes.conflict(path.span(), &[path.span(), before], text);
    }
}

/// A logical port is one NIC's.
pub fn logical_ports(raws: &[Spanned<RawVm>], notes: &mut Notes<'_>) {
    let mut seen = HashMap::new();
    for port in raws.iter().flat_map(|vm| &vm.get_ref().nic).filter_map(|nic| nic.get_ref().ovn.as_ref()) {
        let Some(before) = first(&mut seen, port.get_ref(), port.span()) else { continue };
        let text = format!(
            "nic: ovn = {:?} is another NIC's port, too ({}); each has its own",
            port.get_ref(),
            notes.shown(before.start, port.span().start)
        );
        notes.conflict(port.span(), &[port.span(), before], text);
    }
}

/// No address twice in one isolation group on one switch.
pub fn macs(vms: &[VmConfig], raws: &[Spanned<RawVm>], notes: &mut Notes<'_>) {
    let mut seen = HashMap::new();
    for (vm, raw) in vms.iter().zip(raws) {
        for (number, (nic, raw_nic)) in vm.nics.iter().zip(&raw.get_ref().nic).enumerate() {
            let span = raw_nic.span();
            // An address that is not given is made of the VM's name.
            let name = raw.get_ref().name.as_ref().map_or(raw.span(), Spanned::span);
            let own = raw_nic.get_ref().mac.as_ref().map_or(name, Spanned::span);
            let this = (&vm.name, span.start, own.clone());
            let Some((other, place, address)) = first(&mut seen, (&vm.group, &nic.switch, nic.mac), this)
            else {
                continue;
            };
            let text = format!(
                "vm {:?}: nic {number}: mac = \"{}\" is taken by VM {other:?} ({}); give one another",
                vm.name,
                nic.mac,
                notes.shown(place, span.start)
            );
            notes.conflict(span, &[address, own], text);
        }
    }
}

/// A domain is one VM at most.
pub fn domains(vms: &[VmConfig], raws: &[Spanned<RawVm>], notes: &mut Notes<'_>) {
    fn called(vm: &VmConfig) -> &str {
        vm.domain.as_ref().unwrap_or(&vm.name)
    }
    for (number, (vm, own)) in vms.iter().zip(raws).enumerate() {
        let Some(place) = own.get_ref().domain.as_ref().map(Spanned::span) else { continue };
        let other = vms.iter().enumerate().find(|(at, other)| {
            *at != number && called(other) == called(vm) && (*at < number || other.domain.is_none())
        });
        let Some((at, other)) = other else { continue };
        let text = format!(
            "vm {:?}: domain = {:?} is the domain of vm {:?}, too; give each a domain of its own",
            vm.name,
            called(vm),
            other.name
        );
        let of_other = raws.get(at).map(Spanned::get_ref);
        let of_other =
            of_other.map(|other| places(if other.domain.is_some() { &other.domain } else { &other.name }));
        let of: Vec<_> = of_other.into_iter().flatten().chain([place.clone()]).collect();
        notes.conflict(place, &of, text);
    }
}
