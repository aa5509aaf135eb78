//! All VMs of the CID space, whichever devices they have, and who may talk to whom. No traffic of any kind
//! crosses groups.
//!
//! What is known at a moment ([`KnownVms`]) never changes: a change of the [`VmTable`] replaces it. Whoever
//! reads takes no lock; what reads for every packet keeps a [`VmReader`].

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use parking_lot::Mutex;
use vmlane_access::Owner;

use crate::address::{Cid, HOST, SockPort, SocketAddress};

/// A second way in: connects of a VM to {CID 2, `port`} reach {`to_cid`, `to_port`}.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The port of the host that the VM's programs connect to.
    pub port: SockPort,
    /// The VM that they reach.
    pub to_cid: Cid,
    /// Its port.
    pub to_port: SockPort,
}

/// Connections that a VM may have at once unless its configuration states otherwise.
pub const DEFAULT_CONNECTIONS: usize = 4096;

/// What is configured of a VM: its names, and all that decides whom it may talk to, and how much. Devices ask
/// the table for it, and keep no copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// What operators call it.
    pub name: String,
    /// Its address.
    pub cid: Cid,
    /// Isolation group.
    pub group: String,
    /// Whose processes may use its sockets, beside root's and those of the daemon's user.
    pub owner: Option<Owner>,
    /// Talks to trusted VMs only.
    pub restricted: bool,
    /// May talk to restricted VMs.
    pub trusted: bool,
    /// Connections that it may have at once.
    pub connections: usize,
    /// Where its connects to the host lead instead.
    pub forwards: Vec<Forward>,
    /// The CID by which it knows the host, beside 2: enclaves call their parent 3.
    pub parent: Option<Cid>,
}

impl Vm {
    /// One with the default limit of connections, and without anything special.
    pub fn new(name: impl Into<String>, cid: Cid, group: impl Into<String>) -> Vm {
        Vm {
            name: name.into(),
            cid,
            group: group.into(),
            owner: None,
            restricted: false,
            trusted: false,
            connections: DEFAULT_CONNECTIONS,
            forwards: Vec::new(),
            parent: None,
        }
    }

    fn may_talk(&self, other: &Vm) -> bool {
        self.cid == other.cid
            || (self.group == other.group
                && (!self.restricted || other.trusted)
                && (!other.restricted || self.trusted))
    }

    /// Is `cid` the host, for this VM?
    pub fn calls_host(&self, cid: Cid) -> bool {
        cid == HOST || self.parent == Some(cid)
    }

    /// The forward that a connect to the host's `port` takes.
    pub fn forward(&self, port: SockPort) -> Option<&Forward> {
        self.forwards.iter().find(|forward| forward.port == port)
    }

    /// Whom a connect to `to` reaches.
    pub fn target(&self, to: SocketAddress) -> SocketAddress {
        if !self.calls_host(to.0) {
            return to;
        }
        self.forward(to.1).map_or((HOST, to.1), |forward| (forward.to_cid, forward.to_port))
    }

    /// The CID under which this VM sees `cid`.
    pub fn as_seen(&self, cid: Cid) -> Cid {
        self.parent.filter(|_| cid == HOST).unwrap_or(cid)
    }
}

/// CIDs that another host owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The first.
    pub first: Cid,
    /// The last.
    pub last: Cid,
    /// Groups whose VMs may talk to them.
    pub groups: Arc<[String]>,
}

/// What another host reports of a client of its own: the word of that host, within what the configuration
/// lets it speak for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Groups that it may talk to: a VM's own; of a program, those that the rules of its host name.
    pub groups: Vec<String>,
    /// Talks to trusted VMs only.
    pub restricted: bool,
    /// May talk to restricted VMs.
    pub trusted: bool,
}

impl Claim {
    fn may_talk(&self, vm: &Vm) -> bool {
        self.groups.contains(&vm.group)
            && (!self.restricted || vm.trusted)
            && (!vm.restricted || self.trusted)
    }
}

/// All VMs, and the CIDs of other hosts, at a moment.
#[derive(Clone, Debug, Default)]
pub struct KnownVms {
    vms: BTreeMap<Cid, Arc<Vm>>,
    /// In order; none overlap, and none has a VM's CID.
    ranges: Arc<[RemoteRange]>,
}

impl KnownVms {
    /// The VM with this CID.
    pub fn get(&self, cid: Cid) -> Option<&Arc<Vm>> {
        self.vms.get(&cid)
    }

    /// The range of another host's CIDs that `cid` is in.
    pub(crate) fn range(&self, cid: Cid) -> Option<&RemoteRange> {
        let behind = self.ranges.partition_point(|range| range.first <= cid);
        self.ranges.get(behind.checked_sub(1)?).filter(|range| cid <= range.last)
    }

