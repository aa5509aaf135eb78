//! The listed switches with their port groups, uplinks and teams.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::hosts::{Group, Merged, merge, uplinks};
use super::output::Output;
use super::team;
use crate::esxi::{Host, Policies, Security, Shaping, Unknown, Vlan};
use crate::machine::Note;
use crate::names::quoted;
use crate::network::{Network, Switch};

/// Bits in a second, and bytes, that vmlane takes.
const RATES: std::ops::RangeInclusive<u64> = 1000..=1_000_000_000_000;
const BURSTS: std::ops::RangeInclusive<u64> = 1500..=1 << 32;
/// The MTU that needs no word.
const USUAL_MTU: u32 = 1500;

/// Why the VLAN of a port group may not be listed.
const MISSING: &str = "no listing has its VLAN: add `esxcli network vswitch standard portgroup list`, or for a distributed one \
                       `net-dvs -l` of a host where a VM is in it";

/// What became of a listed port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The port group of vmlane.
    Written(String),
    /// Each of its cards is by itself, and why.
    Alone(String),
}

/// The places of listed networks.
#[derive(Debug, Default)]
pub struct Listed {
    places: BTreeMap<Network, Vec<Place>>,
    pub is_empty: bool,
}

impl Listed {
    /// Where a network is. Err: its cards are alone, and why. None: it is not listed.
    pub fn find(&self, network: &Network) -> Option<Result<&str, String>> {
        match self.places.get(&plain(network))?.as_slice() {
            [Place::Written(name)] => Some(Ok(name)),
            [Place::Alone(why)] => Some(Err(why.clone())),
            _ => Some(Err("the listings have it on several switches".into())),
        }
    }
}

/// Ids have capitals, or not.
fn plain(network: &Network) -> Network {
    match network {
        Network::Distributed { switch, port_group } => {
            Network::Distributed { switch: switch.to_ascii_lowercase(), port_group: port_group.clone() }
        }
        other => other.clone(),
    }
}

/// Writes all that is listed.
pub fn write(hosts: &[Host], out: &mut Output) -> Listed {
    let mut merging = Vec::new();
    let (switches, loose) = merge(hosts, &mut merging);
    let listed = Listed { places: BTreeMap::new(), is_empty: hosts.is_empty() };
    let mut writer = Writer { out, listed };
    switches.iter().for_each(|switch| writer.switch(switch));
    loose.iter().for_each(|group| writer.loose(group));
    writer.out.notes.extend(merging);
    let Writer { listed, .. } = writer;
    hosts.iter().for_each(|host| report(host, out));
    listed
}

/// What of a host's listing is not used.
fn report(host: &Host, out: &mut Output) {
    for note in &host.notes {
        out.note(format!("{}: {}", host.name, note.what), note.then.clone());
    }
    let used: BTreeSet<&String> = host.switches.iter().flat_map(uplinks).collect();
    for adapter in host.adapters.iter().filter(|adapter| !used.contains(&adapter.name)) {
        let what = format!("{}: {} (MAC {})", host.name, adapter.name, adapter.mac);
        out.note(what, "is of no switch: is left out");
    }
}

struct Writer<'a> {
    out: &'a mut Output,
    listed: Listed,
}

