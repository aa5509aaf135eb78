//! Where VMs' forwards lead, once all VMs and other hosts are known.

use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;

use crate::notes::{Named, Notes, places};
use crate::raw::{RawForward, RawVm};
use crate::route::RouteConfig;
use crate::vm::VmConfig;

/// What a VM's forwards may lead to.
pub struct Targets<'c> {
    pub vms: &'c [VmConfig],
    pub raws: &'c [Spanned<RawVm>],
    pub route: Option<&'c RouteConfig>,
    /// The configuration of other hosts is right.
    pub hosts_are_known: bool,
}

/// Every forward leads to another VM of the same group, or to a CID of another host that the group may reach,
/// and no port leads to two.
pub fn judge(index: usize, targets: &Targets<'_>, notes: &mut Notes<'_>) {
    let (all, raws) = (targets.vms, targets.raws);
    let (Some(vm), Some(raw)) = (all.get(index), raws.get(index).map(Spanned::get_ref)) else { return };
    let is_parent = |other: &&VmConfig| vm.parent_cid == Some(other.cid) && other.name != vm.name;
    if let Some(cid) = &raw.parent_cid
        && let Some(other) = all.iter().find(is_parent)
    {
        let text = format!(
            "vm {:?}: parent_cid = {} is the cid of VM {:?}, which the guest reaches by itself; remove it",
            vm.name,
            cid.get_ref(),
            other.name
        );
        let mut of = targets.raw(other).map(|other| places(&other.cid)).unwrap_or_default();
        of.push(cid.span());
        notes.conflict(cid.span(), &of, text);
    }
    let mut ports = HashMap::new();
    for spanned in &raw.forward {
        let RawForward { port: Some(port), to: Some(to) } = spanned.get_ref() else { continue };
        let key = format!("{}: forward {port} -> {to:?}", raw.label(index));
        if let Some((other, before)) = ports.insert(*port, (to, spanned.span())) {
            let text = format!("{key}: port {port} leads to {other:?} already; remove one");
            notes.conflict(spanned.span(), &[spanned.span(), before], text);
        }
        let Some(target) = to.rsplit_once(':').map(|(name, _)| name).filter(|name| !name.is_empty()) else {
            continue; // reported as the forward's own mistake
        };
        match all.iter().find(|other| other.name == target) {
            Some(other) => {
                if let Some((text, of)) = targets.refuse((vm, raw), other) {
                    notes.conflict(spanned.span(), &of, format!("{key}: {text}"));
                }
            }
            None if target.parse().is_ok_and(|cid| targets.is_elsewhere(cid, vm)) => {}
            None => {
                let known: Vec<_> = all.iter().map(|other| other.name.as_str()).collect();
                let text = format!("{key}: there is no VM {target:?}; known are {}", known.join(", "));
                notes.unknown(Named::Vm, spanned.span(), text);
            }
        }
    }
}

impl Targets<'_> {
    fn raw(&self, vm: &VmConfig) -> Option<&RawVm> {
        let is_its = |raw: &&RawVm| raw.name.as_ref().map_or("", |name| name.get_ref()) == vm.name;
        self.raws.iter().map(Spanned::get_ref).find(is_its)
    }

    /// Is it a CID of another host that the VM may reach? Without the other hosts, every CID may be one of
    /// theirs.
    fn is_elsewhere(&self, cid: u32, vm: &VmConfig) -> bool {
        !self.hosts_are_known || self.route.is_some_and(|route| route.reaches(cid, &vm.group))
    }

    /// Why a VM is no target of another one, and the values that make it none.
    fn refuse(
        &self,
        (vm, raw): (&VmConfig, &RawVm),
        target: &VmConfig,
    ) -> Option<(String, Vec<Range<usize>>)> {
        let raw_target = self.raw(target);
        let name = &target.name;
        if target.name == vm.name {
            Some(("a VM cannot be its own target".into(), Vec::new()))
        } else if target.group != vm.group {
            let text = format!(
                "{:?} is in group {:?} and {name:?} in group {:?}; no traffic crosses groups, \
                 put both into one",
                vm.name, vm.group, target.group
            );
            Some((text, raw_target.into_iter().chain([raw]).flat_map(|vm| places(&vm.group)).collect()))
        } else if !target.takes_connections() {
            let text =
                format!("{name:?} takes no connections; give it vsock = \"vmci\", \"virtio\" or \"hybrid\"");
            Some((text, raw_target.map(|target| places(&target.vsock)).unwrap_or_default()))
        } else {
            None
        }
    }
}
