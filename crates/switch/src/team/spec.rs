//! How a team is configured, and what others may see of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use vmlane_port::PortId;
use vmlane_stats::counters;

/// Members that a team may have, those on standby included.
pub const MOST_MEMBERS: usize = 8;

/// Which of a team's members a frame leaves through (VMware's load balancing policies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TeamPolicy {
    /// By the sender's port: ports are spread evenly.
    #[default]
    Port,
    /// By the frame's source address.
    Mac,
    /// By the source and destination of the IP packet, or by the source address if it is none. The physical
    /// switch takes the links for one (a static channel).
    IpHash,
    /// The first one whose link is up.
    Failover,
}

impl TeamPolicy {
    /// As in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            TeamPolicy::Port => "port",
            TeamPolicy::Mac => "mac",
            TeamPolicy::IpHash => "ip-hash",
            TeamPolicy::Failover => "failover",
        }
    }
}

/// One uplink of a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamMember {
    /// The uplink's name.
    pub name: String,
    /// None: the uplink could not be had.
    pub port: Option<PortId>,
}

/// Uplinks that serve as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamSpec {
    /// Unique among teams.
    pub name: String,
    /// How senders are spread.
    pub policy: TeamPolicy,
    /// The preferred ones first, then those on standby; at most [`MOST_MEMBERS`], each in this team alone.
    pub members: Vec<TeamMember>,
    /// How many of `members`, from the last on, are on standby: each takes the place of one that fails.
    pub standby: usize,
    /// A member whose link is up again takes its place back. Otherwise it waits until another one fails.
    pub failback: bool,
    /// The network is notified (RARP) which member an address has moved to.
    pub notify: bool,
}

impl TeamSpec {
    /// Is member number `at` on standby?
    pub fn is_standby(&self, at: usize) -> bool {
        at + self.standby >= self.members.len()
    }
}

/// What a member does, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Frames leave through it.
    Active,
    /// Its link is up, and others come before it.
    Standby,
    /// Its link is up again, and it does not take its place back (`failback = false`).
    Recovered,
    /// Its interface has no link, or is down.
    LinkDown,
    /// The operator set its link down.
    SetDown,
    /// Nothing is attached to its port: the interface is gone.
    Detached,
    /// The uplink could not be had.
    Missing,
}

impl MemberState {
    const ALL: [MemberState; 7] = [
        MemberState::Active,
        MemberState::Standby,
        MemberState::Recovered,
        MemberState::LinkDown,
        MemberState::SetDown,
        MemberState::Detached,
        MemberState::Missing,
    ];

    /// For an operator.
    pub fn reason(self) -> &'static str {
        match self {
            MemberState::Active => "active",
            MemberState::Standby => "standby",
            MemberState::Recovered => "up again, waits because failback is off",
            MemberState::LinkDown => "link down",
            MemberState::SetDown => "set down by the operator",
            MemberState::Detached => "interface gone",
            MemberState::Missing => "not attached, see the report of the last reload",
        }
    }
}

counters! {
    /// What became of a team.
    pub struct TeamStats {
        /// A member that was in use lost its link.
        failovers,
        /// A member took its place back.
        failbacks,
        /// Frames that notified the network where an address is now.
        notified,
        /// Addresses of which the network was not notified: too many at once.
        not_notified,
    }
}

/// What others may see of a team without asking the worker.
#[derive(Debug)]
pub struct TeamState {
    members: Vec<AtomicU8>,
    pub stats: Arc<TeamStats>,
}

impl TeamState {
    pub fn new(spec: &TeamSpec, stats: Arc<TeamStats>) -> TeamState {
        let members = spec.members.iter().map(|_| AtomicU8::new(MemberState::Missing as u8)).collect();
        TeamState { members, stats }
    }

    pub fn set(&self, at: usize, state: MemberState) {
        if let Some(member) = self.members.get(at) {
            member.store(state as u8, Ordering::Relaxed);
        }
    }

    pub fn members(&self) -> Vec<MemberState> {
        let state =
            |number: &AtomicU8| MemberState::ALL.get(usize::from(number.load(Ordering::Relaxed))).copied();
        self.members.iter().map(|number| state(number).unwrap_or(MemberState::Missing)).collect()
    }
}

/// A team as it is.
#[derive(Clone, Debug)]
pub struct TeamView {
    pub spec: TeamSpec,
    /// Of each of its members.
    pub members: Vec<MemberState>,
    pub stats: Arc<TeamStats>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_as_it_was_stored() {
        let member = TeamMember { name: "up".into(), port: None };
        let spec = TeamSpec {
            name: "t".into(),
            policy: TeamPolicy::Port,
            members: vec![member; 8],
            standby: 1,
            failback: true,
            notify: true,
        };
        let state = TeamState::new(&spec, Arc::default());
        (0..).zip(MemberState::ALL).for_each(|(at, one)| state.set(at, one));
        assert_eq!(&state.members()[..7], MemberState::ALL);
        assert_eq!([spec.is_standby(6), spec.is_standby(7)], [false, true]);
    }
}
