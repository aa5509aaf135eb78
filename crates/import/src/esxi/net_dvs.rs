//! Distributed switches, as `net-dvs -l` prints them: the only listing of a host that has their VLANs. Copies
//! have lost their indentation, so it is not used.

use std::collections::BTreeSet;

use super::networks::{Unknown, Vlan};
use super::policy::{Balancing, Failover, Security};

/// A switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dvs {
    pub id: String,
    pub name: Option<String>,
    pub mtu: Option<u32>,
    pub ports: Vec<Port>,
    /// What the switch calls its uplinks, and their ports on this host.
    uplinks: BTreeSet<String>,
    uplink_ports: BTreeSet<String>,
}

/// One of its ports on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    pub number: String,
    pub alias: String,
    pub group: String,
    pub vlan: Option<Result<Vlan, Unknown>>,
    pub security: Option<Security>,
    pub failover: Option<Failover>,
    /// Keys of it that are not read, and may matter.
    pub others: Vec<String>,
}

/// What the next line belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expects {
    #[default]
    Nothing,
    Uplinks,
    UplinkPorts,
    Ranges,
    Teaming,
}

#[derive(Clone, Debug, Default)]
pub struct NetDvs {
    pub switches: Vec<Dvs>,
    expects: Expects,
}

/// Ranges of a trunk: there are no more VLANs.
const MOST_RANGES: usize = 4095;
const GLOBAL: &str = "com.vmware.common.";
const PORT: &str = "com.vmware.common.port.";
const ETHER: &str = "com.vmware.etherswitch.";
/// Keys of a port that are of the moment, or are repeated elsewhere.
const SILENT: [&str; 14] = [
    "connectid",
    "ptAllowed",
    "ptAllowedRT",
    "respools.cfg",
    "statistics",
    "volatile",
    "block",
    "txUplink",
    "dvfilter",
    "linkState",
    "opaqueDvs",
    "persist",
    "ipfix",
    "dvsPort",
];

/// The id of a heading `switch 50 1e ... (etherswitch)`.
pub fn heading(line: &str) -> Option<String> {
    let (id, _) = line.trim().strip_prefix("switch ")?.split_once('(')?;
    let id = id.trim();
    let is_id = id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || b" -".contains(&byte));
    is_id.then(|| id.to_ascii_lowercase())
}

impl NetDvs {
    pub fn line(&mut self, line: &str) {
        let line = line.trim();
        if let Some(id) = heading(line) {
            self.switches.push(Dvs { id, ..Dvs::default() });
            return;
        }
        let Some(switch) = self.switches.last_mut() else { return };
        let number = line.strip_prefix("port ").and_then(|rest| rest.strip_suffix(':'));
        if let Some(number) = number.filter(|number| !number.contains(' ')) {
            switch.ports.push(Port { number: number.to_owned(), ..Port::default() });
            self.expects = Expects::Nothing;
            return;
        }
        // What comes behind a value: `, propType = CONFIG`.
        let ends = line.starts_with("propType");
        let line = line.split("propType").next().unwrap_or(line).trim().trim_end_matches(',').trim_end();
        if ends {
            self.expects = Expects::Nothing;
        } else if line.starts_with("com.vmware.") {
            self.expects = key(switch, line);
        } else {
            continued(switch, self.expects, line);
        }
    }
}

/// A line that begins with a key.
fn key(switch: &mut Dvs, line: &str) -> Expects {
    let (key, value) = line.split_once('=').map_or((line, ""), |(key, value)| (key.trim(), value.trim()));
    let key = key.trim_end_matches(':');
    match switch.ports.last_mut() {
        None => of_switch(switch, key, value),
        Some(port) => of_port(port, key, value),
    }
}

fn of_switch(switch: &mut Dvs, key: &str, value: &str) -> Expects {
    if key == format!("{ETHER}mtu") {
        switch.mtu = value.parse().ok();
    }
    match key.strip_prefix(GLOBAL) {
        Some("alias") => switch.name = Some(value.to_owned()).filter(|name| !name.is_empty()),
        Some("uplinkPorts") => return Expects::Uplinks,
        Some("host.uplinkPorts") => return Expects::UplinkPorts,
        _ => {}
    }
    Expects::Nothing
}

