//! Teams of uplinks: from the configuration to the switch, and from the switch to the control socket.

use vmlane_api::{TeamMemberStatus, TeamStats, TeamStatus};
use vmlane_config::TeamConfig;
use vmlane_port::PortId;
use vmlane_stats::Counters;
use vmlane_switch::{MemberState, Switch, TeamMember, TeamSpec, TeamView};

use super::Uplinks;
use crate::differences::differences;

impl Uplinks {
    /// Makes the teams these, of the uplinks in force. Returns what was done.
    pub fn set_teams(&mut self, switch: &Switch, wanted: &[TeamConfig]) -> Vec<String> {
        let done = differences("team", &self.teams, wanted, |team| team.name.as_str());
        wanted.clone_into(&mut self.teams);
        self.report_links(switch);
        let port =
            |name: &str| self.known.iter().find(|known| known.config.name == name).map(|known| known.port);
        switch.set_teams(wanted.iter().map(|team| spec(team, port)).collect());
        done
    }
}

/// A team as the switch knows it; `port` finds that of an uplink.
pub fn spec(team: &TeamConfig, port: impl Fn(&str) -> Option<PortId>) -> TeamSpec {
    let member = |name: &String| TeamMember { name: name.clone(), port: port(name) };
    TeamSpec {
        name: team.name.clone(),
        policy: team.policy,
        members: team.members().map(member).collect(),
        standby: team.standby.len(),
        failback: team.failback,
        notify: team.notify,
    }
}

/// All teams, for an operator.
pub fn status(switch: &Switch) -> Vec<TeamStatus> {
    switch.teams().into_iter().map(of_team).collect()
}

/// Their counters.
pub fn stats(switch: &Switch) -> Vec<TeamStats> {
    let counters = |view: TeamView| TeamStats {
        name: view.spec.name,
        team: view.stats.snapshot().into_iter().collect(),
    };
    switch.teams().into_iter().map(counters).collect()
}

fn of_team(view: TeamView) -> TeamStatus {
    let TeamView { spec, members, stats } = view;
    let member = |((at, member), state): ((usize, &TeamMember), &MemberState)| TeamMemberStatus {
        uplink: member.name.clone(),
        standby: spec.is_standby(at),
        active: *state == MemberState::Active,
        why: state.reason().into(),
    };
    TeamStatus {
        name: spec.name.clone(),
        policy: spec.policy.name().into(),
        failback: spec.failback,
        notify: spec.notify,
        members: spec.members.iter().enumerate().zip(&members).map(member).collect(),
        counters: stats.snapshot().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use vmlane_switch::TeamPolicy;

    use super::*;

    fn team(name: &str, uplinks: &[&str]) -> TeamConfig {
        TeamConfig {
            name: name.into(),
            uplinks: uplinks.iter().map(|name| (*name).into()).collect(),
            standby: vec!["spare".into()],
            policy: TeamPolicy::Port,
            failback: true,
            notify: true,
        }
    }

    #[test]
    fn standby_comes_last_and_an_uplink_that_could_not_be_had_has_no_port() {
        let spec = spec(&team("a", &["up0", "up1"]), |name| (name != "up1").then_some(PortId(7)));
        let members: Vec<_> =
            spec.members.iter().map(|one| (one.name.as_str(), one.port.is_some())).collect();
        assert_eq!(members, [("up0", true), ("up1", false), ("spare", true)]);
        assert_eq!(spec.standby, 1);
    }
}