impl Writer<'_> {
    /// A switch and all that is on it.
    fn switch(&mut self, switch: &Merged<'_>) {
        let wish = switch.wish();
        let name = self.out.names.take(&wish, "switch");
        let security = switch.first().and_then(|(_, part)| part.policies.security).unwrap_or_default();
        let leads_out = switch.first().is_some_and(|(_, part)| !uplinks(part).is_empty());
        let is_called = switch.of == Switch::Standard(name.clone());
        write_switch(&mut self.out.toml, &name, (!is_called).then_some(&switch.of), security, leads_out);
        let at = self.out.notes.len();
        for group in &switch.groups {
            self.group(switch, &name, group, security);
        }
        let adapters = team::write(switch, &name, self.out);
        self.describe(switch, &name, &adapters, at);
    }

    /// What came along, in front of what did not.
    fn describe(&mut self, switch: &Merged<'_>, name: &str, adapters: &[String], at: usize) {
        let count = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let is_listed = switch.parts.iter().any(|(_, part)| part.uplinks.is_some());
        let uplinks = match adapters {
            [] if !is_listed => "without uplinks, which are in `esxcli network vswitch standard list`".into(),
            [] => "no uplink".into(),
            some => format!("uplinks for {}", some.join(", ")),
        };
        let has_security = |policies: &Policies| policies.security.is_some();
        let is_secured = switch.parts.iter().any(|(_, part)| has_security(&part.policies))
            || switch.groups.iter().any(|group| has_security(&group.policies));
        let security = if is_secured {
            ""
        } else {
            "; its security is not listed: that of a new standard switch applies"
        };
        let groups = count(switch.groups.len(), "port group");
        let then = format!("came along as switch {name:?} with {groups}, {uplinks}{security}");
        self.out.notes.insert(at, Note { what: format!("{}: {}", switch.hosts(), switch.of), then });
        let mtu = switch.parts.iter().find_map(|(_, part)| part.mtu).filter(|mtu| *mtu != USUAL_MTU);
        if let Some(mtu) = mtu {
            self.out.note(
                format!("{name}: MTU {mtu}"),
                format!("is that of the interfaces that you choose: ip link set INTERFACE mtu {mtu}"),
            );
        }
        if switch.parts.len() > 1 && matches!(switch.of, Switch::Standard(_)) {
            self.out.note(
                format!("{name} of {}", switch.hosts()),
                "is one switch: if its uplinks led to different networks, import the hosts one by one",
            );
        }
    }

    fn group(&mut self, switch: &Merged<'_>, on: &str, group: &Group, base: Security) {
        let network = match &switch.of {
            Switch::Distributed(id) => {
                Network::Distributed { switch: id.clone(), port_group: group.name.clone() }
            }
            _ => Network::PortGroup(group.name.clone()),
        };
        let why = match &group.vlan {
            Ok(vlan) => {
                let wish = switch.only.map_or(group.name.clone(), |host| format!("{}-{host}", group.name));
                let name = self.out.names.take(&wish, "network");
                self.write_group(&network, &name, on, vlan, &group.policies.shaping, security(group, base));
                self.place(network, Place::Written(name));
                return;
            }
            Err(unknown) => why(unknown),
        };
        self.unknown(network, group, why, &Vlan::None);
    }

    /// A port group whose switch is not known.
    fn loose(&mut self, group: &Group) {
        let network = Network::PortGroup(group.name.clone());
        let vlan = group.vlan.clone().unwrap_or(Vlan::None);
        self.unknown(network, group, "the listing has it without its switch".into(), &vlan);
    }

    /// A port group that is kept apart: on a switch of its own, or each of its cards.
    fn unknown(&mut self, network: Network, group: &Group, why: String, vlan: &Vlan) {
        if matches!(group.vlan, Err(Unknown::Setting(_) | Unknown::Several)) {
            self.out.note(network.to_string(), format!("{why}; each of its cards has a switch of its own"));
            self.place(network, Place::Alone(why));
            return;
        }
        let name = self.out.names.take(&group.name, "network");
        self.out.note(
            network.to_string(),
            format!("{why}; port group {name:?} has a switch of its own: set its switch and vlan"),
        );
        write_switch(&mut self.out.toml, &name, None, Security::default(), false);
        let security = group.policies.security.unwrap_or_default();
        self.write_group(&network, &name, &name, vlan, &group.policies.shaping, security);
        self.place(network, Place::Written(name));
    }

    fn place(&mut self, network: Network, place: Place) {
        self.listed.places.entry(plain(&network)).or_default().push(place);
    }

    fn write_group(
        &mut self,
        network: &Network,
        name: &str,
        on: &str,
        vlan: &Vlan,
        shaping: &Option<Shaping>,
        security: Security,
    ) {
        let (vlan, loses_untagged) = written(vlan);
        if loses_untagged {
            let what = format!("port group {name:?}: untagged frames beside tagged ones");
            self.out.note(what, "do not pass: vmlane's list of VLANs has tags only");
        }
        begin_group(&mut self.out.toml, network, name, on, &vlan);
        write_security(&mut self.out.toml, security);
        self.shape(name, shaping.as_ref());
        self.out.toml.push('\n');
    }

    fn shape(&mut self, name: &str, shaping: Option<&Shaping>) {
        match shaping {
            Some(Shaping::On { average, peak, burst }) => {
                let fits = RATES.contains(average) && (*average..=*RATES.end()).contains(peak);
                if fits && BURSTS.contains(burst) {
                    let rate = format!("average = {average}, peak = {peak}, burst = {burst}");
                    let _ = writeln!(self.out.toml, "shape = {{ in = {{ {rate} }} }}");
                } else {
                    let rate = format!("{average} and {peak} bits in a second, {burst} bytes");
                    let what = format!("port group {name:?}: shaping to {rate}");
                    self.out.note(what, "is left out: vmlane takes no such values; set shape");
                }
            }
            Some(Shaping::Unusable(text)) => {
                self.out.note(format!("port group {name:?}: shaping {text}"), "is left out: set shape");
            }
            Some(Shaping::Off) | None => {}
        }
    }
}