fn of_port(port: &mut Port, key: &str, value: &str) -> Expects {
    let of = key.strip_prefix(PORT).or_else(|| key.strip_prefix(ETHER)?.strip_prefix("port."));
    match of {
        Some("alias") => port.alias = value.to_owned(),
        Some("portgroupid") => port.group = value.to_owned(),
        Some("security") => port.security = Some(security(value)),
        Some("teaming") => {
            port.failover = Some(Failover::default());
            return Expects::Teaming;
        }
        Some("vlan") => {
            port.vlan = Some(vlan(value));
            return Expects::Ranges;
        }
        Some(other) if SILENT.iter().any(|silent| other.starts_with(silent)) => {}
        _ => port.others.push(key.to_owned()),
    }
    Expects::Nothing
}

/// A line below a key.
fn continued(switch: &mut Dvs, expects: Expects, line: &str) {
    match (expects, switch.ports.last_mut()) {
        (Expects::Uplinks, _) => switch.uplinks.extend(names(line, ',')),
        (Expects::UplinkPorts, _) => switch.uplink_ports.extend(names(line, ',')),
        (Expects::Ranges, Some(port)) => {
            let ranges =
                line.strip_prefix("ranges =").filter(|_| matches!(port.vlan, Some(Ok(Vlan::Trunk(_)))));
            if let Some(text) = ranges {
                port.vlan = Some(ranged(text.trim()));
            }
        }
        (Expects::Teaming, Some(Port { failover: Some(failover), .. })) => teaming(failover, line),
        _ => {}
    }
}

fn names(text: &str, separator: char) -> impl Iterator<Item = String> {
    text.split(separator).map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned)
}

fn security(value: &str) -> Security {
    let of = |what: &str| {
        let word = value.split(';').find_map(|part| part.trim().strip_suffix(what))?;
        Some(word.trim() == "allow")
    };
    Security {
        promiscuous: of("promiscuous"),
        mac_changes: of("mac change"),
        forged_transmits: of("forged frames"),
    }
}

fn teaming(failover: &mut Failover, line: &str) {
    let Some((key, value)) = line.split_once('=') else { return };
    let value = value.trim();
    let behaves = |what: &str| Some(value.contains(what));
    match key.trim() {
        "load balancing" => failover.balancing = Some(Balancing::parse(value)),
        "link selection" => failover.beacon = value.contains("beacon state ok"),
        "link behavior" => failover.notify = behaves("notify switch"),
        "active" => failover.active = names(value, ';').collect(),
        "standby" => failover.standby = names(value, ';').collect(),
        _ => {}
    }
}

fn vlan(value: &str) -> Result<Vlan, Unknown> {
    if value == "Guest VLAN tagging" {
        return Ok(Vlan::ALL);
    }
    let number = value.strip_prefix("VLAN ").and_then(|number| number.parse::<u16>().ok());
    match number {
        Some(0) => Ok(Vlan::None),
        Some(number) if number < 4095 => Ok(Vlan::Tagged(number)),
        _ => Err(Unknown::Setting(value.to_owned())),
    }
}

/// `0-4094`, `100`, `10-12, 20`.
fn ranged(text: &str) -> Result<Vlan, Unknown> {
    let number = |text: &str| text.trim().parse::<u16>().ok().filter(|number| *number < 4095);
    let range = |part: String| match part.split_once('-') {
        Some((low, high)) => Some(number(low)?..=number(high)?),
        None => number(&part).map(|number| number..=number),
    };
    let ranges: Option<Vec<_>> = names(text, ',').take(MOST_RANGES + 1).map(range).collect();
    let ranges = ranges.filter(|ranges| ranges.len() <= MOST_RANGES).unwrap_or_default();
    let mut vlans = BTreeSet::new();
    // One by one: together they may be some million.
    ranges.into_iter().for_each(|range| vlans.extend(range));
    match vlans.len() {
        0 => Err(Unknown::Setting(format!("Guest VLAN tagging, ranges = {text}"))),
        4094.. => Ok(Vlan::ALL),
        _ => Ok(Vlan::Trunk(vlans.into_iter().collect())),
    }
}

impl Dvs {
    /// Does this port lead out of the host?
    pub fn is_uplink(&self, port: &Port) -> bool {
        self.uplink_ports.contains(&port.number) || self.uplinks.contains(&port.alias)
    }
}
