//! What kind of value each key takes, as data, with what is to be known about the key: for messages about
//! keys and values that do not fit, for the JSON schema, and for the reference of all keys (`reference.rs`).

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::Problem;
use crate::sources::Sources;

/// Places that a message names at most.
const MOST_PLACES: usize = 3;
/// Letters of a value that a message repeats.
const MOST_WRITTEN: usize = 60;

/// What stands for a number that the daemon finds.
const AUTO: &str = "auto";

/// A kind of value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Text,
    Number,
    Switch,
    /// A number, or a text such as `"64M"`.
    Size,
    /// A number, or the text [`AUTO`].
    Count,
    /// A number, whole or not.
    Percent,
    /// Several kinds, which the checks of the key distinguish.
    Any,
    List(Box<Shape>),
    Table(BTreeMap<&'static str, Key>),
}

/// A key of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub shape: Shape,
    /// Its place among the keys of its table, as they are presented.
    pub place: usize,
    pub applied: Applied,
    /// A value of TOML, or words; empty for tables.
    pub default: &'static str,
    /// Values that it may have, if its shape alone does not state them.
    pub values: &'static str,
    /// Its lines of documentation, in Markdown.
    pub lines: &'static [&'static str],
}

/// When a changed key is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// By a reload.
    Reload,
    /// By a reload that finds no VMM attached to the VM.
    Vm,
    /// By a restart of the daemon.
    Daemon,
    /// By a reload, and one of the helper `vmlane route`.
    Helper,
}

impl Applied {
    /// The answer to "applied by reload?".
    pub fn answer(self) -> &'static str {
        match self {
            Applied::Reload => "yes",
            Applied::Vm => "restart of the VM",
            Applied::Daemon => "restart of the daemon",
            Applied::Helper => "with `systemctl reload vmlane-route`",
        }
    }
}

impl Key {
    /// What it is, as one line of Markdown.
    pub fn meaning(&self) -> String {
        self.lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }

    /// The default, if it is a value.
    pub fn default_value(&self) -> Option<toml::Value> {
        let table: toml::Table = format!("key = {}", self.default).parse().ok()?;
        table.get("key").cloned()
    }

    /// The range of its numbers.
    pub fn range(&self) -> Option<(&'static str, &'static str)> {
        let (low, rest) = self.values.split_once(" to ")?;
        let high = rest.split([',', ' ']).next()?;
        let is_number = |text: &str| text.starts_with(|letter: char| letter.is_ascii_digit());
        (is_number(low) && is_number(high)).then_some((low, high))
    }

    /// As JSON Schema, with what it is.
    fn schema(&self) -> Value {
        let mut schema = self.shape.schema();
        let Some(keys) = schema.as_object_mut() else { return schema };
        keys.insert("description".into(), self.meaning().into());
        keys.insert("x-applied-by-reload".into(), self.applied.answer().replace('`', "").into());
        if let Some(Ok(value)) = self.default_value().map(serde_json::to_value) {
            keys.insert("default".into(), value);
        }
        let bounds = self.range().filter(|_| matches!(self.shape, Shape::Number | Shape::Percent));
        if let Some((Ok(low), Ok(high))) = bounds.map(|(low, high)| (low.parse::<i64>(), high.parse::<i64>()))
        {
            keys.insert("minimum".into(), low.into());
            keys.insert("maximum".into(), high.into());
        }
        schema
    }
}

/// A type that is read from the configuration.
pub trait Shaped {
    fn shape() -> Shape;
}

impl Shaped for String {
    fn shape() -> Shape {
        Shape::Text
    }
}

impl Shaped for i64 {
    fn shape() -> Shape {
        Shape::Number
    }
}

impl Shaped for bool {
    fn shape() -> Shape {
        Shape::Switch
    }
}

impl Shaped for toml::Value {
    fn shape() -> Shape {
        Shape::Any
    }
}

impl<T: Shaped> Shaped for Option<T> {
    fn shape() -> Shape {
        T::shape()
    }
}

impl<T: Shaped> Shaped for Spanned<T> {
    fn shape() -> Shape {
        T::shape()
    }
}

