//! CIDs of other hosts: who answers for them, and which groups may talk to them.

use std::sync::Arc;

use crate::address::Cid;
use crate::policy::Vm;
use crate::registry::Endpoint;

/// CIDs that another host owns.
#[derive(Clone)]
pub struct RemoteRange {
    /// The first.
    pub first: Cid,
    /// The last.
    pub last: Cid,
    /// Groups whose VMs may talk to them.
    pub groups: Arc<[String]>,
    /// What answers for them.
    pub endpoint: Arc<dyn Endpoint>,
}

/// What another host says of a client of its own: the word of that host, within what the configuration lets it speak for.
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
    /// May this client talk to `vm`?
    pub fn may_talk(&self, vm: &Vm) -> bool {
        self.groups.contains(&vm.group)
            && (!self.restricted || vm.trusted)
            && (!vm.restricted || self.trusted)
    }
}

/// All ranges, in order; none overlap.
#[derive(Default)]
pub(crate) struct Remotes(Vec<RemoteRange>);

impl Remotes {
    pub fn new(mut ranges: Vec<RemoteRange>) -> Remotes {
        ranges.sort_by_key(|range| range.first);
        Remotes(ranges)
    }

    pub fn find(&self, cid: Cid) -> Option<&RemoteRange> {
        let behind = self.0.partition_point(|range| range.first <= cid);
        self.0.get(behind.checked_sub(1)?).filter(|range| cid <= range.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Call, ConnectError};

    struct Unreached;
    impl Endpoint for Unreached {
        fn requested(&self, _: Call, _: Option<u64>) -> Result<(), ConnectError> {
            Err(ConnectError::Unreachable)
        }
    }

    #[test]
    fn a_cid_is_found_in_its_range_only() {
        let range =
            |first, last| RemoteRange { first, last, groups: Arc::new([]), endpoint: Arc::new(Unreached) };
        let remotes = Remotes::new(vec![range(100, 199), range(10, 10), range(200, 299)]);
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
            assert_eq!(remotes.find(cid).map(|range| range.first), first, "{cid}");
        }
    }

    #[test]
    fn a_claim_holds_within_its_groups_and_restrictions() {
        let vm = |group: &str, restricted, trusted| Vm {
            cid: 5,
            group: group.into(),
            restricted,
            trusted,
            connections: 1,
            forwards: Vec::new(),
            parent: None,
        };
        let claim = |restricted, trusted| Claim { groups: vec!["a".into(), "b".into()], restricted, trusted };
        assert!(claim(false, false).may_talk(&vm("a", false, false)));
        assert!(!claim(false, true).may_talk(&vm("c", false, true)));
        assert!(!claim(true, false).may_talk(&vm("b", false, false)));
        assert!(claim(true, false).may_talk(&vm("b", false, true)));
        assert!(!claim(false, false).may_talk(&vm("b", true, false)));
        assert!(claim(false, true).may_talk(&vm("b", true, false)));
    }
}
