//! Who may ask the daemon what at the control socket.
//!
//! Root and the daemon's own user may ask everything. Others may what the configuration's `[[control]]`
//! grants to their user or group: to see everything (`observe`), to see their own VMs (`own`), or everything
//! (`admin`).

use vmlane_access::{Owner, Peer};
pub use vmlane_api::May;
use vmlane_api::{Call, ErrorCode, Failure, Ports, Stats, Status, VmList};
use vmlane_config::{Config, ControlRule};

/// The configuration of the control socket, and of VMs' owners.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The daemon's own.
    user: u32,
    rules: Vec<ControlRule>,
    owners: Vec<(String, Owner)>,
}

impl Policy {
    pub fn new(user: u32, config: &Config) -> Policy {
        let owners = config.vms.iter().filter_map(|vm| Some((vm.name.clone(), vm.owner?)));
        Policy { user, rules: config.control.clone(), owners: owners.collect() }
    }

    /// What a process may, if anything.
    pub fn may(&self, peer: &Peer) -> Option<May> {
        if peer.uid == 0 || peer.uid == self.user {
            return Some(May::Admin);
        }
        self.rules.iter().filter(|rule| rule.concerns(peer)).map(|rule| rule.may).max()
    }

    /// Is it allowed? If so, what it may see.
    pub fn check(&self, call: &Call, peer: &Peer) -> Result<View, Failure> {
        let Some(may) = self.may(peer) else { return Err(stranger(peer)) };
        let row = call.row();
        if may < row.needs {
            let (method, needed) = (row.plain_name(), row.needs.name());
            let (uid, have) = (peer.uid, may.name());
            let message = format!(
                "{method} needs the permission {needed:?}, and user {uid} has {have:?}; run it as root, or have this in \
                 the configuration and reload: [[control]] uid = {uid}, may = {needed:?}"
            );
            return Err(Failure { code: ErrorCode::Forbidden, message });
        }
        let own = self.owners.iter().filter(|(_, owner)| owner.includes(peer));
        Ok(View { own: (may == May::Own).then(|| own.map(|(name, _)| name.clone()).collect()) })
    }
}

/// To a process that may ask nothing.
pub fn stranger(peer: &Peer) -> Failure {
    let message = format!(
        "user {0} may not ask this daemon; root may, and the user who runs it. Others need in its configuration: \
         [[control]] uid = {0}, may = \"observe\" (or \"own\", or \"admin\")",
        peer.uid
    );
    Failure { code: ErrorCode::Forbidden, message }
}

/// What of an answer a process may see.
#[derive(Clone, Debug)]
pub struct View {
    /// The VMs it may see; None: everything.
    own: Option<Vec<String>>,
}

impl View {
    /// Everything.
    #[cfg(test)]
    pub fn all() -> View {
        View { own: None }
    }

    fn sees(&self, vm: &str) -> bool {
        self.own.as_ref().is_none_or(|own| own.iter().any(|name| name == vm))
    }

    pub fn of_status(&self, mut status: Status) -> Status {
        status.vms.retain(|vm| self.sees(&vm.name));
        if self.own.is_some() {
            status.watched.clear();
            status.teams.clear();
            status.uplinks.clear();
            status.peers.clear();
        }
        status
    }

    pub fn of_vms(&self, mut list: VmList) -> VmList {
        list.vms.retain(|vm| self.sees(&vm.name));
        list
    }

    /// Without counters that several VMs share.
    pub fn of_stats(&self, mut stats: Stats) -> Stats {
        stats.vms.retain(|vm| self.sees(&vm.name));
        if self.own.is_some() {
            let vms = std::mem::take(&mut stats.vms);
            let uptime_seconds = stats.uptime_seconds;
            stats = Stats { uptime_seconds, vms, ..Stats::default() };
        }
        stats
    }

