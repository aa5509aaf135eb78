//! A VM with a virtio-vsock device, as configured: whom it may reach, and where that is.

use crate::vmci::Forward;
use vmlane_wire::vmci::CID_HOST;

/// A VM with a virtio-vsock device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VsockVm {
    pub cid: u32,
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
    pub parent: Option<u32>,
}

impl VsockVm {
    /// May these two exchange anything?
    pub fn may_talk(&self, other: &VsockVm) -> bool {
        self.group == other.group
            && (!self.restricted || other.trusted)
            && (!other.restricted || self.trusted)
    }

    /// Is `cid` the host, for this VM?
    pub fn calls_host(&self, cid: u32) -> bool {
        cid == CID_HOST || self.parent == Some(cid)
    }

    /// Whom a connect to `to` reaches: CID and port.
    pub fn target(&self, to: (u32, u32)) -> (u32, u32) {
        if !self.calls_host(to.0) {
            return to;
        }
        let forward = self.forwards.iter().find(|forward| forward.port == to.1);
        forward.map_or((CID_HOST, to.1), |forward| (forward.to_cid, forward.to_port))
    }

    /// The CID under which this VM sees `cid`.
    pub fn as_seen(&self, cid: u32) -> u32 {
        self.parent.filter(|_| cid == CID_HOST).unwrap_or(cid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> VsockVm {
        VsockVm {
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
        let enclave = VsockVm { parent: Some(3), ..vm() };
        assert_eq!(enclave.target((3, 9000)), (4, 80));
        assert_eq!(enclave.target((3, 9001)), (2, 9001));
        assert_eq!((enclave.as_seen(2), enclave.as_seen(4), plain.as_seen(2)), (3, 4, 2));
    }

    #[test]
    fn groups_and_restrictions_hold_both_ways() {
        let other = VsockVm { group: "h".into(), ..vm() };
        assert!(!vm().may_talk(&other));
        let restricted = VsockVm { restricted: true, ..vm() };
        let trusted = VsockVm { trusted: true, ..vm() };
        assert!(!restricted.may_talk(&vm()) && !vm().may_talk(&restricted));
        assert!(restricted.may_talk(&trusted) && trusted.may_talk(&restricted));
    }
}
