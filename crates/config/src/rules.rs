//! What users and groups of the host may: at the control socket (`[[control]]`), and with VMs (`[[host]]`).

use toml::Spanned;
use vmlane_access::Peer;
use vmlane_api::May;
use vmlane_vsock::Rule as HostRule;

use crate::notes::Notes;
use crate::owner::IDS;
use crate::raw::{RawControl, RawHost};

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

fn may(name: &str) -> Option<May> {
    [May::Own, May::Observe, May::Admin].into_iter().find(|may| may.name() == name)
}

/// One permission at the control socket.
pub fn control(index: usize, spanned: &Spanned<RawControl>, notes: &mut Notes<'_>) -> ControlRule {
    notes.mark(format!("control {index}"), spanned.span());
    let (raw, number) = (spanned.get_ref(), index + 1);
    if raw.uid.is_none() && raw.gid.is_none() {
        let text = format!(
            "control number {number}: it names neither a user nor a group; add uid = NUMBER or gid = NUMBER"
        );
        notes.problem(spanned.span(), text);
    }
    if raw.may.is_none() {
        let text = format!("control number {number}: may is missing; add \"observe\", \"own\" or \"admin\"");
        notes.problem(spanned.span(), text);
    }
    let may = notes.word("control", "may", &raw.may, may, "\"observe\", \"own\" or \"admin\"");
    ControlRule {
        uid: notes.number("control", "uid", &raw.uid, IDS),
        gid: notes.number("control", "gid", &raw.gid, IDS),
        may: may.unwrap_or(May::Own),
    }
}

/// One permission of host programs.
pub fn host(index: usize, spanned: &Spanned<RawHost>, notes: &mut Notes<'_>) -> HostRule {
    notes.mark(format!("host {index}"), spanned.span());
    let raw = spanned.get_ref();
    HostRule {
        uid: notes.number("host", "uid", &raw.uid, IDS),
        gid: notes.number("host", "gid", &raw.gid, IDS),
        groups: raw.groups.as_ref().map(|groups| notes.names("host", "groups", groups)),
        connect: raw.connect.unwrap_or(true),
        listen: raw.listen.unwrap_or(true),
        privileged: raw.privileged,
    }
}
