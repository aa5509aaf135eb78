//! Who may what at the control socket: the table `[[control]]`.

use vmlane_access::Peer;
use vmlane_api::May;

/// One `[[control]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlRule {
    pub uid: Option<u32>,
    /// With both, the process must be the user's and in the group.
    pub gid: Option<u32>,
    pub may: May,
}

impl ControlRule {
    pub fn concerns(&self, peer: &Peer) -> bool {
        self.uid.is_none_or(|uid| uid == peer.uid) && self.gid.is_none_or(|gid| peer.is_in(gid))
    }
}