impl<T: Shaped> Shaped for Vec<T> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }
}

/// Tables of the configuration: structures whose keys are known to serde and to [`Shaped`] alike. Each key
/// has its documentation and `#[key(APPLIED, DEFAULT, VALUES)]`: see [`Key`].
macro_rules! tables {
    ($($(#[$attribute:meta])* pub struct $table:ident { $(
        $(#[doc = $line:literal])*
        #[key($applied:ident, $default:literal, $values:literal)]
        pub $key:ident: $value:ty,
    )* })*) => {
        $(
            $(#[$attribute])*
            #[derive(Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $table {
                $($(#[doc = $line])* pub $key: $value,)*
            }

            impl Shaped for $table {
                fn shape() -> Shape {
                    Shape::table([$((stringify!($key), Key {
                        shape: <$value>::shape(),
                        place: 0,
                        applied: Applied::$applied,
                        default: $default,
                        values: $values,
                        lines: &[$($line),*],
                    })),*])
                }
            }
        )*
    };
}
pub(crate) use tables;

impl Shape {
    /// A table of these keys, in the order in which they are presented.
    pub fn table<const N: usize>(keys: [(&'static str, Key); N]) -> Shape {
        let numbered = keys.into_iter().enumerate();
        Shape::Table(
            numbered
                .map(|(place, (name, key))| (name.trim_start_matches("r#"), Key { place, ..key }))
                .collect(),
        )
    }

    /// The shape of a key, if this is a table, or a list of tables, that has it.
    fn key(&self, key: &str) -> Option<&Shape> {
        match self {
            Shape::List(element) => element.key(key),
            Shape::Table(keys) => keys.get(key).map(|key| &key.shape),
            _ => None,
        }
    }

    /// Is `path`, the words of a header such as `[vm.nic]`, a list of tables, each with a header of its own?
    pub fn is_list_of_tables(&self, path: &[&str]) -> bool {
        let found = path.iter().try_fold(self, |shape, key| shape.key(key));
        matches!(found, Some(Shape::List(element)) if matches!(**element, Shape::Table(_)))
    }

    /// The header of a table of this shape at the top, else its bare name.
    pub fn shown(&self, name: &str) -> String {
        match self {
            Shape::Table(_) => format!("[{name}]"),
            Shape::List(element) if matches!(**element, Shape::Table(_)) => format!("[[{name}]]"),
            _ => name.to_owned(),
        }
    }

    /// Everything in a document that does not fit, with its place.
    pub fn misfits(&self, sources: &Sources, document: &DeTable<'_>) -> Vec<(usize, Problem)> {
        let mut found = Vec::new();
        if let Shape::Table(keys) = self {
            Finder { sources, whole: self, found: &mut found }.table("", keys, document);
        }
        found
    }

    /// Where else there is this key: `[daemon]`, `nic of [[vm]]`.
    fn places_of(&self, wanted: &str) -> Vec<String> {
        let Shape::Table(tables) = self else { return Vec::new() };
        let mut places = Vec::new();
        for (name, Key { shape, .. }) in tables {
            shape.find(wanted, &shape.shown(name), &mut places);
        }
        places
    }

    fn find(&self, wanted: &str, place: &str, places: &mut Vec<String>) {
        let keys = match self {
            Shape::List(element) => return element.find(wanted, place, places),
            Shape::Table(keys) => keys,
            _ => return,
        };
        if keys.contains_key(wanted) {
            places.push(place.to_owned());
        }
        for (name, Key { shape, .. }) in keys {
            shape.find(wanted, &format!("{name} of {place}"), places);
        }
    }

    /// As JSON Schema.
    pub fn schema(&self) -> Value {
        match self {
            Shape::Text => json!({ "type": "string" }),
            Shape::Number => json!({ "type": "integer" }),
            Shape::Switch => json!({ "type": "boolean" }),
            Shape::Size => json!({ "type": ["integer", "string"] }),
            Shape::Percent => json!({ "type": "number" }),
            Shape::Count => json!({ "anyOf": [{ "type": "integer" }, { "const": AUTO }] }),
            Shape::Any => json!({ "type": ["integer", "string", "array"] }),
            Shape::List(element) => json!({ "type": "array", "items": element.schema() }),
            Shape::Table(keys) => {
                let keys: BTreeMap<&str, Value> =
                    keys.iter().map(|(name, key)| (*name, key.schema())).collect();
                json!({ "type": "object", "properties": keys, "additionalProperties": false })
            }
        }
    }
}

/// Looks for what does not fit.
struct Finder<'f> {
    sources: &'f Sources,
    whole: &'f Shape,
    found: &'f mut Vec<(usize, Problem)>,
}

impl Finder<'_> {
    fn report(&mut self, span: &Range<usize>, text: String) {
        self.found.push((span.start, self.sources.problem(span.start, text)));
    }

    /// `name` is the table's, for messages; that of the document is empty.
    fn table(&mut self, name: &str, keys: &BTreeMap<&'static str, Key>, table: &DeTable<'_>) {
        for (key, value) in table {
            let word: &str = key.get_ref().as_ref();
            match keys.get(word) {
                Some(key) => self.value(name, word, &key.shape, value),
                None => {
                    let text = self.unknown(name, keys, word, value);
                    self.report(&key.span(), text);
                }
            }
        }
    }

    fn value(&mut self, table: &str, key: &str, shape: &Shape, value: &Spanned<DeValue<'_>>) {
        let place = within(table, key);
        match (shape, value.get_ref()) {
            (Shape::Number | Shape::Size | Shape::Count | Shape::Percent, DeValue::Integer(number)) => {
                if i64::from_str_radix(number.as_str(), number.radix()).is_err() {
                    let written = self.written(&value.span());
                    let text = format!("{place} = {written}: the number is too large; use a smaller one");
                    self.report(&value.span(), text);
                }
            }
            (Shape::Count, DeValue::String(word)) if word == AUTO => {}
            (Shape::Text | Shape::Size, DeValue::String(_))
            | (Shape::Switch, DeValue::Boolean(_))
            | (Shape::Percent, DeValue::Float(_))
            | (Shape::Any, _) => {}
            (Shape::Table(keys), DeValue::Table(table)) => self.table(&place, keys, table),
            (Shape::List(element), DeValue::Array(list)) => {
                for (number, one) in list.iter().enumerate() {
                    match (&**element, one.get_ref()) {
                        (Shape::Table(keys), DeValue::Table(inner)) => {
                            self.table(&element_name(table, key, number, inner), keys, inner);
                        }
                        (shape, _) => self.value(table, key, shape, one),
                    }
                }
            }
            (shape, other) => {
                let written = self.written(&value.span());
                let text = misfit(&place, key, shape, other, &written);
                self.report(&value.span(), text);
            }
        }
    }

    fn unknown(
        &self,
        table: &str,
        keys: &BTreeMap<&'static str, Key>,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> String {
        let written = self.written(&value.span());
        let has_header = match value.get_ref() {
            DeValue::Table(_) => written.starts_with('['),
            DeValue::Array(_) => written.starts_with("[["),
            _ => false,
        };
        let (what, shown) = match has_header {
            true => ("there is no such table", written),
            false => ("there is no such key", format!("{key} = {written}")),
        };
        let known = |name: &&'static str| match keys.get(*name) {
            Some(key) if table.is_empty() => key.shape.shown(name),
            _ => (*name).to_owned(),
        };
        let similar = keys.keys().filter_map(|known| Some((distance(key, known)?, known)));
        let way_out = if let Some((_, name)) = similar.min() {
            format!("did you mean {}?", known(name))
        } else {
            let elsewhere = self.whole.places_of(key);
            let known = keys.keys().map(&known).collect::<Vec<_>>().join(", ");
            match elsewhere.len() {
                1..=MOST_PLACES => format!("it is a key of {}; here there are {known}", elsewhere.join(", ")),
                _ => format!("there are {known}"),
            }
        };
        format!("{}: {what}; {way_out}", within(table, &shown))
    }

    /// The first line of what stands at a place, if it is not long.
    fn written(&self, span: &Range<usize>) -> String {
        let text = self.sources.slice(span).lines().next().unwrap_or_default();
        if text.chars().count() <= MOST_WRITTEN {
            return text.to_owned();
        }
        text.chars().take(MOST_WRITTEN).chain(['.'; 3]).collect()
    }
}

fn within(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}: {key}") }
}

