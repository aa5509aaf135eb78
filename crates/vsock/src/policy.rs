//! Who may talk to whom, and where a forward leads. No traffic of any kind crosses groups.

use std::collections::HashMap;

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

/// Connections that a VM may have at once unless its configuration says otherwise.
pub const DEFAULT_CONNECTIONS: usize = 4096;

/// A VM as policy sees it: all that decides whom it may talk to, and how much. Devices keep this type in what they
/// know of a VM, and no copies of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Its address.
    pub cid: Cid,
    /// Isolation group.
    pub group: String,
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
    /// May these two exchange anything?
    pub fn may_talk(&self, other: &Vm) -> bool {
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

/// All VMs.
#[derive(Default)]
pub(crate) struct Policy {
    vms: HashMap<Cid, Vm>,
}

impl Policy {
    pub fn set(&mut self, vm: Vm) {
        self.vms.insert(vm.cid, vm);
    }

    pub fn remove(&mut self, cid: Cid) {
        self.vms.remove(&cid);
    }

    pub fn vm(&self, cid: Cid) -> Option<&Vm> {
        self.vms.get(&cid)
    }

    /// May these two exchange anything? Which programs of the host may is for [`crate::HostRules`] to say.
    pub fn may_talk(&self, a: Cid, b: Cid) -> bool {
        match (a, b) {
            (HOST, HOST) => false,
            (HOST, other) | (other, HOST) => self.vms.contains_key(&other),
            _ => matches!((self.vm(a), self.vm(b)), (Some(a), Some(b)) if a.may_talk(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> Vm {
        Vm {
            cid: 5,
            group: "g".into(),
            restricted: false,
            trusted: false,
            connections: 10,
            forwards: vec![Forward { port: 9000, to_cid: 4, to_port: 80 }],
            parent: None,
        }
    }

    #[test]
    fn a_forward_leads_elsewhere_and_nothing_else_does() {
        let plain = vm();
        assert_eq!(plain.target((2, 9000)), (4, 80));
        assert_eq!(plain.target((2, 9001)), (2, 9001));
        assert_eq!(plain.target((3, 9000)), (3, 9000));
        let enclave = Vm { parent: Some(3), ..vm() };
        assert_eq!(enclave.target((3, 9000)), (4, 80));
        assert_eq!(enclave.target((3, 9001)), (2, 9001));
        assert_eq!((enclave.as_seen(2), enclave.as_seen(4), plain.as_seen(2)), (3, 4, 2));
    }

    #[test]
    fn groups_and_restrictions_hold_both_ways() {
        let mut policy = Policy::default();
        let all = [
            vm(),
            Vm { cid: 6, group: "h".into(), ..vm() },
            Vm { cid: 7, restricted: true, ..vm() },
            Vm { cid: 8, trusted: true, ..vm() },
            Vm { cid: 9, restricted: true, ..vm() },
        ];
        all.into_iter().for_each(|vm| policy.set(vm));
        let cids = [HOST, 5, 6, 7, 8, 9, 10];
        let pairs = cids.into_iter().flat_map(|a| cids.map(|b| (a, b)));
        let allowed: Vec<_> = pairs.filter(|&(a, b)| policy.may_talk(a, b)).collect();
        let own = [5, 6, 7, 8, 9].map(|cid| (cid, cid));
        let with_host = [5, 6, 7, 8, 9].into_iter().flat_map(|cid| [(HOST, cid), (cid, HOST)]);
        let others = [(5, 8), (7, 8), (9, 8)].into_iter().flat_map(|(a, b)| [(a, b), (b, a)]);
        let mut expected: Vec<_> = own.into_iter().chain(with_host).chain(others).collect();
        expected.sort_unstable();
        assert_eq!(allowed, expected);
    }
}
