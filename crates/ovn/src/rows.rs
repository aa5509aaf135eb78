//! The rows of the database that are of interest, as the server sends them, and how values are written there
//! (RFC 7047, section 5.1).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// Tables with their columns.
pub const TABLES: [(&str, &[&str]); 3] = [
    ("Bridge", &["name", "ports", "datapath_type"]),
    ("Port", &["name", "interfaces", "external_ids"]),
    ("Interface", &["name", "ofport", "error", "external_ids", "mtu_request"]),
];
/// Rows of a table: many times what a host has.
const MOST_ROWS: usize = 65_536;

pub type Texts = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    pub name: String,
    pub ports: BTreeSet<String>,
    pub datapath: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgePort {
    pub name: String,
    pub interfaces: BTreeSet<String>,
    pub external_ids: Texts,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Its number at the bridge; none if it is not there (yet).
    pub number: Option<i64>,
    /// Why Open vSwitch could not take it.
    pub error: String,
    pub external_ids: Texts,
    pub mtu: Option<i64>,
}

/// By their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub bridges: BTreeMap<String, Bridge>,
    pub ports: BTreeMap<String, BridgePort>,
    pub interfaces: BTreeMap<String, Interface>,
}

/// The elements of a set; one that has a single element may be written as that.
fn elements(value: &Value) -> Vec<&Value> {
    match value.as_array().map(Vec::as_slice) {
        Some([kind, Value::Array(list)]) if kind == "set" => list.iter().collect(),
        _ => vec![value],
    }
}

fn text(row: &Value, column: &str) -> String {
    let value = row.get(column).map(elements).unwrap_or_default();
    value.first().and_then(|value| value.as_str()).unwrap_or_default().to_owned()
}

fn number(row: &Value, column: &str) -> Option<i64> {
    row.get(column).map(elements).unwrap_or_default().first().and_then(|value| value.as_i64())
}

fn ids(row: &Value, column: &str) -> BTreeSet<String> {
    let id = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([kind, Value::String(id)]) if kind == "uuid" => Some(id.clone()),
        _ => None,
    };
    row.get(column).map(elements).unwrap_or_default().into_iter().filter_map(id).collect()
}

fn texts(row: &Value, column: &str) -> Texts {
    let Some([kind, Value::Array(pairs)]) = row.get(column).and_then(Value::as_array).map(Vec::as_slice)
    else {
        return Texts::new();
    };
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([Value::String(key), Value::String(value)]) => Some((key.clone(), value.clone())),
        _ => None,
    };
    if kind == "map" { pairs.iter().filter_map(pair).collect() } else { Texts::new() }
}

/// A map as the database writes it.
pub fn map(texts: &Texts) -> Value {
    json!(["map", texts.iter().collect::<Vec<_>>()])
}

/// Puts one row where it belongs; without a new state it is gone.
fn put<T>(
    rows: &mut BTreeMap<String, T>,
    id: &str,
    update: &Value,
    made: impl FnOnce(&Value) -> T,
) -> Result<(), String> {
    match update.get("new").filter(|new| new.is_object()) {
        Some(new) => drop(rows.insert(id.to_owned(), made(new))),
        None => drop(rows.remove(id)),
    }
    if rows.len() > MOST_ROWS { Err(format!("it shows more than {MOST_ROWS} rows")) } else { Ok(()) }
}

impl Rows {
    /// Takes in what the server has sent: tables with rows by id, each with its old and new state.
    pub fn update(&mut self, tables: &Value) -> Result<(), String> {
        let tables = tables.as_object().ok_or("it shows no tables")?;
        for (table, updates) in tables {
            for (id, update) in updates.as_object().ok_or("it shows a table without rows")? {
                match table.as_str() {
                    "Bridge" => put(&mut self.bridges, id, update, |row| Bridge {
                        name: text(row, "name"),
                        ports: ids(row, "ports"),
                        datapath: text(row, "datapath_type"),
                    })?,
                    "Port" => put(&mut self.ports, id, update, |row| BridgePort {
                        name: text(row, "name"),
                        interfaces: ids(row, "interfaces"),
                        external_ids: texts(row, "external_ids"),
                    })?,
                    "Interface" => put(&mut self.interfaces, id, update, |row| Interface {
                        name: text(row, "name"),
                        number: number(row, "ofport").filter(|number| *number > 0),
                        error: text(row, "error"),
                        external_ids: texts(row, "external_ids"),
                        mtu: number(row, "mtu_request"),
                    })?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    pub fn bridge(&self, name: &str) -> Option<(&str, &Bridge)> {
        self.bridges.iter().find(|(_, bridge)| bridge.name == name).map(|(id, bridge)| (id.as_str(), bridge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_change_and_go_and_strange_values_are_nothing() {
        let mut rows = Rows::default();
        rows.update(&json!({
            "Bridge": {"b": {"new": {"name": "br-int", "ports": ["set", [["uuid", "p"], ["uuid", "q"], 7]], "datapath_type": "netdev"}}},
            "Port": {"p": {"new": {"name": "x", "interfaces": ["uuid", "i"], "external_ids": ["map", [["a", "1"], ["b"], 3]]}}},
            "Interface": {"i": {"new": {"name": "x", "ofport": 4, "error": ["set", []], "external_ids": 9, "mtu_request": ["set", []]}},
                "j": {"new": {"name": 5, "ofport": -1, "error": "no device"}}},
            "Other": {"o": {}}
        })).unwrap();
        let (id, bridge) = rows.bridge("br-int").unwrap();
        assert_eq!((id, &*bridge.datapath, bridge.ports.len()), ("b", "netdev", 2));
        assert_eq!(rows.ports["p"].external_ids, Texts::from([("a".into(), "1".into())]));
        let (i, j) = (&rows.interfaces["i"], &rows.interfaces["j"]);
        assert_eq!((i.number, &*i.error, i.mtu, i.external_ids.len()), (Some(4), "", None, 0));
        assert_eq!((&*j.name, j.number, &*j.error), ("", None, "no device"));
        rows.update(&json!({"Interface": {"i": {"old": {}}, "j": {"new": null}}})).unwrap();
        assert!(rows.interfaces.is_empty());
        for bad in [json!([]), json!({"Port": 5}), json!(null)] {
            rows.update(&bad).unwrap_err();
        }
    }

    #[test]
    fn no_more_rows_are_kept_than_a_host_may_have() {
        let many: serde_json::Map<String, Value> =
            (0..=MOST_ROWS).map(|id| (id.to_string(), json!({"new": {"name": "x"}}))).collect();
        let refused = Rows::default().update(&json!({ "Port": many })).unwrap_err();
        assert!(refused.contains("65536"), "{refused}");
    }
}
