//! Records of a listing: lines `Key: value`, or objects of JSON. Both have the same keys, written otherwise:
//! `CDP Status` and `CDPStatus`.

use std::collections::BTreeMap;

use serde_json::Value;

/// A value that names several things is a list of JSON, or has commas.
const SEPARATOR: char = ',';

/// What a record is about, by its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Switch,
    PortGroup,
    Adapter,
    Security,
    Shaping,
    Failover,
}

/// Keys of records, and what they are of. Those of the last two exist in JSON only: text has tables for them.
const KEYS: [(Class, &[&str]); 6] = [
    (
        Class::Switch,
        &[
            "name",
            "class",
            "numports",
            "usedports",
            "configuredports",
            "mtu",
            "cdpstatus",
            "beaconenabled",
            "beaconinterval",
            "beaconthreshold",
            "beaconrequiredby",
            "beacontimeout",
            "uplinks",
            "portgroups",
            "vdsid",
            "vmwarebranded",
            "dvport",
            "client",
            "dvportgroupid",
            "inuse",
            "portid",
        ],
    ),
    (Class::Security, &["allowpromiscuous", "allowmacaddresschange", "allowforgedtransmits"]),
    (Class::Shaping, &["enabled", "averagebandwidth", "peakbandwidth", "burstsize"]),
    (
        Class::Failover,
        &[
            "loadbalancing",
            "networkfailuredetection",
            "notifyswitches",
            "failback",
            "activeadapters",
            "standbyadapters",
            "unusedadapters",
        ],
    ),
    (Class::PortGroup, &["virtualswitch", "vlanid", "activeclients"]),
    (Class::Adapter, &["macaddress", "pcidevice", "driver", "adminstatus", "linkstatus"]),
];
/// A switch has many ports, each with these.
const OF_PORTS: [&str; 4] = ["client", "dvportgroupid", "inuse", "portid"];

/// A key without its blanks and capitals.
fn plain(key: &str) -> String {
    key.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

fn class_of(key: &str) -> Option<Class> {
    KEYS.into_iter().find(|(_, keys)| keys.contains(&key)).map(|(class, _)| class)
}

/// Keys with their values, in the order in which they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pairs: Vec<(String, Vec<String>)>,
    /// Where each key is first: a record may be as long as its file.
    places: BTreeMap<String, usize>,
}

/// One line of text.
pub struct Line {
    key: String,
    value: String,
    /// None: it qualifies the record in front of it, and is not read.
    class: Option<Class>,
}

impl Line {
    /// `Key: value`, if the key is known.
    pub fn of(line: &str) -> Option<Line> {
        let (key, value) = line.trim().split_once(':')?;
        let key = plain(key);
        let class = class_of(&key).filter(|class| !matches!(class, Class::PortGroup | Class::Adapter));
        let is_known = class.is_some() || key.starts_with("override");
        is_known.then(|| Line { key, value: value.trim().to_owned(), class })
    }
}

impl Fields {
    /// Does this line begin another record?
    pub fn ends_before(&self, line: &Line) -> bool {
        let Some(class) = line.class else { return false };
        let is_another = self.class().is_some_and(|of| of != class);
        let is_again = !OF_PORTS.contains(&line.key.as_str()) && self.get(&line.key).is_some();
        is_another || is_again || line.key == "name"
    }

    pub fn push(&mut self, line: Line) {
        if line.class.is_some() {
            self.add(line.key, vec![line.value]);
        }
    }

    fn add(&mut self, key: String, values: Vec<String>) {
        self.places.entry(key.clone()).or_insert(self.pairs.len());
        self.pairs.push((key, values));
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Those of an object; of the objects in it, too.
    pub fn of_json(object: &serde_json::Map<String, Value>) -> Fields {
        let mut fields = Fields::default();
        fields.add_json(object);
        fields
    }

    fn add_json(&mut self, object: &serde_json::Map<String, Value>) {
        // Those of a port come in the order in which text has them, too.
        let mut pairs: Vec<(String, &Value)> =
            object.iter().map(|(key, value)| (plain(key), value)).collect();
        pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (key, value) in pairs {
            match value {
                Value::Object(inner) => self.add_json(inner),
                Value::Array(list) if list.iter().any(Value::is_object) => {
                    list.iter().filter_map(Value::as_object).for_each(|inner| self.add_json(inner));
                }
                Value::Array(list) => self.add(key, list.iter().map(written).collect()),
                other => self.add(key, vec![written(other)]),
            }
        }
    }

    /// By the keys that only records of one kind have.
    pub fn class(&self) -> Option<Class> {
        let has = |key: &str| self.get(key).is_some();
        if has("virtualswitch") && has("vlanid") {
            return Some(Class::PortGroup);
        }
        if has("macaddress") {
            return Some(Class::Adapter);
        }
        self.pairs.iter().find_map(|(key, _)| class_of(key))
    }

    fn get(&self, key: &str) -> Option<&Vec<String>> {
        self.pairs.get(*self.places.get(key)?).map(|(_, values)| values)
    }

    /// The value of a key, unless it is empty.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.first().map(String::as_str).filter(|text| !text.is_empty())
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.text(key)?.to_ascii_lowercase().as_str() {
            "true" | "yes" => Some(true),
            "false" | "no" => Some(false),
            _ => None,
        }
    }

    /// The names in a value.
    pub fn list(&self, key: &str) -> Vec<String> {
        self.listed(key).unwrap_or_default()
    }

    /// None: there is no such key.
    pub fn listed(&self, key: &str) -> Option<Vec<String>> {
        let values = self.get(key)?;
        let names = values.iter().flat_map(|value| value.split(SEPARATOR)).map(str::trim);
        Some(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Of each port of a switch: its number, port group and client.
    pub fn ports(&self) -> Vec<DvPort> {
        let mut ports = Vec::new();
        let mut port = DvPort::default();
        for (key, values) in &self.pairs {
            let value = values.first().cloned().unwrap_or_default();
            match key.as_str() {
                "client" => port.client = value,
                "dvportgroupid" => port.group = value,
                "portid" => {
                    port.id = value;
                    ports.push(std::mem::take(&mut port));
                }
                _ => {}
            }
        }
        ports
    }

    /// As a line, for notes.
    pub fn written(&self) -> String {
        let pairs = self.pairs.iter().map(|(key, values)| format!("{key} {:?}", values.join(", ")));
        pairs.collect::<Vec<_>>().join(", ")
    }
}

/// A port of a distributed switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DvPort {
    pub id: String,
    pub group: String,
    /// `vmnic4`, `vmk0`, `web.eth0`; empty: none.
    pub client: String,
}

fn written(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
