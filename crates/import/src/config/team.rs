//! Uplinks of a switch, and the team that they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::hosts::{Merged, uplinks};
use super::output::Output;
use crate::esxi::{Balancing, Failover, Host};
use crate::names::{Names, quoted};
use crate::network::Switch;

/// Members of a team, at most.
const MOST_MEMBERS: usize = 8;
/// The kernel's bound on names of interfaces.
const LONGEST_INTERFACE: usize = 15;

/// Which adapters are used, the preferred ones first.
#[derive(Debug, Default)]
struct Team {
    active: Vec<String>,
    standby: Vec<String>,
    failover: Failover,
}

/// Writes a switch's uplinks as questions, and their team. Returns the adapters that are written.
pub fn write(switch: &Merged<'_>, name: &str, out: &mut Output) -> Vec<String> {
    note_differences(switch, name, out);
    let team = team(switch, name, out);
    let members: Vec<String> = team.active.iter().chain(&team.standby).cloned().collect();
    let written: BTreeMap<&str, String> =
        members.iter().map(|adapter| (adapter.as_str(), write_uplink(switch, name, adapter, out))).collect();
    if members.len() > 1 {
        write_team(&team, name, &written, out);
    }
    members
}

/// Uplinks of other hosts than the one whose are written.
fn note_differences(switch: &Merged<'_>, name: &str, out: &mut Output) {
    let Some((host, part)) = switch.first() else { return };
    for (other, of_other) in switch.parts.iter().filter(|(other, _)| !std::ptr::eq(*other, host)) {
        let is_same =
            uplinks(of_other) == uplinks(part) && of_other.policies.failover == part.policies.failover;
        if !is_same && !uplinks(of_other).is_empty() {
            out.note(
                format!("{}: uplinks of {name}: {}", other.name, uplinks(of_other).join(", ")),
                format!("are left out with their team: those of {} are written", host.name),
            );
        }
    }
}

/// Returns the uplink's name.
fn write_uplink(switch: &Merged<'_>, on: &str, adapter: &str, out: &mut Output) -> String {
    let name = out.names.take(adapter, "uplink");
    let interface = interface(&name, &mut out.interfaces);
    let _ = writeln!(
        out.toml,
        "# {}\n[[uplink]]\nname = {}\ninterface = {}\nswitch = {}\n",
        question(switch, adapter),
        quoted(&name),
        quoted(&interface),
        quoted(on)
    );
    name
}

