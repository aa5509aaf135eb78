//! How a port of the switch is configured, in VMware's words.

use std::sync::Arc;
use std::time::Duration;

use vmlane_port::{Filter, PortId, PortStats, VlanSet};
use vmlane_wire::ethernet::{Mac, Tci};

use crate::impair::Impairment;

/// Who tags frames (VMware's three modes of a port group).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum VlanMode {
    /// External switch tagging: the port has no VLAN. Untagged and priority-tagged frames only.
    #[default]
    Untagged,
    /// Virtual switch tagging: the guest sends and receives untagged frames, the switch puts them into
    /// this VLAN (1 to 4094).
    Access(u16),
    /// Virtual guest tagging: the guest tags; VLANs of the set pass. Untagged and priority-tagged
    /// frames count as VLAN 0.
    Trunk(VlanSet),
}

impl VlanMode {
    /// Is the port a member of the VLAN (0: untagged)?
    #[inline]
    pub fn carries(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Untagged => vlan == 0,
            VlanMode::Access(own) => vlan == *own,
            VlanMode::Trunk(set) => set.contains(vlan),
        }
    }

    /// The VLAN of a frame that came in with `tag`; None if the port does not take it.
    #[inline]
    pub(crate) fn ingress(&self, tag: Option<Tci>) -> Option<u16> {
        let vlan = tag.map_or(0, Tci::vlan);
        match self {
            VlanMode::Untagged => (vlan == 0).then_some(0),
            VlanMode::Access(own) => (vlan == 0).then_some(*own),
            VlanMode::Trunk(set) => set.contains(vlan).then_some(vlan),
        }
    }

    /// Does the guest's VLAN filter pass a frame of this VLAN? Only a guest that tags sees VLANs.
    #[inline]
    pub(crate) fn shows(&self, vlan: u16, filter: &Filter) -> bool {
        !matches!(self, VlanMode::Trunk(_)) || filter.promiscuous || filter.accepts_vlan(vlan)
    }

    /// The tag that a receiver sees on a frame of this VLAN that came with `tag`.
    #[inline]
    pub(crate) fn egress_tag(&self, vlan: u16, tag: Option<Tci>) -> Option<Tci> {
        match self {
            // A tag that the switch put on, it takes off again, priority and all.
            VlanMode::Access(_) => None,
            _ if vlan == 0 => tag,
            _ => Some(tag.unwrap_or_default().with_vlan(vlan)),
        }
    }
}

/// What a guest may do. The default is that of a vSphere *standard* switch: promiscuous mode rejected,
/// MAC address changes and forged transmits accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A guest in promiscuous mode sees all frames of its VLANs in its group.
    pub promiscuous: bool,
    /// A guest may use another address than its NIC's permanent one. Otherwise a NIC whose address was
    /// changed receives nothing.
    pub mac_changes: bool,
    /// A guest may send from addresses that are not its NIC's. Those are learned, so that bridges and
    /// nested VMs behind the port (its guest in promiscuous mode) are found.
    pub forged_transmits: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { promiscuous: false, mac_changes: true, forged_transmits: true }
    }
}

/// How much a port may carry. The default: any amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bits in a second, each direction for itself.
    pub shape: Shape,
    /// Frames to several that it may send in a second (0: any number); None: as many as [`Settings::floods`]
    /// is set.
    pub floods: Option<u32>,
    /// It gets only multicast that its guest asked for by IGMP or MLD. Uplinks get all.
    pub snoop: bool,
    /// Where frames of several VMs wait for a full or shaped receiver, each VM gets of its room a part in
    /// proportion to this (at least 1); None: [`Traffic::NORMAL_SHARES`].
    pub shares: Option<u16>,
    /// Its guest forwards no frames: where that one believes what is reported of checksums, those that
    /// senders leave out are not computed.
    pub endpoint: bool,
}

impl Traffic {
    /// The shares of a port for which the operator sets none.
    pub const NORMAL_SHARES: u16 = 100;
}

/// A port as the operator wants it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PortSpec {
    /// `VM/NIC`, or a name without a slash. Ports with the same part before the slash have one owner, and
    /// share its part of the worker's time.
    pub name: String,
    /// Isolation group: no frame ever crosses from one to another.
    pub group: String,
    /// Of several switches, the one that it is on: no frame crosses from one to another either.
    pub switch: String,
    /// Permanent address of the NIC behind it; not used for an uplink.
    pub mac: Mac,
    pub vlan: VlanMode,
    pub policy: Policy,
    pub traffic: Traffic,
    /// Leads out of the host: any source address comes in and is learned, unknown addresses go out,
    /// and nothing goes from one uplink to another.
    pub uplink: bool,
    /// It and the one other port beside it are joined as by a cable: what one sends is for the other,
    /// whatever its addresses are, and for no one else. Its source is not judged, nothing is learned, and
    /// nothing is limited as going to several. Both have it; where more than two have it, no frame passes.
    pub direct: bool,
    /// Of an uplink: the network behind it is notified of where addresses are. In a team, the team's own word
    /// counts, too.
    pub notify: bool,
}

