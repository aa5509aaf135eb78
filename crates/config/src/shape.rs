//! What kind of value each key takes, as data: for messages about keys and values that do not fit, and for
//! the JSON schema.

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
    Table(BTreeMap<&'static str, Shape>),
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

/// Tables of the configuration: structures whose keys are known to serde and to [`Shaped`] alike.
macro_rules! tables {
    ($($(#[$attribute:meta])* pub struct $table:ident { $(pub $key:ident: $value:ty,)* })*) => {
        $(
            $(#[$attribute])*
            #[derive(Debug, Default, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $table {
                $(pub $key: $value,)*
            }

            impl Shaped for $table {
                fn shape() -> Shape {
                    let key = |name: &'static str| name.trim_start_matches("r#");
                    Shape::Table([$((key(stringify!($key)), <$value>::shape())),*].into())
                }
            }
        )*
    };
}
pub(crate) use tables;

impl Shape {
    /// The shape of a key, if this is a table, or a list of tables, that has it.
    fn key(&self, key: &str) -> Option<&Shape> {
        match self {
            Shape::List(element) => element.key(key),
            Shape::Table(keys) => keys.get(key),
            _ => None,
        }
    }

    /// Is `path`, the words of a header such as `[vm.nic]`, a list of tables, each with a header of its own?
    pub fn is_list_of_tables(&self, path: &[&str]) -> bool {
        let found = path.iter().try_fold(self, |shape, key| shape.key(key));
        matches!(found, Some(Shape::List(element)) if matches!(**element, Shape::Table(_)))
    }

    /// The header of a table of this shape at the top, else its bare name.
    fn shown(&self, name: &str) -> String {
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
        for (name, table) in tables {
            table.find(wanted, &table.shown(name), &mut places);
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
        for (name, table) in keys {
            table.find(wanted, &format!("{name} of {place}"), places);
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
                    keys.iter().map(|(name, shape)| (*name, shape.schema())).collect();
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
    fn table(&mut self, name: &str, keys: &BTreeMap<&'static str, Shape>, table: &DeTable<'_>) {
        for (key, value) in table {
            let word: &str = key.get_ref().as_ref();
            match keys.get(word) {
                Some(shape) => self.value(name, word, shape, value),
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
        keys: &BTreeMap<&'static str, Shape>,
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
            Some(shape) if table.is_empty() => shape.shown(name),
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
mod tests {
    use std::path::Path;

    use crate::Config;

    fn problems(text: &str) -> Vec<String> {
        let error = Config::parse(Path::new("t.toml"), text).unwrap_err().to_string();
        error.lines().map(str::to_owned).collect()
    }

    fn vm(name: &str, cid: u32, keys: &str) -> String {
        format!("[[vm]]\nname = \"{name}\"\ncid = {cid}\n{keys}\n")
    }

    #[test]
    fn a_value_of_another_kind_is_met_with_what_to_write() {
        for (text, words) in [
            ("[[vm]]\nname = 7\n", "t.toml:2: vm number 1: name = 7: write it in quotes: name = \"7\""),
            ("[[vm]]\nname = web\n", "t.toml:2: "),
            ("[[vm]]\ncid = 3.5\n", "t.toml:2: vm number 1: cid = 3.5: write a whole number, without quotes"),
            ("[[vm]]\ncid = 99999999999999999999\n", "cid = 99999999999999999999: the number is too large"),
            (
                "[daemon]\ncoalesce = \"yes\"\n",
                "t.toml:2: daemon: coalesce = \"yes\": write true or false, without quotes",
            ),
            (
                "[limits]\noverflow_bytes = true\n",
                "limits: overflow_bytes = true: write a number, or a text such as overflow_bytes = \"64M\"",
            ),
            (
                "[[team]]\nname = \"t\"\nuplinks = \"lan\"\n",
                "team \"t\": uplinks = \"lan\": write a list: uplinks = [\"lan\"]",
            ),
            (
                "[[vm]]\nname = \"a\"\nnic = { model = \"vmxnet3\" }\n",
                "vm \"a\": nic = { model = \"vmxnet3\" }: write a list of tables",
            ),
            ("limits = 3\n", "t.toml:1: limits = 3: write a table: limits = { connections = ... }"),
        ] {
            let found = problems(text);
            assert!(found.len() == 1 && found[0].contains(words), "{text}: {found:?}");
            for jargon in ["i64", "sequence", "unknown field", "invalid type", "duplicate key"] {
                assert!(!found[0].contains(jargon), "{found:?}");
            }
        }
    }

    #[test]
    fn brackets_are_one_pair_for_one_table_and_two_for_several() {
        let several = "there may be several of these tables, so each has two brackets; write [[";
        for text in
            ["[vm]\nname = \"a\"\ncid = 3\n", "[vm]\nname = \"a\"\n[vm]\nname = \"b\"\n", "[vm]\n[[vm]]\n"]
        {
            assert_eq!(problems(text), [format!("t.toml:1: [vm]: {several}vm]]")], "{text}");
        }
        assert_eq!(
            problems("[[vm]]\n[vm.nic]\n[vm.nic]\n"),
            [format!("t.toml:2: [vm.nic]: {several}vm.nic]]")]
        );
        assert_eq!(
            problems("[[daemon]]\n"),
            ["t.toml:1: [[daemon]]: there is only one such table; write [daemon]"]
        );
        let twice = problems("[daemon]\nworkers = 1\nworkers = 2\n");
        assert!(
            twice.len() == 1 && twice[0].contains("t.toml:3: this is there twice; remove one"),
            "{twice:?}"
        );
    }

    #[test]
    fn a_key_that_is_misspelt_or_misplaced_is_recognized() {
        for (text, words) in [
            ("[[vm]]\nname = \"a\"\nvsock-role = \"client\"\n", "did you mean vsock_role?"),
            (
                "[[vm]]\nname = \"a\"\nmac = \"52:54:00:00:00:03\"\n",
                "it is a key of nic of [[vm]]; here there are cid,",
            ),
            ("[limits]\nworkers = 2\n", "it is a key of [daemon]; here there are connections,"),
            (
                "[[uplinks]]\nname = \"a\"\n",
                "t.toml:1: [[uplinks]]: there is no such table; did you mean [[uplink]]?",
            ),
            ("wrokers = 2\n", "t.toml:1: wrokers = 2: there is no such key; "),
        ] {
            let found = problems(text);
            assert!(found.len() == 1 && found[0].contains(words), "{text}: {found:?}");
        }
        let all = problems("[daemon]\nworkres = 1\nmode = 3\n[[vm]]\nnmae = \"a\"\n");
        let lines: Vec<&str> = all.iter().map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(lines, ["t.toml:2", "t.toml:3", "t.toml:5"], "{all:?}");
    }

    #[test]
    fn a_mistake_makes_no_second_one() {
        let nic = "nic = [{ model = \"vmxnet3\", mac = \"52:54\" }]";
        let route = "[route]\nname = \"alpha\"\ncertificate = \"/c\"\nkey = \"/k\"\nauthority = \"/a\"\n";
        let uplinks = "[[uplink]]\nname = \"up0\"\n[[team]]\nname = \"t\"\nuplinks = [\"up0\"]\n\
                       [[mirror]]\nname = \"m\"\nfrom = [\"a/nic0\"]\nto = \"up0\"\n";
        let mirrored = vm("a", 3, "nic = [{ model = \"virtio-net\" }]");
        let forward = "forward = [{ port = 1, to = \"b:2\" }]";
        for (what, text, count) in [
            ("addresses that are none", vm("a", 3, nic) + &vm("b", 4, nic), 2),
            ("an address that is none", vm("a", 3, nic), 1),
            ("a VM without a name", format!("[[vm]]\ncid = 4\n{}", vm("a", 3, forward)), 1),
            (
                "VMs without a name",
                format!("{0}{0}", "[[vm]]\nvsock = \"none\"\nnic = [{ model = \"virtio-net\" }]\n"),
                2,
            ),
            ("a target's vsock", vm("a", 3, forward) + &vm("b", 4, "vsock = \"virtoi\""), 1),
            ("a target's group", vm("a", 3, forward) + &vm("b", 4, "group = \"x y\""), 1),
            (
                "a kind of vsock",
                vm("a", 3, "vsock = \"virtoi\"\nvsock_role = \"client\"\nparent_cid = 7\nuds_path = \"/v\""),
                1,
            ),
            ("a model", vm("a", 3, "vsock = \"virtio\"\nmovable = true\nnic = [{ model = \"virtoi\" }]"), 1),
            ("a reserved CID", vm("a", 1, "") + &vm("b", 1, ""), 2),
            (
                "a name twice",
                vm("a", 3, "nic = [{ model = \"vmxnet3\" }]")
                    + &vm("a", 4, "nic = [{ model = \"vmxnet3\" }]"),
                1,
            ),
            (
                "a path",
                vm("a", 3, "vsock = \"hybrid\"\nuds_path = \"v\"\nforward = [{ port = 1, to = \"host\" }]"),
                1,
            ),
            ("an uplink", mirrored + uplinks, 1),
            (
                "a port group",
                format!(
                    "[[port_group]]\nvlan = 3\n{}",
                    vm("a", 3, "nic = [{ model = \"vmxnet3\", port_group = \"p\" }]")
                ),
                1,
            ),
            ("the CIDs of a host", format!("{route}{}{}", vm("a", 3, ""), vm("b", 4, "")), 1),
            ("three of a name", vm("a", 3, "") + &vm("a", 4, "") + &vm("a", 5, ""), 2),
            ("both", vm("a", 3, "vsock = \"virtoi\"") + &vm("b", 3, ""), 2),
        ] {
            let found = problems(&text);
            assert_eq!(found.len(), count, "{what}: {found:#?}");
        }
    }

    #[test]
    fn the_schema_has_every_table_and_takes_no_other_key() {
        let schema = Config::schema();
        let workers = &schema["properties"]["daemon"]["properties"]["workers"];
        assert_eq!(workers["anyOf"], serde_json::json!([{ "type": "integer" }, { "const": "auto" }]));
        let vm = &schema["properties"]["vm"];
        assert_eq!(
            (&vm["type"], &vm["items"]["properties"]["cid"]["type"]),
            (&"array".into(), &"integer".into())
        );
        assert_eq!(vm["items"]["properties"]["nic"]["items"]["additionalProperties"], false);
        assert_eq!(
            schema["properties"]["port_group"]["items"]["properties"]["shape"]["properties"]["in"]["type"],
            "object"
        );
        assert_eq!(schema["additionalProperties"], false);
    }
}
