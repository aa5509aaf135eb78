//! `[[team]]`: uplinks that serve as one.

use toml::Spanned;
use vmlane_switch::{MOST_MEMBERS, TeamPolicy};

use crate::notes::{Named, Notes};
use crate::raw::RawTeam;
use crate::uplink::UplinkConfig;

/// One `[[team]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamConfig {
    pub name: String,
    /// Names of uplinks, the preferred ones first; each in this team alone.
    pub uplinks: Vec<String>,
    /// Further ones: each takes the place of one that fails.
    pub standby: Vec<String>,
    pub policy: TeamPolicy,
    /// An uplink whose link is up again takes its place back.
    pub failback: bool,
    /// The network is notified where addresses are now.
    pub notify: bool,
}

impl TeamConfig {
    /// Names of all its uplinks, in the order of preference.
    pub fn members(&self) -> impl Iterator<Item = &String> {
        self.uplinks.iter().chain(&self.standby)
    }
}

pub fn judge(raws: &[Spanned<RawTeam>], uplinks: &[UplinkConfig], notes: &mut Notes<'_>) -> Vec<TeamConfig> {
    let mut teams: Vec<TeamConfig> = Vec::new();
    for (index, spanned) in raws.iter().enumerate() {
        let raw = spanned.get_ref();
        let Some(name) = notes.name_of(Named::Team, index, spanned.span(), &raw.name) else { continue };
        if teams.iter().any(|other| other.name == *name.get_ref()) {
            let text = format!("team: name = {:?} is taken by another one; rename one", name.get_ref());
            notes.conflict(name.span(), &[name.span()], text);
        }
        let key = format!("team {:?}", name.get_ref());
        judge_members(&key, spanned, uplinks, &teams, notes);
        let names = |list: &[Spanned<String>]| list.iter().map(|name| name.get_ref().clone()).collect();
        teams.push(TeamConfig {
            name: name.get_ref().clone(),
            uplinks: names(&raw.uplinks),
            standby: names(&raw.standby),
            policy: notes.word(&key, "policy", &raw.policy, policy, POLICIES).unwrap_or_default(),
            failback: raw.failback.unwrap_or(true),
            notify: raw.notify.unwrap_or(true),
        });
    }
    teams
}

const POLICIES: &str = "\"port\" (by the sender's port), \"mac\" (by its address), \"ip-hash\" (by IP addresses, for a static \
                        channel) or \"failover\" (the first whose link is up)";

fn policy(name: &str) -> Option<TeamPolicy> {
    let known = [TeamPolicy::Port, TeamPolicy::Mac, TeamPolicy::IpHash, TeamPolicy::Failover];
    known.into_iter().find(|policy| policy.name() == name)
}

