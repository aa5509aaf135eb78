//! Resources of the well-known context, by the VMs that asked for them first.
//!
//! Guests change it under the hypervisor's lock, so what one asks for takes the same time however many other
//! VMs have.

use std::collections::{BTreeSet, HashMap};

/// A VM as far as it matters here: its isolation group and its CID.
pub(super) type Member<'a> = (&'a str, u32);

#[derive(Default)]
pub(super) struct WellKnown {
    /// By group, then by resource: who has it.
    owners: HashMap<String, HashMap<u32, u32>>,
    /// By context: what it has.
    resources: HashMap<u32, BTreeSet<u32>>,
}

impl WellKnown {
    pub fn owner(&self, group: &str, resource: u32) -> Option<u32> {
        self.owners.get(group)?.get(&resource).copied()
    }

    pub fn is_of(&self, cid: u32, resource: u32) -> bool {
        self.resources.get(&cid).is_some_and(|own| own.contains(&resource))
    }

    pub fn count_of(&self, cid: u32) -> usize {
        self.resources.get(&cid).map_or(0, BTreeSet::len)
    }

    /// False: a VM of the group has it.
    pub fn take(&mut self, (group, cid): Member<'_>, resource: u32) -> bool {
        if self.owner(group, resource).is_some() {
            return false;
        }
        self.owners.entry(group.to_owned()).or_default().insert(resource, cid);
        self.resources.entry(cid).or_default().insert(resource);
        true
    }

    /// False: it is not this VM's.
    pub fn give_up(&mut self, (group, cid): Member<'_>, resource: u32) -> bool {
        if self.owner(group, resource) != Some(cid) {
            return false;
        }
        if let Some(owners) = self.owners.get_mut(group) {
            owners.remove(&resource);
            if owners.is_empty() {
                self.owners.remove(group);
            }
        }
        if let Some(own) = self.resources.get_mut(&cid) {
            own.remove(&resource);
            if own.is_empty() {
                self.resources.remove(&cid);
            }
        }
        true
    }

    /// Everything that a VM has is free again. Returns what that was.
    pub fn give_up_all(&mut self, vm: Member<'_>) -> BTreeSet<u32> {
        let all = self.resources.get(&vm.1).cloned().unwrap_or_default();
        for &resource in &all {
            self.give_up(vm, resource);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_vm_has_is_counted_no_matter_what_others_have() {
        let mut all = WellKnown::default();
        for cid in 3..1003 {
            assert!((0..64).all(|resource| all.take(("others", cid), 64 * cid + resource)));
        }
        assert!(all.take(("own", 5000), 7) && all.take(("own", 5000), 8));
        assert!(!all.take(("own", 5001), 7) && all.take(("others", 5001), 7), "a group's own");
        assert_eq!([5000, 5001, 5002].map(|cid| all.count_of(cid)), [2, 1, 0]);
        assert!(!all.give_up(("own", 5001), 7) && all.give_up(("own", 5000), 7) && !all.is_of(5000, 7));
        assert_eq!(all.give_up_all(("own", 5000)), BTreeSet::from([8]));
        assert_eq!((all.owner("own", 8), all.count_of(5000)), (None, 0));
        for cid in 3..1003 {
            assert_eq!(all.give_up_all(("others", cid)).len(), 64);
        }
        assert!(all.give_up(("others", 5001), 7) && all.owners.is_empty() && all.resources.is_empty());
    }
}
