//! What is to be done so that the integration bridge has the ports that it should have: operations on the
//! database, made from its rows and from what is wanted. Nothing here acts.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::rows::{Bridge, BridgePort, Interface, Rows, Texts, map};

/// The key by which ports are known that this helper has made: which daemon's they are.
pub const OWNER: &str = "vmlane";
/// The keys that name the logical port to OVN, and those of OVN's answer.
const OF_PORT: [&str; 5] = ["iface-id", "attached-mac", "vm-id", "ovn-installed", "ovn-installed-ts"];
const STATUS: &str = "iface-status";

/// One NIC that is a logical port, by the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// By these two the daemon names it.
    pub vm: String,
    pub nic: String,
    /// Its TAP interface.
    pub interface: String,
    /// The logical port.
    pub port: String,
    pub mac: String,
    /// What Open vSwitch's database calls its VM.
    pub vm_id: String,
    /// The interface's MTU, if one is configured.
    pub mtu: Option<u16>,
}

/// How a port is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A VM is there.
    Up,
    /// It is not known, and was known a moment ago: the logical port stays here, and is marked as
    /// inactive.
    Held,
    /// No VM is there.
    Down,
    /// It was not reported yet. It stays as it is.
    Unknown,
}

/// What comes next for a port.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    /// One transaction.
    Do(Vec<Value>),
    /// It cannot be had, and why.
    Wrong(String),
}

/// The rows, with indices into them.
pub struct View<'r> {
    rows: &'r Rows,
    name: &'r str,
    bridge: Option<(&'r str, &'r Bridge)>,
    ports: HashMap<&'r str, (&'r str, &'r BridgePort)>,
}

impl<'r> View<'r> {
    /// Of the bridge of this name.
    pub fn new(rows: &'r Rows, name: &'r str) -> View<'r> {
        let ports = rows.ports.iter().map(|(id, port)| (port.name.as_str(), (id.as_str(), port)));
        View { rows, name, bridge: rows.bridge(name), ports: ports.collect() }
    }

    /// Does the bridge take super-frames, and frames without checksums? The kernel's datapath does, and the
    /// one in user space reads interfaces by packet sockets, which cut what is longer than the MTU.
    pub fn is_whole(&self) -> bool {
        self.bridge.is_some_and(|(_, bridge)| bridge.datapath != "netdev")
    }

    /// The interface, if it is at the bridge and this owner's.
    pub fn interface(&self, entry: &Entry, owner: &str) -> Option<(&'r str, &'r Interface)> {
        let (id, port) = self.ports.get(entry.interface.as_str())?;
        let (_, bridge) = self.bridge?;
        let own = port.external_ids.get(OWNER).is_some_and(|of| of == owner);
        if !own || !bridge.ports.contains(*id) {
            return None;
        }
        let id = port.interfaces.first()?;
        Some((id, self.rows.interfaces.get(id)?))
    }

    pub fn step(&self, entry: &Entry, owner: &str, want: Want) -> Step {
        let Some((bridge, rows)) = self.bridge else {
            return Step::Wrong(format!(
                "there is no bridge {:?}: ovn-controller makes it; does it run, and is [ovn] bridge its name?",
                self.name
            ));
        };
        let Some((id, port)) = self.ports.get(entry.interface.as_str()) else {
            return if want == Want::Up { Step::Do(added(bridge, entry, owner)) } else { Step::Nothing };
        };
        let name = &entry.interface;
        match port.external_ids.get(OWNER) {
            Some(of) if of == owner => {}
            of => {
                let whose = of.map_or("not vmlane's".into(), |of| format!("of the daemon in {of}"));
                return Step::Wrong(format!(
                    "port {name} is {whose}; remove it (`ovs-vsctl del-port {name}`)"
                ));
            }
        }
        if !rows.ports.contains(*id) {
            return Step::Wrong(format!(
                "port {name} is at another bridge than {}; remove it (`ovs-vsctl del-port {name}`)",
                self.name
            ));
        }
        let Some((id, interface)) = self.interface(entry, owner) else { return Step::Nothing };
        changed(id, interface, entry, want)
    }

    /// Ports of this owner that no entry has.
    pub fn stale(&self, owner: &str, is_entry: impl Fn(&str) -> bool) -> Option<Vec<Value>> {
        let (bridge, rows) = self.bridge?;
        let of_bridge = rows.ports.iter().filter_map(|id| Some((id, self.rows.ports.get(id)?)));
        let stale = of_bridge.filter(|(_, port)| {
            port.external_ids.get(OWNER).is_some_and(|of| of == owner) && !is_entry(&port.name)
        });
        let ids: Vec<Value> = stale.map(|(id, _)| json!(["uuid", id])).collect();
        (!ids.is_empty()).then(|| vec![mutate("Bridge", bridge, json!([["ports", "delete", ["set", ids]]]))])
    }
}