/// Every member is an uplink, in no team twice, and leads where the others lead.
fn judge_members(
    key: &str,
    spanned: &Spanned<RawTeam>,
    uplinks: &[UplinkConfig],
    others: &[TeamConfig],
    notes: &mut Notes<'_>,
) {
    let RawTeam { uplinks: active, standby, .. } = spanned.get_ref();
    let known = || match uplinks {
        [] => "there are none; add an [[uplink]]".to_owned(),
        all => {
            format!("known are {}", all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", "))
        }
    };
    if active.is_empty() {
        let text = format!(
            "{key}: uplinks = [] names none; write for example uplinks = [\"up0\", \"up1\"] ({})",
            known()
        );
        notes.problem(spanned.span(), text);
    }
    let members: Vec<&Spanned<String>> = active.iter().chain(standby).collect();
    if let Some(last) = members.get(MOST_MEMBERS) {
        let text =
            format!("{key}: uplinks and standby: {} are too many; use at most {MOST_MEMBERS}", members.len());
        notes.problem(last.span(), text);
    }
    let find = |name: &str| uplinks.iter().find(|uplink| uplink.name == name);
    let first = members.first().and_then(|first| find(first.get_ref()));
    for (at, member) in members.iter().enumerate() {
        let name = member.get_ref();
        let member_of = |team: &&TeamConfig| team.members().any(|other| other == name);
        let twice = members.iter().take(at).any(|other| other.get_ref() == name);
        let text = match (find(name), others.iter().find(member_of), first) {
            (None, ..) => {
                let text = format!("{key}: uplinks: there is no uplink {name:?}; {}", known());
                notes.unknown(Named::Uplink, member.span(), text);
                continue;
            }
            (_, Some(team), _) => format!(
                "{key}: uplinks: {name:?} is in team {:?} already; an uplink is in one team, take it out of one",
                team.name
            ),
            (Some(uplink), ..) if uplink.wire().is_some() => format!(
                "{key}: uplinks: {name:?} is an end of wire {:?}; take it out of the team, or of the wire",
                uplink.wire().unwrap_or_default()
            ),
            _ if twice => {
                format!("{key}: uplinks: {name:?} is named twice; take it out once")
            }
            (Some(one), _, Some(first)) if one.group != first.group => format!(
                "{key}: uplinks: {name:?} is in group {:?} and {:?} in group {:?}; no traffic crosses groups, put all \
                 uplinks of a team into one",
                one.group, first.name, first.group
            ),
            (Some(one), _, Some(first)) if one.switch != first.switch => format!(
                "{key}: uplinks: {name:?} is on switch {:?} and {:?} on switch {:?}; put all uplinks of a team on one",
                one.switch, first.name, first.switch
            ),
            (Some(one), _, Some(first)) if one.vlan != first.vlan => format!(
                "{key}: uplinks: {name:?} and {:?} carry other VLANs; give all uplinks of a team the same vlan",
                first.name
            ),
            _ => continue,
        };
        notes.problem(member.span(), text);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    fn parse(teams: &str) -> Result<Config, String> {
        let uplink =
            |name: &str, more: &str| format!("[[uplink]]\nname = \"{name}\"\ntap = \"t-{name}\"\n{more}");
        let uplinks = [
            uplink("up0", ""),
            uplink("up1", ""),
            uplink("up2", ""),
            uplink("other", "group = \"g\"\n"),
            uplink("tagged", "vlan = 7\n"),
        ];
        Config::parse(Path::new("t.toml"), &(uplinks.concat() + teams)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_team_has_defaults_and_keys() {
        let config = parse(
            "[[team]]\nname = \"a\"\nuplinks = [\"up0\"]\n[[team]]\nname = \"b\"\nuplinks = [\"up2\"]\n\
             standby = [\"up1\"]\npolicy = \"failover\"\nfailback = false\nnotify = false\n",
        )
        .unwrap();
        let [a, b] = &config.teams[..] else { panic!("{:?}", config.teams) };
        assert_eq!((a.policy, a.failback, a.notify, a.standby.len()), (TeamPolicy::Port, true, true, 0));
        assert_eq!((b.policy, b.failback, b.notify), (TeamPolicy::Failover, false, false));
        assert_eq!(b.members().collect::<Vec<_>>(), ["up2", "up1"]);
        for policy in ["port", "mac", "ip-hash", "failover"] {
            let config =
                parse(&format!("[[team]]\nname = \"a\"\nuplinks = [\"up0\"]\npolicy = \"{policy}\"\n"))
                    .unwrap();
            assert_eq!(config.teams[0].policy.name(), policy);
        }
    }

    #[test]
    fn mistakes_name_team_value_and_way_out() {
        let team = |keys: &str| format!("[[team]]\nname = \"a\"\n{keys}\n");
        let nine = "\"up0\",".repeat(9);
        for (text, words) in [
            ("[[team]]\nuplinks = [\"up0\"]\n".into(), &["team number 1: name is missing", "add name"][..]),
            (team(""), &["team \"a\": uplinks = [] names none", "known are up0, up1, up2"]),
            (team("uplinks = [\"up9\"]"), &["there is no uplink \"up9\"", "known are up0"]),
            (team("uplinks = [\"up0\", \"up0\"]"), &["\"up0\" is named twice", "take it out"]),
            (team("uplinks = [\"up0\"]\nstandby = [\"up0\"]"), &["\"up0\" is named twice"]),
            (team(&format!("uplinks = [{nine}]")), &["9 are too many; use at most 8"]),
            (
                team("uplinks = [\"up0\", \"other\"]"),
                &["\"other\" is in group \"g\"", "put all uplinks of a team into one"],
            ),
            (team("uplinks = [\"up0\", \"tagged\"]"), &["\"tagged\" and \"up0\"", "the same vlan"]),
            (
                team("uplinks = [\"up0\"]\npolicy = \"lacp\""),
                &["policy = \"lacp\" is unknown", "\"ip-hash\""],
            ),
            (
                [team("uplinks = [\"up0\"]"), team("uplinks = [\"up1\"]")].concat(),
                &["name = \"a\" is taken", "rename one"],
            ),
            (
                [team("uplinks = [\"up0\"]"), team("uplinks = [\"up0\"]").replace("\"a\"", "\"b\"")].concat(),
                &["team \"b\": uplinks: \"up0\" is in team \"a\" already", "take it out of one"],
            ),
            (team("uplinks = [\"up0\"]\nlacp = true"), &["lacp = true: there is no such key"]),
        ] {
            let error = parse(&text).unwrap_err();
            words.iter().for_each(|word| assert!(error.contains(word), "{word:?} is not in {error}"));
        }
        let none = Config::parse(Path::new("t.toml"), &team("uplinks = [\"up0\"]")).unwrap_err().to_string();
        assert!(none.contains("there are none; add an [[uplink]]"), "{none}");
    }
}