/// The security of a port group where it is not its switch's.
fn security(group: &Group, base: Security) -> Security {
    let own = group.policies.security.unwrap_or_default();
    let differs = |own: Option<bool>, base: Option<bool>| own.filter(|_| own != base);
    Security {
        promiscuous: differs(own.promiscuous, base.promiscuous),
        mac_changes: differs(own.mac_changes, base.mac_changes),
        forged_transmits: differs(own.forged_transmits, base.forged_transmits),
    }
}

fn why(unknown: &Unknown) -> String {
    match unknown {
        Unknown::NoNumber(text) => {
            format!("the listing has it with the VLAN ID {text:?}, which is no number from 0 to 4095")
        }
        Unknown::Setting(text) => {
            format!("its VLAN setting is {text:?}, which vmlane does not have; untried: private VLANs")
        }
        Unknown::Missing => MISSING.into(),
        Unknown::Several => "the listings have it with different VLANs".into(),
    }
}

/// VLANs as the configuration has them. Is the untagged one beside others lost?
fn written(vlan: &Vlan) -> (String, bool) {
    match vlan {
        Vlan::None => ("0".into(), false),
        Vlan::Tagged(vlan) => (vlan.to_string(), false),
        Vlan::Trunk(vlans) if vlans.is_empty() => (quoted("trunk"), false),
        Vlan::Trunk(vlans) => {
            let tags: Vec<u16> = vlans.iter().copied().filter(|vlan| *vlan > 0).collect();
            let text = if tags.is_empty() { "0".into() } else { format!("{tags:?}") };
            (text, !tags.is_empty() && tags.len() < vlans.len())
        }
    }
}

/// The keys that every port group has. A blank line ends it.
pub fn begin_group(toml: &mut String, network: &Network, name: &str, on: &str, vlan: &str) {
    let _ = writeln!(toml, "[[port_group]]\nname = {}", quoted(name));
    if !network.is_called(name) {
        let _ = writeln!(toml, "# was {network}");
    }
    let _ = writeln!(toml, "switch = {}\nvlan = {vlan}", quoted(on));
}

/// A switch; `was`: what it was, unless that is its name.
pub fn write_switch(
    toml: &mut String,
    name: &str,
    was: Option<&Switch>,
    security: Security,
    leads_out: bool,
) {
    let name = quoted(name);
    if !leads_out {
        let _ =
            writeln!(toml, "# Nothing leads out of it until there is an [[uplink]] with switch = {name}.");
    }
    let _ = writeln!(toml, "[[switch]]\nname = {name}");
    if let Some(was) = was {
        let _ = writeln!(toml, "# was {was}");
    }
    write_security(toml, security);
    toml.push('\n');
}

fn write_security(toml: &mut String, security: Security) {
    let Security { promiscuous, mac_changes, forged_transmits } = security;
    let keys =
        [("promiscuous", promiscuous), ("mac_changes", mac_changes), ("forged_transmits", forged_transmits)];
    for (key, value) in keys {
        if let Some(value) = value {
            let _ = writeln!(toml, "{key} = {value}");
        }
    }
}
