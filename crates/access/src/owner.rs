//! A user or a group of the host.

use serde::{Deserialize, Serialize};

use crate::Peer;

/// Who owns a VM, or another thing of the daemon's: a user, the members of a group, or both. Neither: no
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The user's number.
    pub uid: Option<u32>,
    /// The group's number: processes that have it as primary or supplementary group.
    pub gid: Option<u32>,
}

impl Owner {
    /// Is it this user's process, or one of this group?
    pub fn includes(&self, peer: &Peer) -> bool {
        self.uid == Some(peer.uid) || self.gid.is_some_and(|gid| peer.is_in(gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_or_any_member_of_the_group_is_included() {
        let peer = Peer { pid: 1, uid: 1000, gid: 100, groups: vec![20, 30] };
        let included = |uid, gid| Owner { uid, gid }.includes(&peer);
        assert!(included(Some(1000), None) && included(None, Some(100)) && included(None, Some(30)));
        assert!(included(Some(7), Some(20)) && included(Some(1000), Some(7)));
        assert!(!included(Some(7), None) && !included(None, Some(7)) && !included(None, None));
        assert!(!included(Some(100), Some(1000)), "users and groups are different things");
    }
}
