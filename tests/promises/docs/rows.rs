//! Rows of the experiments, as pages and pictures quote them.

use std::collections::BTreeMap;

use serde_json::Value;
use vmlane_tests::tree::read;

/// The rows of a file that did not fail and have all these values.
pub fn matching(file: &str, of: &toml::Table) -> Vec<Value> {
    let text = read(file);
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a row"));
    let has = |row: &Value| of.iter().all(|(key, value)| row[key] == as_json(value));
    rows.filter(|row| row["failed"].is_null() && has(row)).collect()
}

fn as_json(value: &toml::Value) -> Value {
    serde_json::to_value(value).expect("a value of TOML")
}

/// A value of these rows by run.
pub fn by_run(rows: &[Value], value: &str) -> BTreeMap<u64, f64> {
    let pair = |row: &Value| Some((row["run"].as_u64()?, row[value].as_f64()?));
    rows.iter().filter_map(pair).collect()
}

/// The median.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    assert!(!sorted.is_empty(), "no row has this value");
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}