    /// May these two exchange anything? Which programs of the host may is for [`crate::HostRules`] to decide;
    /// of a client on another host its host reports more: see `may_connect`.
    pub fn may_talk(&self, a: Cid, b: Cid) -> bool {
        if a == HOST || b == HOST {
            let other = if a == HOST { b } else { a };
            return self.vms.contains_key(&other) || self.range(other).is_some();
        }
        match (self.get(a), self.get(b)) {
            (Some(a), Some(b)) => a.may_talk(b),
            (Some(vm), None) => self.range(b).is_some_and(|range| range.groups.contains(&vm.group)),
            (None, Some(vm)) => self.range(a).is_some_and(|range| range.groups.contains(&vm.group)),
            (None, None) => false,
        }
    }

    /// May this client connect to this server? `claim`: what another host reports of it, if it is one's
    /// there.
    pub(crate) fn may_connect(&self, client: Cid, server: Cid, claim: Option<&Claim>) -> bool {
        let claimed = |claim: &Claim| server == HOST || self.get(server).is_some_and(|vm| claim.may_talk(vm));
        self.may_talk(client, server) && claim.is_none_or(claimed)
    }

    /// The groups that may talk to `cid`: its own, if it is a VM; those that another host's may be reached
    /// by.
    pub fn groups_of(&self, cid: Cid) -> Option<Vec<String>> {
        let own = self.get(cid).map(|vm| vec![vm.group.clone()]);
        own.or_else(|| self.range(cid).map(|range| range.groups.to_vec()))
    }
}

/// Reads what is known at the cost of one load, as long as nothing has changed.
pub type VmReader = Cache<Arc<ArcSwap<KnownVms>>, Arc<KnownVms>>;

/// Why a VM could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Another VM has its CID.
    #[error("CID {cid} belongs to VM {name:?} already")]
    CidTaken {
        /// Both VMs'.
        cid: Cid,
        /// The other one's.
        name: String,
    },
    /// No VM may have its CID.
    #[error("CID {cid} is reserved; VMs have 3 to {max:#x}", max = i32::MAX)]
    CidReserved {
        /// The VM's.
        cid: Cid,
    },
    /// Another VM has its name.
    #[error("a VM named {0:?} exists already")]
    NameTaken(String),
}

/// The one table of VMs. Shared by all that speaks for a CID.
#[derive(Default)]
pub struct VmTable {
    known: Arc<ArcSwap<KnownVms>>,
    /// Held while what is known is replaced.
    changes: Mutex<()>,
}

impl VmTable {
    /// Makes a VM known. Its devices may be created next.
    pub fn add(&self, vm: Vm) -> Result<(), AddError> {
        let cid = vm.cid;
        if cid <= HOST || cid > i32::MAX as u32 {
            return Err(AddError::CidReserved { cid });
        }
        self.change(|known| {
            if let Some(other) = known.vms.get(&cid) {
                return Err(AddError::CidTaken { cid, name: other.name.clone() });
            }
            if known.vms.values().any(|other| other.name == vm.name) {
                return Err(AddError::NameTaken(vm.name));
            }
            known.vms.insert(cid, Arc::new(vm));
            Ok(())
        })
    }

    /// Changes what may change under a running VM: its owner, limits, forwards, privileges. Name, group and
    /// CID stay.
    pub fn update(&self, vm: Vm) {
        self.change(|known| {
            if let Some(before) = known.vms.get_mut(&vm.cid) {
                *before = Arc::new(Vm { name: before.name.clone(), group: before.group.clone(), ..vm });
            }
        });
    }

    /// Forgets a VM. Its connections end by themselves.
    pub fn remove(&self, cid: Cid) {
        self.change(|known| drop(known.vms.remove(&cid)));
    }

    /// Which CIDs are those of other hosts, instead of what was set before; none is a VM's, and none
    /// overlap.
    pub(crate) fn set_ranges(&self, mut ranges: Vec<RemoteRange>) {
        ranges.sort_by_key(|range| range.first);
        self.change(|known| known.ranges = ranges.into());
    }

    fn change<T>(&self, change: impl FnOnce(&mut KnownVms) -> T) -> T {
        let _one_at_a_time = self.changes.lock();
        let mut known = KnownVms::clone(&self.known.load());
        let result = change(&mut known);
        self.known.store(Arc::new(known));
        result
    }

    /// All that is known now.
    pub fn known(&self) -> Arc<KnownVms> {
        self.known.load_full()
    }

    /// See [`VmReader`].
    pub fn reader(&self) -> VmReader {
        Cache::new(self.known.clone())
    }

    /// The VM with this CID, as it is now.
    pub fn get(&self, cid: Cid) -> Option<Arc<Vm>> {
        self.known.load().get(cid).cloned()
    }

