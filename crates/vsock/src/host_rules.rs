//! Which programs of the host may reach which VMs, by user, group and VM group.

use vmlane_access::Peer;

/// One permission. A process has it if all that the rule names fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its user; `None`: any.
    pub uid: Option<u32>,
    /// One of its groups, primary or supplementary; `None`: any.
    pub gid: Option<u32>,
    /// Groups of VMs; `None`: all.
    pub groups: Option<Vec<String>>,
    /// May connect to these VMs, and send them datagrams.
    pub connect: bool,
    /// May listen, and be reached by these VMs.
    pub listen: bool,
    /// May take ports below 1024.
    pub privileged: bool,
}

/// What a process wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAccess<'a> {
    /// To connect, or to send datagrams, to a VM of this group.
    Connect(&'a str),
    /// To listen on this port, for whatever VMs its rules allow.
    Listen(u32),
    /// To be reached by a VM of this group.
    BeReached(&'a str),
}

/// Ports below this one are privileged.
pub const FIRST_FREE_PORT: u32 = 1024;

/// All rules. Root and the daemon's own user need none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRules {
    /// The daemon's own user.
    pub owner: u32,
    /// A process may what one of them grants.
    pub rules: Vec<Rule>,
}

impl HostRules {
    /// Is it one of root's processes, or of the daemon's own user?
    pub fn is_ours(&self, peer: &Peer) -> bool {
        peer.uid == 0 || peer.uid == self.owner
    }

    /// Is it allowed? If not: EACCES.
    pub fn allows(&self, peer: &Peer, access: HostAccess<'_>) -> bool {
        if self.is_ours(peer) {
            return true;
        }
        self.rules.iter().any(|rule| {
            let in_group =
                |group: &str| rule.groups.as_ref().is_none_or(|groups| groups.iter().any(|one| one == group));
            rule.uid.is_none_or(|uid| uid == peer.uid)
                && rule.gid.is_none_or(|gid| peer.is_in(gid))
                && match access {
                    HostAccess::Connect(group) => rule.connect && in_group(group),
                    HostAccess::Listen(port) => rule.listen && (rule.privileged || port >= FIRST_FREE_PORT),
                    HostAccess::BeReached(group) => rule.listen && in_group(group),
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Rule {
        Rule { uid: None, gid: None, groups: None, connect: true, listen: false, privileged: false }
    }

    #[test]
    fn a_rule_grants_what_it_names_and_nothing_else() {
        let user = &Peer { pid: 1, uid: 1000, gid: 100, groups: vec![27] };
        let uid = |uid| Peer { uid, ..user.clone() };
        let rules = |rules| HostRules { owner: 7, rules };
        assert!(!rules(vec![]).allows(user, HostAccess::Connect("a")));
        assert!(rules(vec![]).allows(&uid(7), HostAccess::Listen(22)));
        assert!(rules(vec![]).allows(&uid(0), HostAccess::Listen(22)));
        let by_user = rules(vec![Rule { uid: Some(1000), ..rule() }]);
        assert!(by_user.allows(user, HostAccess::Connect("a")));
        assert!(!by_user.allows(&uid(1001), HostAccess::Connect("a")));
        assert!(
            !by_user.allows(user, HostAccess::Listen(5000))
                && !by_user.allows(user, HostAccess::BeReached("a"))
        );
        let listens = rules(vec![Rule { gid: Some(100), listen: true, connect: false, ..rule() }]);
        assert!(
            listens.allows(user, HostAccess::Listen(5000)) && !listens.allows(user, HostAccess::Listen(22))
        );
        assert!(!listens.allows(user, HostAccess::Connect("a")));
        let supplementary = rules(vec![Rule { gid: Some(27), ..rule() }]);
        assert!(supplementary.allows(user, HostAccess::Connect("a")));
        let without = Peer { groups: vec![28], ..user.clone() };
        assert!(!supplementary.allows(&without, HostAccess::Connect("a")));
        let groups = rules(vec![Rule { groups: Some(vec!["a".into()]), ..rule() }]);
        assert!(
            groups.allows(user, HostAccess::Connect("a")) && !groups.allows(user, HostAccess::Connect("b"))
        );
    }
}
