//! What the checks of all sections find: mistakes with their places; and the rules by which they read names,
//! numbers and words.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use toml::Spanned;

use crate::error::{ConfigError, Problem};
use crate::merge::merge;
use crate::raw::{RawConfig, Size};
use crate::sources::{SourceKind, Sources};

const LONGEST_NAME: usize = 64;

/// What others refer to by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    Vm,
    Switch,
    PortGroup,
    Uplink,
    Team,
    Wire,
}

impl Named {
    fn table(self) -> &'static str {
        match self {
            Named::Vm => "vm",
            Named::Switch => "switch",
            Named::PortGroup => "port_group",
            Named::Uplink => "uplink",
            Named::Team => "team",
            Named::Wire => "wire",
        }
    }
}

/// See the module's text.
pub struct Notes<'t> {
    sources: &'t Sources,
    /// With their places, by which they are sorted.
    problems: Vec<(usize, Problem)>,
    /// One of these is missing because of a mistake of its own, so a name that is unknown may be right.
    uncertain: HashSet<Named>,
    /// Where something is described, for warnings.
    pub marks: BTreeMap<String, (PathBuf, usize)>,
}

impl Notes<'_> {
    pub fn problem(&mut self, span: Range<usize>, text: String) {
        self.problems.push((span.start, self.sources.problem(span.start, text)));
    }

    /// A mistake that several values make together. It is not reported if one of them is wrong by itself:
    /// what it was meant to be is not known.
    pub fn conflict(&mut self, span: Range<usize>, of: &[Range<usize>], text: String) {
        let is_wrong = |span: &Range<usize>| self.problems.iter().any(|(place, _)| span.contains(place));
        if !of.iter().any(is_wrong) {
            self.problem(span, text);
        }
    }

    /// How many mistakes there are so far.
    pub fn count(&self) -> usize {
        self.problems.len()
    }

    /// A name that none of that kind has.
    pub fn unknown(&mut self, kind: Named, span: Range<usize>, text: String) {
        if !self.is_uncertain(kind) {
            self.problem(span, text);
        }
    }

    /// Is one of that kind missing because of a mistake of its own?
    pub fn is_uncertain(&self, kind: Named) -> bool {
        self.uncertain.contains(&kind)
    }

    /// One of that kind is left out because of its mistakes.
    pub fn leave_out(&mut self, kind: Named) {
        self.uncertain.insert(kind);
    }

    /// Remembers where something is described.
    pub fn mark(&mut self, what: String, span: Range<usize>) {
        if let Some((source, line)) = self.sources.at(span.start) {
            self.marks.insert(what, (source.path.clone(), line));
        }
    }

    /// A place, in a message about another one.
    pub fn shown(&self, place: usize, near: usize) -> String {
        self.sources.shown(place, near)
    }

    /// Is this place in the description of a VM that was added at run time?
    pub fn is_added(&self, place: usize) -> bool {
        self.sources.at(place).is_some_and(|(source, _)| source.kind == SourceKind::Vm)
    }

    /// The name of an element of a list, which must have one.
    pub fn name_of<'n>(
        &mut self,
        kind: Named,
        index: usize,
        span: Range<usize>,
        name: &'n Option<Spanned<String>>,
    ) -> Option<&'n Spanned<String>> {
        let table = kind.table();
        match name {
            Some(name) => drop(self.name(table, "name", name)),
            None => {
                let text = format!("{table} number {}: name is missing; add name = \"...\"", index + 1);
                self.problem(span, text);
                self.leave_out(kind);
            }
        }
        name.as_ref()
    }

    /// Names become parts of paths and of addresses such as `db:5000`.
    pub fn name(&mut self, table: &str, key: &str, value: &Spanned<String>) -> String {
        let name = value.get_ref();
        let good = name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.len() <= LONGEST_NAME
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !good {
            let text = format!(
                "{table}: {key} = {name:?}: use up to {LONGEST_NAME} letters, digits, '.', '_' and '-', a letter or digit first"
            );
            self.problem(value.span(), text);
        }
        name.clone()
    }

    pub fn names(&mut self, table: &str, key: &str, values: &[Spanned<String>]) -> Vec<String> {
        values.iter().map(|value| self.name(table, key, value)).collect()
    }

    /// A number, unless it is out of the range, which is a mistake.
    pub fn number<T: TryFrom<i64>>(
        &mut self,
        table: &str,
        key: &str,
        value: &Option<Spanned<i64>>,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        let value = value.as_ref()?;
        let number = *value.get_ref();
        if !range.contains(&number) {
            self.problem(value.span(), format!("{table}: {key} = {number}; use a number {}", shown(&range)));
            return None;
        }
        number.try_into().ok()
    }

    /// The same of a size.
    pub fn size(
        &mut self,
        table: &str,
        key: &str,
        value: &Option<Spanned<Size>>,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = value.as_ref()?;
        let Size { value: bytes, written, .. } = value.get_ref();
        let bytes = bytes.filter(|bytes| range.contains(bytes));
        if bytes.is_none() {
            let text = format!("{table}: {key} = {written}; use a number (or \"64M\") {}", shown(&range));
            self.problem(value.span(), text);
        }
        bytes
    }

    /// One of the words that `known` knows and `way_out` lists.
    pub fn word<T>(
        &mut self,
        table: &str,
        key: &str,
        value: &Option<Spanned<String>>,
        known: impl FnOnce(&str) -> Option<T>,
        way_out: &str,
    ) -> Option<T> {
        let value = value.as_ref()?;
        let word = value.get_ref();
        let found = known(word);
        if found.is_none() {
            self.problem(value.span(), format!("{table}: {key} = {word:?} is unknown; use {way_out}"));
        }
        found
    }
}

/// What `make` makes of these files, as one document, unless they have mistakes.
pub fn check<T>(
    sources: &Sources,
    make: impl FnOnce(&RawConfig, &mut Notes<'_>) -> T,
) -> Result<T, ConfigError> {
    let raw = merge(sources).map_err(|problems| ConfigError::Invalid { problems })?;
    let mut notes =
        Notes { sources, problems: Vec::new(), uncertain: HashSet::new(), marks: BTreeMap::new() };
    let made = make(&raw, &mut notes);
    notes.problems.sort_by_key(|(place, _)| *place);
    let problems: Vec<_> = notes.problems.into_iter().map(|(_, problem)| problem).collect();
    if problems.is_empty() { Ok(made) } else { Err(ConfigError::Invalid { problems }) }
}

/// Where a value stands, if it is given.
pub fn places<T>(value: &Option<Spanned<T>>) -> Vec<Range<usize>> {
    value.iter().map(Spanned::span).collect()
}

pub fn shown<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("from {} to {}", range.start(), range.end())
}

/// What has this key already; else this is what has it.
pub fn first<K: Eq + Hash, V: Clone>(seen: &mut HashMap<K, V>, key: K, value: V) -> Option<V> {
    let before = seen.get(&key).cloned();
    if before.is_none() {
        seen.insert(key, value);
    }
    before
}