    /// See [`KnownVms::may_talk`].
    pub fn may_talk(&self, a: Cid, b: Cid) -> bool {
        self.known.load().may_talk(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(cid: Cid) -> Vm {
        Vm::new(format!("vm-{cid}"), cid, "g")
    }

    fn range(first: Cid, last: Cid, groups: &[&str]) -> RemoteRange {
        RemoteRange { first, last, groups: groups.iter().map(|&group| group.to_owned()).collect() }
    }

    #[test]
    fn a_forward_leads_elsewhere_and_nothing_else_does() {
        let plain = Vm { forwards: vec![Forward { port: 9000, to_cid: 4, to_port: 80 }], ..vm(5) };
        assert_eq!(plain.target((2, 9000)), (4, 80));
        assert_eq!(plain.target((2, 9001)), (2, 9001));
        assert_eq!(plain.target((3, 9000)), (3, 9000));
        let enclave = Vm { parent: Some(3), ..plain.clone() };
        assert_eq!(enclave.target((3, 9000)), (4, 80));
        assert_eq!(enclave.target((3, 9001)), (2, 9001));
        assert_eq!((enclave.as_seen(2), enclave.as_seen(4), plain.as_seen(2)), (3, 4, 2));
    }

    #[test]
    fn groups_and_restrictions_hold_both_ways() {
        let table = VmTable::default();
        let all = [
            vm(5),
            Vm { group: "h".into(), ..vm(6) },
            Vm { restricted: true, ..vm(7) },
            Vm { trusted: true, ..vm(8) },
            Vm { restricted: true, ..vm(9) },
        ];
        all.into_iter().for_each(|vm| table.add(vm).unwrap());
        table.set_ranges(vec![range(100, 199, &["h"]), range(20, 20, &["g", "h"])]);
        let cids = [HOST, 5, 6, 7, 8, 9, 10, 20, 150];
        let pairs = cids.into_iter().flat_map(|a| cids.map(|b| (a, b)));
        let allowed: Vec<_> = pairs.filter(|&(a, b)| table.may_talk(a, b)).collect();
        let both =
            |pairs: &[(Cid, Cid)]| pairs.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect::<Vec<_>>();
        let own = [5, 6, 7, 8, 9].map(|cid| (cid, cid));
        let with_host = both(&[5, 6, 7, 8, 9, 20, 150].map(|cid| (HOST, cid)));
        let others = both(&[(5, 8), (7, 8), (9, 8), (6, 150), (5, 20), (6, 20), (7, 20), (8, 20), (9, 20)]);
        let mut expected = [own.to_vec(), with_host, others].concat();
        expected.sort_unstable();
        assert_eq!(allowed, expected);
        assert_eq!(table.known().groups_of(20), Some(vec!["g".into(), "h".into()]));
        assert_eq!((table.known().groups_of(6), table.known().groups_of(10)), (Some(vec!["h".into()]), None));
    }

    #[test]
    fn a_cid_is_found_in_its_range_only() {
        let table = VmTable::default();
        table.set_ranges(vec![range(100, 199, &[]), range(10, 10, &[]), range(200, 299, &[])]);
        for (cid, first) in [
            (9, None),
            (10, Some(10)),
            (11, None),
            (99, None),
            (100, Some(100)),
            (199, Some(100)),
            (200, Some(200)),
            (300, None),
        ] {
            assert_eq!(table.known().range(cid).map(|range| range.first), first, "{cid}");
        }
    }

    #[test]
    fn a_claim_holds_within_its_groups_and_restrictions() {
        let vm = |group: &str, restricted, trusted| Vm { restricted, trusted, ..Vm::new("vm", 5, group) };
        let claim = |restricted, trusted| Claim { groups: vec!["a".into(), "b".into()], restricted, trusted };
        assert!(claim(false, false).may_talk(&vm("a", false, false)));
        assert!(!claim(false, true).may_talk(&vm("c", false, true)));
        assert!(!claim(true, false).may_talk(&vm("b", false, false)));
        assert!(claim(true, false).may_talk(&vm("b", false, true)));
        assert!(!claim(false, false).may_talk(&vm("b", true, false)));
        assert!(claim(false, true).may_talk(&vm("b", true, false)));
    }

    /// What an operator may change under a running VM, and what not.
    #[test]
    fn vms_are_added_once_and_changed_in_part() {
        let table = VmTable::default();
        let mut reader = table.reader();
        for cid in [0, 1, 2, 0x8000_0000, u32::MAX] {
            assert_eq!(table.add(vm(cid)), Err(AddError::CidReserved { cid }));
        }
        table.add(vm(3)).unwrap();
        let taken = AddError::CidTaken { cid: 3, name: "vm-3".into() };
        assert_eq!(table.add(Vm { name: "another".into(), ..vm(3) }), Err(taken));
        assert_eq!(table.add(Vm { cid: 4, ..vm(3) }), Err(AddError::NameTaken("vm-3".into())));
        table.update(Vm { connections: 1, ..Vm::new("renamed", 3, "elsewhere") });
        table.update(vm(77));
        assert_eq!(table.get(3).as_deref(), Some(&Vm { connections: 1, ..vm(3) }));
        assert_eq!((reader.load().get(3).cloned(), reader.load().get(77)), (table.get(3), None));
        table.remove(3);
        assert_eq!((table.get(3), reader.load().get(3)), (None, None));
        table.add(vm(3)).unwrap();
    }
}