/// How messages call an element of a list of tables.
fn element_name(table: &str, key: &str, number: usize, element: &DeTable<'_>) -> String {
    if !table.is_empty() {
        return format!("{table}: {key} {number}");
    }
    match element.get("name").and_then(|name| name.get_ref().as_str()) {
        Some(name) => format!("{key} {name:?}"),
        None => format!("{key} number {}", number + 1),
    }
}

/// How many letters two words differ by, if one may be meant by the other.
fn distance(written: &str, known: &str) -> Option<usize> {
    let written = written.to_ascii_lowercase().replace('-', "_");
    let letters = strsim::damerau_levenshtein(&written, known);
    (letters <= 1.max(known.len() / 3) && letters < known.len()).then_some(letters)
}

/// What is wrong with a value of another kind than `shape`, and what to write instead.
fn misfit(place: &str, key: &str, shape: &Shape, value: &DeValue<'_>, written: &str) -> String {
    let unquoted = value.as_str().map(str::trim);
    let way_out = match (shape, value) {
        (
            Shape::Text,
            DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_),
        ) => {
            format!("write it in quotes: {key} = \"{written}\"")
        }
        (Shape::Text | Shape::Any, _) => format!("write a text in quotes: {key} = \"...\""),
        (Shape::Number | Shape::Count, _) => match unquoted.and_then(|text| text.parse::<i64>().ok()) {
            Some(number) => format!("write the number without quotes: {key} = {number}"),
            None if *shape == Shape::Count => format!("write a whole number, without quotes, or \"{AUTO}\""),
            None => "write a whole number, without quotes".to_owned(),
        },
        (Shape::Percent, _) => match unquoted.and_then(|text| text.parse::<f64>().ok()) {
            Some(number) => format!("write the number without quotes: {key} = {number}"),
            None => format!("write a percentage, without quotes, such as {key} = 0.5"),
        },
        (Shape::Switch, _) => "write true or false, without quotes".to_owned(),
        (Shape::Size, _) => format!("write a number, or a text such as {key} = \"64M\""),
        (Shape::List(element), DeValue::Table(_)) if written.starts_with('[') => {
            return match **element {
                Shape::Table(_) => single_brackets_text(written),
                _ => format!("{place}: {written}: write a list: {key} = [...]"),
            };
        }
        (Shape::List(element), _) => match **element {
            Shape::Table(_) => format!("write a list of tables: {key} = [{{ ... }}]"),
            _ if matches!(value, DeValue::Table(_)) => format!("write a list: {key} = [...]"),
            _ => format!("write a list: {key} = [{written}]"),
        },
        (Shape::Table(_), DeValue::Array(_)) if written.starts_with("[[") => {
            return format!(
                "{written}: there is only one such table; write [{}]",
                written.trim_matches(['[', ']'])
            );
        }
        (Shape::Table(keys), _) => {
            let first = keys.keys().next().copied().unwrap_or_default();
            format!("write a table: {key} = {{ {first} = ... }}")
        }
    };
    format!("{place} = {written}: {way_out}")
}

fn single_brackets_text(header: &str) -> String {
    format!("{header}: there may be several of these tables, so each has two brackets; write [{header}]")
}

/// What is wrong with a line that begins one of several tables with single brackets; None: it does not.
pub fn single_brackets(whole: &Shape, line: &str) -> Option<String> {
    let header = line.trim().strip_prefix('[')?.split(']').next()?;
    let path: Vec<&str> = header.split('.').map(str::trim).collect();
    let is_wrong = !header.starts_with('[') && whole.is_list_of_tables(&path);
    is_wrong.then(|| single_brackets_text(&format!("[{header}]")))
}

#[cfg(test)]
mod tests;
