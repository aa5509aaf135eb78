//! From lines, and values of JSON, to the networks of a host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::command::{Command, Prints, Subject};
use super::fields::{Class, DvPort, Fields, Line};
use super::net_dvs::{self, Dvs, NetDvs};
use super::networks::{Adapter, Host, MOST, PortGroup, Unknown, VirtualSwitch, Vlan};
use super::policy::{Failover, Policies, Security, Shaping};
use super::tables::{Row, Tables};
use crate::Error;
use crate::machine::Note;
use crate::network::Switch;

/// Uplinks of a switch, at most: a host has 32 adapters.
const MOST_UPLINKS: usize = 64;
/// Letters in which the second one of JSON is expected.
const MOST_BLANKS: usize = 256;

#[derive(Default)]
pub struct Reader {
    host: Host,
    /// Places of switches and of port groups in it.
    switches: BTreeMap<Switch, usize>,
    groups: BTreeMap<(Option<Switch>, String), usize>,
    adapters: BTreeSet<(String, String)>,
    /// The command above, if there is one.
    command: Option<Command>,
    /// The record that is being read, and where it began.
    fields: Fields,
    line: usize,
    tables: Tables,
    net_dvs: NetDvs,
    in_net_dvs: bool,
    /// Of distributed switches, by their ids.
    ports: BTreeMap<String, Vec<DvPort>>,
    /// Port groups of uplinks, with the id of their switch.
    of_uplinks: BTreeSet<(String, String)>,
    policies: BTreeMap<Subject, Policies>,
    /// Formats of the text that no public listing backs.
    untried: BTreeSet<&'static str>,
    /// Notes so far, each once.
    noted: BTreeSet<(String, String)>,
}

impl Reader {
    pub fn new(name: &str) -> Reader {
        Reader { host: Host { name: name.to_owned(), ..Host::default() }, ..Reader::default() }
    }

    pub fn read(&mut self, source: &str) -> Result<(), Error> {
        let mut rest = source;
        let mut number = 1;
        while !rest.is_empty() {
            let length = if begins_json(rest) {
                self.json(rest, number)?
            } else {
                let line = rest.split_inclusive('\n').next().unwrap_or(rest);
                self.line(line, number);
                line.len()
            };
            let (read, behind) = rest.split_at_checked(length).unwrap_or((rest, ""));
            number += read.matches('\n').count();
            rest = behind;
            if self.host.port_groups.len().max(self.host.switches.len()).max(self.host.adapters.len()) > MOST
            {
                return Err(Error::TooManyPortGroups(MOST));
            }
        }
        self.flush();
        Ok(())
    }

