//! All keys for readers: a section for each kind of table, made of the documentation in `raw.rs`. The guide
//! has them in Markdown, and vmlane.toml(5) as a page of the manual.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::raw::RawConfig;
use crate::shape::{Key, Shape, Shaped};

/// A kind of table: where it may be, and its keys in the order in which they are presented.
pub struct Section {
    /// As `[daemon]`, and `nic of [[vm]]`.
    pub places: Vec<String>,
    /// What the table is for; Markdown.
    pub meaning: String,
    pub rows: Vec<Row>,
}

/// A key, in Markdown.
pub struct Row {
    pub name: &'static str,
    pub meaning: String,
    /// The kind of value, and the values that it may have.
    pub values: String,
    pub default: String,
    /// Whether a reload applies it.
    pub applied: &'static str,
}

type Keys = BTreeMap<&'static str, Key>;

/// A table that was found, and its places.
struct Found<'s> {
    keys: &'s Keys,
    places: Vec<String>,
    meaning: String,
}

/// All tables, each kind once.
pub fn sections() -> Vec<Section> {
    let shape = RawConfig::shape();
    let Some(top) = table(&shape) else { return Vec::new() };
    let mut found = Vec::new();
    for (name, key) in ordered(top) {
        collect(key.shape.shown(name), key, &mut found);
    }
    found.into_iter().map(section).collect()
}

fn collect<'s>(place: String, key: &'s Key, found: &mut Vec<Found<'s>>) {
    let Some(keys) = table(&key.shape) else { return };
    if let Some(known) = found.iter_mut().find(|known| known.keys == keys) {
        return known.places.push(place);
    }
    found.push(Found { keys, places: vec![place.clone()], meaning: key.meaning() });
    for (name, key) in ordered(keys) {
        collect(format!("{name} of {place}"), key, found);
    }
}

/// The keys of a table, or of each table of a list.
fn table(shape: &Shape) -> Option<&Keys> {
    match shape {
        Shape::List(element) => table(element),
        Shape::Table(keys) => Some(keys),
        _ => None,
    }
}

fn ordered(keys: &Keys) -> Vec<(&'static str, &Key)> {
    let mut keys: Vec<_> = keys.iter().map(|(name, key)| (*name, key)).collect();
    keys.sort_by_key(|(_, key)| key.place);
    keys
}

fn section(Found { keys, places, meaning }: Found<'_>) -> Section {
    Section { places, meaning, rows: ordered(keys).into_iter().map(row).collect() }
}

fn row((name, key): (&'static str, &Key)) -> Row {
    let kind = kind(&key.shape);
    let values = match key.values {
        "" => kind.to_owned(),
        values => format!("{kind}: {}", quoted(values)),
    };
    let default = match key.default_value() {
        Some(_) => format!("`{}`", key.default.replace('\'', "\"")),
        None => key.default.to_owned(),
    };
    Row { name, meaning: key.meaning(), values, default, applied: key.applied.answer() }
}

fn kind(shape: &Shape) -> &'static str {
    match shape {
        Shape::Text => "text",
        Shape::Number | Shape::Percent => "number",
        Shape::Switch => "`true` or `false`",
        Shape::Size => "size",
        Shape::Count => "number or text",
        Shape::Any => "number, text or list",
        Shape::List(element) if table(element).is_some() => "tables",
        Shape::List(_) => "list",
        Shape::Table(_) => "table",
    }
}

/// Texts of TOML in single quotes, as code.
fn quoted(text: &str) -> String {
    let part = |(number, part): (usize, &str)| match number % 2 {
        0 => part.to_owned(),
        _ => format!("`\"{part}\"`"),
    };
    text.split('\'').enumerate().map(part).collect()
}

/// All keys, as Markdown.
pub fn markdown() -> String {
    let mut text = String::new();
    for Section { places, meaning, rows } in sections() {
        let places: Vec<String> = places.iter().map(|place| format!("`{place}`")).collect();
        let _ = write!(text, "### {}\n\n{meaning}\n\n", places.join(", "));
        text += "| key | meaning | value | default | applied by reload |\n| --- | --- | --- | --- | --- |\n";
        for Row { name, meaning, values, default, applied } in rows {
            let _ = writeln!(text, "| `{name}` | {meaning} | {values} | {default} | {applied} |");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