    /// A connection is seen by the owners of both its ends.
    pub fn of_ports(&self, mut ports: Ports) -> Ports {
        ports.connections.retain(|one| self.sees(&one.client_vm) || self.sees(&one.server_vm));
        // A NIC's port is called `VM/nicN`; an uplink belongs to no VM.
        ports.switch.retain(|port| {
            let vm = port.name.rsplit_once('/').map(|(vm, _)| vm);
            self.own.is_none() || port.kind == "nic" && vm.is_some_and(|vm| self.sees(vm))
        });
        if self.own.is_some() {
            ports.wires.clear();
            ports.mirrors.clear();
            ports.teams.clear();
        }
        ports
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vmlane_api::{CALLS, call};

    use super::*;

    fn peer(uid: u32) -> Peer {
        Peer { pid: 1, uid, gid: 100, groups: vec![27] }
    }

    fn policy() -> Policy {
        let text = "[[control]]\nuid = 1000\nmay = \"observe\"\n[[control]]\ngid = 27\nmay = \"own\"\n\
            [[control]]\nuid = 1001\nmay = \"admin\"\n[[control]]\nuid = 1002\ngid = 9\nmay = \"admin\"\n\
            [[vm]]\nname = \"a\"\ncid = 3\nowner = \"1003\"\n[[vm]]\nname = \"b\"\ncid = 4\n";
        Policy::new(990, &Config::parse(Path::new("t.toml"), text).unwrap())
    }

    #[test]
    fn only_an_admin_changes_anything() {
        let others = CALLS.iter().filter(|row| row.needs != May::Admin).map(|row| row.name);
        assert_eq!(others.collect::<Vec<_>>(), ["Ping", "Status", "Stats", "Ports", "VmList"]);
    }

    #[test]
    fn the_highest_permission_counts_and_root_and_the_daemons_user_have_all() {
        let policy = policy();
        for uid in [0, 990, 1001] {
            assert_eq!(policy.may(&peer(uid)), Some(May::Admin), "{uid}");
        }
        assert_eq!(policy.may(&peer(1000)), Some(May::Observe));
        assert_eq!(policy.may(&peer(1002)), Some(May::Own), "not in group 9");
        assert_eq!(policy.may(&Peer { groups: vec![], ..peer(1003) }), None, "owning a VM is no permission");
    }

    #[test]
    fn a_refusal_names_what_is_missing_and_how_to_get_it() {
        let failure = policy().check(&Call::Reload(call::Reload {}), &peer(1000)).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Forbidden);
        for word in
            ["reload needs the permission \"admin\"", "user 1000 has \"observe\"", "[[control]] uid = 1000"]
        {
            assert!(failure.message.contains(word), "{failure}");
        }
        let failure =
            policy().check(&Call::Ping(call::Ping {}), &Peer { groups: vec![], ..peer(5) }).unwrap_err();
        assert!(failure.message.contains("[[control]] uid = 5, may = \"observe\""), "{failure}");
    }

    #[test]
    fn an_owner_sees_own_vms_and_nothing_of_others() {
        let view = policy().check(&Call::Status(call::Status {}), &peer(1003)).unwrap();
        assert_eq!(view.own.as_deref(), Some(&["a".to_owned()][..]));
        let port = |name: &str, kind: &str| {
            format!(
                "{{\"name\":\"{name}\",\"kind\":\"{kind}\",\"group\":\"g\",\"vlan\":\"1\",\"mac\":\"-\",\"active\":true,\
             \"tx_frames\":0,\"rx_frames\":0,\"dropped\":0}}"
            )
        };
        let end = |client: &str, server: &str| {
            format!(
                "{{\"client_vm\":\"{client}\",\"client_cid\":3,\"client_port\":1,\"server_vm\":\"{server}\",\
             \"server_cid\":4,\"server_port\":2,\"state\":\"open\"}}"
            )
        };
        let ports = format!(
            "{{\"connections\":[{},{}],\"switch\":[{},{},{}]}}",
            end("a", "b"),
            end("b", "b"),
            port("a/nic0", "nic"),
            port("b/nic0", "nic"),
            port("a/nic0", "uplink")
        );
        let ports: Ports = serde_json::from_str(&ports).unwrap();
        let seen = view.of_ports(ports.clone());
        assert_eq!((seen.connections.len(), seen.switch.len()), (1, 1));
        let vm = |name: &str| {
            format!(
                "{{\"name\":\"{name}\",\"group\":\"g\",\"vsock\":\"none\",\"nics\":0,\"attached\":false,\"added\":true,\
             \"file\":\"\",\"line\":1}}"
            )
        };
        let vms: VmList = serde_json::from_str(&format!("{{\"vms\":[{},{}]}}", vm("a"), vm("b"))).unwrap();
        assert_eq!(view.of_vms(vms).vms.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(View::all().of_ports(ports.clone()), ports);
    }
}