    /// Is the output of a command that is not read?
    fn is_skipped(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command.prints == Prints::Other)
    }

    fn line(&mut self, line: &str, number: usize) {
        if let Some(command) = Command::of(line) {
            self.begin(command);
        } else if self.is_skipped() {
        } else if self.in_net_dvs || net_dvs::heading(line).is_some() {
            self.in_net_dvs = true;
            self.net_dvs.line(line);
        } else if self.tables.take_heading(line) {
            self.flush();
        } else if let Some(row) = self.tables.row(line) {
            self.row(row);
        } else if let Some(line) = Line::of(line) {
            self.tables.end();
            self.field(line, number);
        }
    }

    fn begin(&mut self, command: Command) {
        self.flush();
        self.tables.end();
        self.in_net_dvs = command.prints == Prints::NetDvs;
        if command.prints == Prints::Other {
            self.note(format!("`{}`", command.text), "is not read: nothing of it becomes configuration");
        }
        self.command = Some(command);
    }

    fn field(&mut self, line: Line, number: usize) {
        if self.fields.ends_before(&line) {
            self.flush();
        }
        if self.fields.is_empty() {
            self.line = number;
        }
        self.fields.push(line);
    }

    /// The value of JSON at the beginning of `text`, in line `number`: how long it is, with the line's end.
    fn json(&mut self, text: &str, number: usize) -> Result<usize, Error> {
        self.flush();
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let value = values.next().unwrap_or(Ok(Value::Null)).map_err(|error| {
            let what = format!(
                "JSON that is not complete ({error}); print the listing again, or without --formatter=json"
            );
            Error::line(number + error.line().saturating_sub(1), what)
        })?;
        let length = values.byte_offset();
        if !self.is_skipped() {
            self.untried.insert("JSON");
            self.objects(value, number);
        }
        let behind = text.get(length..).unwrap_or_default();
        Ok(length + behind.find('\n').map_or(behind.len(), |at| at + 1))
    }

    fn objects(&mut self, value: Value, number: usize) {
        let values = match value {
            Value::Array(list) => list,
            other => vec![other],
        };
        for object in values.iter().filter_map(Value::as_object) {
            (self.fields, self.line) = (Fields::of_json(object), number);
            self.flush();
        }
    }

    fn row(&mut self, row: Row) {
        match row {
            Row::Switch { name, mtu, uplinks } => self.switch(Switch::Standard(name), None, mtu, Some(uplinks)),
            Row::PortGroup { name, switch, vlan } => {
                self.port_group(name, switch.map(Switch::Standard), vlan.map_err(Unknown::NoNumber));
            }
            Row::Adapter { name, mac, mtu } => self.adapter(Adapter { name, mac, mtu }),
            Row::Distributed(name) => self.note(
                format!("distributed switch {name:?}"),
                "only its name is in esxcfg-vswitch's listing: add `esxcli network vswitch dvs vmware list` and `net-dvs -l`",
            ),
        }
    }

    fn note(&mut self, what: String, then: impl Into<String>) {
        let then = then.into();
        if self.noted.insert((what.clone(), then.clone())) {
            self.host.notes.push(Note { what, then });
        }
    }

    fn note_record(&mut self, fields: &Fields) {
        self.note(format!("line {}: {}", self.line, fields.written()), "is not read");
    }

    /// Uses the record that was read.
    fn flush(&mut self) {
        let fields = std::mem::take(&mut self.fields);
        let text = |key: &str| fields.text(key).map(str::to_owned);
        let mtu = || fields.text("mtu").and_then(|mtu| mtu.parse().ok());
        match (fields.class(), text("name")) {
            _ if fields.is_empty() => {}
            (Some(Class::Switch), Some(name)) => self.switch_record(&fields, name, mtu()),
            (Some(Class::PortGroup), Some(name)) => {
                let vlan = Vlan::parse(&text("vlanid").unwrap_or_default()).map_err(Unknown::NoNumber);
                self.port_group(name, text("virtualswitch").map(Switch::Standard), vlan);
            }
            (Some(Class::Adapter), Some(name)) => {
                let mac = text("macaddress").unwrap_or_default();
                self.adapter(Adapter { name, mac, mtu: mtu() });
            }
            (Some(Class::Security), _) => {
                self.policy(Policies { security: Some(Security::of(&fields)), ..Policies::default() });
            }
            (Some(Class::Shaping), _) => {
                self.untried.insert("`policy shaping get`");
                self.policy(Policies { shaping: Some(Shaping::of(&fields)), ..Policies::default() });
            }
            (Some(Class::Failover), _) => {
                self.untried.insert("`policy failover get`");
                self.policy(Policies { failover: Some(Failover::of(&fields)), ..Policies::default() });
            }
            _ => self.note_record(&fields),
        }
    }

    fn policy(&mut self, policies: Policies) {
        match self.command.as_ref().and_then(|command| command.subject.clone()) {
            Some(subject) => self.policies.entry(subject).or_default().add(policies),
            None => self.note(
                format!("line {}: a policy", self.line),
                "is left out: only the command above it names its switch or port group; keep the command in the listing",
            ),
        }
    }

    fn switch_record(&mut self, fields: &Fields, name: String, mtu: Option<u32>) {
        if let Some(cdp @ ("advertise" | "both")) = fields.text("cdpstatus") {
            self.note(format!("{name}: CDP Status {cdp:?}"), "is left out: vmlane sends no CDP");
        }
        match (fields.text("vdsid"), fields.listed("uplinks")) {
            (Some(id), uplinks) => {
                let id = id.to_ascii_lowercase();
                self.ports.entry(id.clone()).or_default().extend(fields.ports());
                self.switch(Switch::Distributed(id), Some(name), mtu, uplinks);
            }
            (None, Some(uplinks)) => {
                let of = Switch::Standard(name);
                self.switch(of.clone(), None, mtu, Some(uplinks));
                // Their VLANs are in another listing.
                for group in fields.list("portgroups") {
                    self.port_group(group, Some(of.clone()), Err(Unknown::Missing));
                }
            }
            _ => self.note_record(fields),
        }
    }

    /// A switch, or what else is known of it.
    fn switch(&mut self, of: Switch, name: Option<String>, mtu: Option<u32>, uplinks: Option<Vec<String>>) {
        let known = self.switches.get(&of).and_then(|at| self.host.switches.get_mut(*at));
        let Some(known) = known else {
            self.switches.insert(of.clone(), self.host.switches.len());
            let uplinks = uplinks.map(|uplinks| each_once(uplinks.into_iter()));
            self.host.switches.push(VirtualSwitch { of, name, uplinks, mtu, policies: Policies::default() });
            return;
        };
        known.name = known.name.take().or(name);
        known.mtu = known.mtu.or(mtu);
        // Listings of several hosts may be in one file: all uplinks are kept.
        if let Some(more) = uplinks {
            known.uplinks = Some(each_once(known.uplinks.take().into_iter().flatten().chain(more)));
        }
    }

    fn adapter(&mut self, adapter: Adapter) {
        if self.adapters.insert((adapter.name.clone(), adapter.mac.clone())) {
            self.host.adapters.push(adapter);
        }
    }

    /// A port group, or what else is known of it.
    fn port_group(&mut self, name: String, switch: Option<Switch>, vlan: Result<Vlan, Unknown>) {
        if let Some(of) = &switch {
            self.switch(of.clone(), None, None, None);
        }
        let key = (switch.clone(), name.clone());
        match self.groups.get(&key).and_then(|at| self.host.port_groups.get_mut(*at)) {
            Some(known) => known.vlan = both(&known.vlan, vlan),
            None => {
                self.groups.insert(key, self.host.port_groups.len());
                self.host.port_groups.push(PortGroup { name, switch, vlan, policies: Policies::default() });
            }
        }
    }

    /// The host, once all is read.
    pub fn finish(mut self) -> Result<Host, Error> {
        for dvs in std::mem::take(&mut self.net_dvs.switches) {
            self.dvs(&dvs);
        }
        for (id, ports) in std::mem::take(&mut self.ports) {
            self.dv_ports(&id, &ports);
        }
        let standard = self.groups.iter().filter(|((of, _), _)| !matches!(of, Some(Switch::Distributed(_))));
        let standard: BTreeMap<String, usize> = standard.map(|((_, name), at)| (name.clone(), *at)).collect();
        for (subject, policies) in std::mem::take(&mut self.policies) {
            self.give(&subject, policies, &standard);
        }
        for format in std::mem::take(&mut self.untried) {
            self.note(
                format.to_owned(),
                "is untried: no public listing of this format was at hand; compare what came of it with the host",
            );
        }
        let is_empty = self.host.switches.is_empty() && self.host.port_groups.is_empty();
        if is_empty { Err(Error::NoPortGroup) } else { Ok(self.host) }
    }

    /// A distributed switch of `net-dvs`. A port has the settings of its port group, or its own instead.
    fn dvs(&mut self, dvs: &Dvs) {
        let of = Switch::Distributed(dvs.id.clone());
        self.switch(of.clone(), dvs.name.clone(), dvs.mtu, None);
        let adapters = self.adapters_of(dvs);
        for port in dvs.ports.iter().filter(|port| !port.group.is_empty()) {
            if dvs.is_uplink(port) {
                self.leave_uplinks(&dvs.id, &port.group);
                continue;
            }
            let vlan = port.vlan.clone().unwrap_or(Err(Unknown::Missing));
            self.port_group(port.group.clone(), Some(of.clone()), vlan);
            let failover = port.failover.as_ref().map(|failover| of_adapters(failover, &adapters));
            let policies = Policies { security: port.security, shaping: None, failover };
            if let Some(group) = self.group(&of, &port.group) {
                group.policies.add(policies);
            }
            for key in &port.others {
                self.note(format!("distributed port group {:?}: {key}", port.group), "is not carried over");
            }
        }
    }

    fn group(&mut self, of: &Switch, name: &str) -> Option<&mut PortGroup> {
        let at = *self.groups.get(&(Some(of.clone()), name.to_owned()))?;
        self.host.port_groups.get_mut(at)
    }

    /// A distributed switch has names of its own for its uplinks; the adapters are the clients of their
    /// ports.
    fn adapters_of(&self, dvs: &Dvs) -> BTreeMap<String, String> {
        let ports = self.ports.get(&dvs.id).into_iter().flatten();
        let clients: BTreeMap<&str, &str> =
            ports.map(|port| (port.id.as_str(), port.client.as_str())).collect();
        let with_client = dvs.ports.iter().filter_map(|port| {
            let client = clients.get(port.number.as_str()).filter(|client| !client.is_empty())?;
            Some((port.alias.clone(), (*client).to_owned()))
        });
        with_client.collect()
    }

    fn leave_uplinks(&mut self, id: &str, group: &str) {
        self.of_uplinks.insert((id.to_owned(), group.to_owned()));
        self.note(
            format!("distributed port group {group:?}"),
            "is the one of the switch's uplinks: is left out",
        );
    }

    /// The ports of `dvs vmware list`: which port groups there are.
    fn dv_ports(&mut self, id: &str, ports: &[DvPort]) {
        let of = Switch::Distributed(id.to_owned());
        let at = self.switches.get(&of).copied();
        let uplinks = at.and_then(|at| self.host.switches.get(at)?.uplinks.clone()).unwrap_or_default();
        let uplinks: BTreeSet<String> = uplinks.into_iter().collect();
        let is_uplink = |port: &&DvPort| uplinks.contains(&port.client);
        let groups: BTreeSet<&str> = ports.iter().filter(is_uplink).map(|port| port.group.as_str()).collect();
        groups.into_iter().for_each(|group| self.leave_uplinks(id, group));
        for port in ports {
            if !self.of_uplinks.contains(&(id.to_owned(), port.group.clone())) {
                self.port_group(port.group.clone(), Some(of.clone()), Err(Unknown::Missing));
            }
        }
    }

    /// Policies to what they are of. `standard`: port groups of standard switches.
    fn give(&mut self, subject: &Subject, policies: Policies, standard: &BTreeMap<String, usize>) {
        let (found, what) = match subject {
            Subject::Switch(name) => {
                let at = self.switches.get(&Switch::Standard(name.clone()));
                let switch = at.and_then(|at| self.host.switches.get_mut(*at));
                (switch.map(|switch| &mut switch.policies), format!("policies of the switch {name:?}"))
            }
            Subject::PortGroup(name) => {
                let group = standard.get(name).and_then(|at| self.host.port_groups.get_mut(*at));
                (group.map(|group| &mut group.policies), format!("policies of the port group {name:?}"))
            }
        };
        match found {
            Some(of) => of.add(policies),
            None => self.note(what, "are left out: the listing has nothing else of it"),
        }
    }
}

/// A value of JSON, and no prompt such as `[root@esx1:~]`.
fn begins_json(text: &str) -> bool {
    let mut letters = text.trim_start_matches([' ', '\t']).chars().take(MOST_BLANKS);
    let first = letters.next();
    let second = letters.find(|letter| !letter.is_whitespace());
    matches!((first, second), (Some('['), Some('{' | ']')) | (Some('{'), Some('"' | '}')))
}

fn each_once(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(name.clone())).take(MOST_UPLINKS).collect()
}

fn of_adapters(failover: &Failover, adapters: &BTreeMap<String, String>) -> Failover {
    let named = |names: &[String]| names.iter().filter_map(|name| adapters.get(name).cloned()).collect();
    Failover { active: named(&failover.active), standby: named(&failover.standby), ..failover.clone() }
}

/// The VLAN of a port group that was listed twice.
fn both(known: &Result<Vlan, Unknown>, other: Result<Vlan, Unknown>) -> Result<Vlan, Unknown> {
    match (known, &other) {
        (Err(Unknown::Missing), _) => other,
        (known, Err(Unknown::Missing)) => known.clone(),
        (known, other) if known == other => known.clone(),
        _ => Err(Unknown::Several),
    }
}