/// A port as it is.
#[derive(Clone, Debug)]
pub struct PortView {
    pub id: PortId,
    pub spec: PortSpec,
    /// The number of the worker that moves its frames.
    pub worker: usize,
    /// Something is connected.
    pub attached: bool,
    /// The operator set its link down.
    pub link_down: bool,
    /// The wire that it is an end of is cut.
    pub cut: bool,
    /// What happens to frames on their way to it.
    pub impairment: Impairment,
    /// How many of these are under way.
    pub waiting: u32,
    /// Of a direct port: something is connected at the other end, and the link there is up. True of others.
    pub carrier: bool,
    /// It had no buffers for longer than a frame may wait, and has none yet.
    pub stalled: bool,
    /// The address in force, if something is connected.
    pub mac: Option<Mac>,
    pub stats: Arc<PortStats>,
}

/// An address that was seen behind a port whose own it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedAddress {
    pub port: PortId,
    pub mac: Mac,
    /// 0: untagged.
    pub vlan: u16,
    /// Since it was last seen.
    pub seconds: u32,
}

/// How the worker behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads that move frames, from 1 to [`crate::MOST_WORKERS`]. Each port belongs to one of them.
    pub workers: usize,
    /// Never sleep: a core of its own is spent on latency.
    pub poll: bool,
    /// How long after the last frame it spins and yields, at most; less where others want its core.
    pub spin: Duration,
    /// How long a frame waits for its receiver at most, if its sender sends to other VMs, too.
    pub hold: Duration,
    /// The same for a sender that sends to one VM only: no other one suffers, and a guest that the host keeps
    /// from its processor for some milliseconds loses nothing. A receiver that takes nothing for as long is
    /// stalled.
    pub hold_alone: Duration,
    /// Frames that the ports of one owner may send in a round.
    pub frames: u32,
    /// Bytes, copies counted, likewise.
    pub bytes: usize,
    /// Frames to several (broadcast, multicast, unknown addresses) that a port may send in a second, a
    /// quarter of them at once; those beyond are dropped. A port that sends as many that are dropped for its
    /// own fault is paused for a while. 0: any number. Uplinks are not limited.
    pub floods: u32,
    /// TCP segments that come in one burst are merged to super-frames for receivers that take those whole.
    pub coalesce: bool,
    /// Where no more ports are attached, a worker polls all of them in each round; where there are more,
    /// those that have had something to do lately.
    pub few: usize,
}

impl PortSpec {
    /// Is it in the same isolation group on the same switch? Frames go between such ports only.
    pub(crate) fn is_beside(&self, other: &PortSpec) -> bool {
        (&self.group, &self.switch) == (&other.group, &other.switch)
    }

    /// A name of what ports beside each other have in common. No group's begins with a slash.
    pub(crate) fn network(&self) -> String {
        format!("/{}/{}", self.switch, self.group)
    }
}

#[cfg(test)]
impl PortSpec {
    /// An ordinary port in the group of all others.
    pub fn plain(name: &str, mac: Mac) -> PortSpec {
        PortSpec { name: name.into(), group: "default".into(), mac, ..PortSpec::default() }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            workers: 1,
            poll: false,
            spin: Duration::ZERO,
            hold: Duration::from_millis(5),
            hold_alone: Duration::from_millis(50),
            frames: 64,
            bytes: 256 << 10,
            floods: 0,
            coalesce: true,
            few: 16,
        }
    }
}

impl Settings {
    /// How long a frame may wait. `others`: its sender sends to other VMs, too.
    pub(crate) fn longest_wait(&self, others: bool) -> Duration {
        if others { self.hold } else { self.hold_alone.max(self.hold) }
    }
}

/// What one direction of a port may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits in a second in the long run; at least 1.
    pub average: u64,
    /// The same while a burst lasts; not less than `average`.
    pub peak: u64,
    /// Bytes that may go faster than `average` after silence; at least 1.
    pub burst: u64,
}

/// What a port may carry; None: any amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// From the VM into the switch.
    pub input: Option<Rate>,
    /// From the switch to the VM.
    pub output: Option<Rate>,
}