/// What the new host's interface replaces, on each host that has it.
fn question(switch: &Merged<'_>, adapter: &str) -> String {
    let of = |host: &Host| {
        let found = host.adapters.iter().find(|known| known.name == adapter);
        let mac = found.map_or_else(|| "MAC not listed".into(), |known| format!("MAC {}", known.mac));
        format!("{}: {mac}", host.name)
    };
    let has = |part: &&(&Host, &_)| uplinks(part.1).iter().any(|name| name == adapter);
    let hosts: Vec<String> = switch.parts.iter().filter(has).map(|(host, _)| of(host)).collect();
    let text = format!("Was {adapter} ({}). Which interface of this host takes its place?", hosts.join("; "));
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// A name that the kernel takes.
fn interface(uplink: &str, taken: &mut Names) -> String {
    let fits = uplink.len() <= LONGEST_INTERFACE;
    let name = taken.take(if fits { uplink } else { "uplink" }, "uplink");
    if name.len() <= LONGEST_INTERFACE { name } else { taken.take("up", "up") }
}

fn write_team(team: &Team, of: &str, written: &BTreeMap<&str, String>, out: &mut Output) {
    let list = |adapters: &[String]| {
        let names = adapters.iter().filter_map(|adapter| written.get(adapter.as_str()));
        names.map(|name| quoted(name)).collect::<Vec<_>>().join(", ")
    };
    let name = out.names.take(&format!("{of}-uplinks"), "team");
    let _ = writeln!(out.toml, "[[team]]\nname = {}\nuplinks = [{}]", quoted(&name), list(&team.active));
    if !team.standby.is_empty() {
        let _ = writeln!(out.toml, "standby = [{}]", list(&team.standby));
    }
    let balancing = team.failover.balancing.clone().and_then(Result::ok).unwrap_or(Balancing::Port);
    let _ = writeln!(out.toml, "policy = {}", quoted(balancing.word()));
    for (key, value) in [("failback", team.failover.failback), ("notify", team.failover.notify)] {
        if let Some(value) = value {
            let _ = writeln!(out.toml, "{key} = {value}");
        }
    }
    out.toml.push('\n');
}

/// The policy of the switch. A distributed one has none of its own: its first port group's is taken.
fn policy(switch: &Merged<'_>) -> Option<Failover> {
    match switch.of {
        Switch::Distributed(_) => switch.groups.iter().find_map(|group| group.policies.failover.clone()),
        _ => switch.first()?.1.policies.failover.clone(),
    }
}

fn team(switch: &Merged<'_>, name: &str, out: &mut Output) -> Team {
    let all = switch.first().map(|(_, part)| uplinks(part).to_vec()).unwrap_or_default();
    let listed = policy(switch);
    if listed.is_none() && all.len() > 1 {
        out.note(
            format!("{name}: the team of its uplinks"),
            "is not listed: all are active, by the port of the sender, as ESXi has it if nothing else is set",
        );
    }
    let failover = listed.unwrap_or_default();
    note_policy(switch, name, &failover, out);
    // Each once, whatever the listing has.
    let mut left: BTreeSet<String> = all.iter().cloned().collect();
    let mut known = |names: &[String]| -> Vec<String> {
        names.iter().filter(|name| left.remove(*name)).cloned().collect()
    };
    let (active, standby) = (known(&failover.active), known(&failover.standby));
    let mut team = Team { active, standby, failover };
    team.complete(&all, name, out);
    team
}

impl Team {
    /// What a team of vmlane needs, and what it cannot have.
    fn complete(&mut self, all: &[String], name: &str, out: &mut Output) {
        if self.active.is_empty() && self.standby.is_empty() {
            self.active = all.to_vec();
        }
        if self.active.is_empty() && !self.standby.is_empty() {
            self.active.push(self.standby.remove(0));
            out.note(
                format!("{name}: {}", self.active.join(", ")),
                "was on standby, and there was no active uplink: is an active one",
            );
        }
        let is_unused = |adapter: &&String| !self.active.contains(adapter) && !self.standby.contains(adapter);
        let unused: Vec<&str> = all.iter().filter(is_unused).map(String::as_str).collect();
        if !unused.is_empty() {
            out.note(format!("{name}: {}", unused.join(", ")), "was not used by the team: is left out");
        }
        let count = self.active.len() + self.standby.len();
        if count > MOST_MEMBERS {
            let then = "are more than a team of vmlane has: those after the eighth are left out";
            out.note(format!("{name}: {count} uplinks"), then);
            self.active.truncate(MOST_MEMBERS);
            self.standby.truncate(MOST_MEMBERS - self.active.len());
        }
    }
}

/// What of a policy is otherwise.
fn note_policy(switch: &Merged<'_>, name: &str, failover: &Failover, out: &mut Output) {
    if let Some(Err(text)) = &failover.balancing {
        out.note(format!("{name}: load balancing {text:?}"), "is not vmlane's: is by the port of the sender");
    }
    if failover.beacon {
        out.note(
            format!("{name}: failures found by beacon probes"),
            "are found by the state of the link instead",
        );
    }
    let groups = switch.groups.iter();
    for group in groups.filter(|group| group.policies.failover.as_ref().is_some_and(|own| own != failover)) {
        out.note(
            format!("{name}: port group {:?}: its own order or policy of uplinks", group.name),
            "is left out: in vmlane, a team is one for its switch",
        );
    }
}