fn mutate(table: &str, id: &str, mutations: Value) -> Value {
    json!({ "op": "mutate", "table": table, "where": [["_uuid", "==", ["uuid", id]]], "mutations": mutations })
}

/// What is written for OVN of a port with a VM.
fn active(entry: &Entry) -> Texts {
    let pairs = [
        ("iface-id", &*entry.port),
        ("attached-mac", &*entry.mac),
        ("vm-id", &*entry.vm_id),
        (STATUS, "active"),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn added(bridge: &str, entry: &Entry, owner: &str) -> Vec<Value> {
    let mut interface = json!({ "name": entry.interface, "external_ids": map(&active(entry)) });
    if let (Some(mtu), Some(row)) = (entry.mtu, interface.as_object_mut()) {
        row.insert("mtu_request".into(), mtu.into());
    }
    let owner = Texts::from([(OWNER.to_owned(), owner.to_owned())]);
    let port = json!({ "name": entry.interface, "interfaces": ["named-uuid", "interface"], "external_ids": map(&owner) });
    vec![
        json!({ "op": "insert", "table": "Interface", "uuid-name": "interface", "row": interface }),
        json!({ "op": "insert", "table": "Port", "uuid-name": "port", "row": port }),
        mutate("Bridge", bridge, json!([["ports", "insert", ["named-uuid", "port"]]])),
    ]
}

fn changed(id: &str, interface: &Interface, entry: &Entry, want: Want) -> Step {
    let has = &interface.external_ids;
    let mut set = match want {
        Want::Unknown => return Step::Nothing,
        Want::Up => active(entry),
        Want::Held | Want::Down => Texts::from([(STATUS.to_owned(), "inactive".to_owned())]),
    };
    set.retain(|key, value| has.get(key) != Some(value));
    // An insertion leaves the value of a key that is there.
    let mut gone: Vec<&str> = set.keys().map(String::as_str).filter(|key| has.contains_key(*key)).collect();
    if want == Want::Down {
        gone.extend(OF_PORT.iter().filter(|key| has.contains_key(**key)));
    } else if set.contains_key("iface-id") {
        // What OVN has written was of another logical port.
        gone.extend(OF_PORT[3..].iter().filter(|key| has.contains_key(**key)));
    }
    let mut operations = Vec::new();
    if !set.is_empty() || !gone.is_empty() {
        let mutations =
            json!([["external_ids", "delete", ["set", gone]], ["external_ids", "insert", map(&set)]]);
        operations.push(mutate("Interface", id, mutations));
    }
    if let Some(mtu) = entry.mtu.map(i64::from).filter(|mtu| interface.mtu != Some(*mtu)) {
        operations.push(json!({
            "op": "update", "table": "Interface", "where": [["_uuid", "==", ["uuid", id]]], "row": { "mtu_request": mtu }
        }));
    }
    if operations.is_empty() { Step::Nothing } else { Step::Do(operations) }
}
