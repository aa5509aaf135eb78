//! Several files as one document: lists add up, in the order of the files; anything else may stand in one of
//! them only.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use crate::error::Problem;
use crate::raw::RawConfig;
use crate::shape::{self, Shape, Shaped as _};
use crate::sources::{Source, SourceKind, Sources};

/// All files together, with places as [`Sources`] counts them, or what is wrong with each.
pub fn merge(sources: &Sources) -> Result<RawConfig, Vec<Problem>> {
    let shape = RawConfig::shape();
    let mut problems = Vec::new();
    let mut whole = DeTable::new();
    for (start, source) in sources.placed() {
        match DeTable::parse(&source.text) {
            Ok(table) => {
                let table = moved_table(table.into_inner(), start);
                let mut misfits = shape.misfits(sources, &table);
                if !misfits.is_empty() {
                    misfits.sort_by_key(|(place, _)| *place);
                    problems.extend(misfits.into_iter().map(|(_, problem)| problem));
                    continue;
                }
                if source.kind == SourceKind::Vm {
                    problems.extend(more_than_a_vm(sources, source, start, &table));
                }
                problems.extend(add(sources, &mut whole, table));
            }
            Err(error) => {
                let brackets =
                    (error.message() == DUPLICATE).then(|| single_brackets(sources, &shape, start, source));
                problems.push(brackets.flatten().unwrap_or_else(|| not_understood(sources, start, &error)));
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let document = Deserializer::from(Spanned::new(sources.span(), whole));
    RawConfig::deserialize(document).map_err(|error| vec![not_understood(sources, 0, &error)])
}

/// Adds the keys of a file to those of the files before it.
fn add<'t>(sources: &Sources, whole: &mut DeTable<'t>, table: DeTable<'t>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, value) in table {
        let Some((first, before)) = whole.get_key_value(key.get_ref().as_ref()) else {
            whole.insert(key, value);
            continue;
        };
        if let (DeValue::Array(_), DeValue::Array(_)) = (before.get_ref(), value.get_ref()) {
            if let (Some(DeValue::Array(list)), DeValue::Array(more)) =
                (whole.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut), value.into_inner())
            {
                more.into_iter().for_each(|element| list.push(element));
            }
            continue;
        }
        let place = key.span().start;
        let text = format!(
            "{} is in {} already, and may be in one file only; remove one",
            key.get_ref(),
            sources.shown(first.span().start, place)
        );
        problems.push(sources.problem(place, text));
    }
    problems
}

/// What a file that describes one VM may not have.
fn more_than_a_vm(sources: &Sources, source: &Source, start: usize, table: &DeTable<'_>) -> Option<Problem> {
    let wrong = |place: usize, text: String| Some(sources.problem(place, text));
    if let Some((key, _)) = table.iter().find(|(key, _)| key.get_ref() != "vm") {
        let text = format!(
            "{}: a VM that is added at run time has one table [[vm]] and nothing else; move this to the configuration",
            key.get_ref()
        );
        return wrong(key.span().start, text);
    }
    let vms = table.get("vm").and_then(|vms| vms.get_ref().as_array()).map_or(&[][..], |vms| vms);
    match vms {
        [vm] => {
            let name = vm
                .get_ref()
                .as_table()
                .and_then(|vm| vm.get("name"))
                .and_then(|name| name.get_ref().as_str());
            let stem = source
                .path
                .file_name()
                .and_then(|file| file.to_str())
                .and_then(|file| file.strip_suffix(".toml"));
            match (name, stem) {
                (Some(name), Some(stem)) if name != stem => {
                    wrong(vm.span().start, format!("vm {name:?}: its file must be called {name}.toml"))
                }
                _ => None,
            }
        }
        [] => wrong(start, "there is no VM in it; write [[vm]], name = \"...\", cid = NUMBER".into()),
        [_, second, ..] => wrong(second.span().start, "a second VM: add each by itself".into()),
    }
}

fn moved_table(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    let mut moved = DeTable::new();
    for (key, value) in table {
        moved.insert(moved_by(key, by, |key| key), moved_by(value, by, |value| moved_value(value, by)));
    }
    moved
}

fn moved_value(value: DeValue<'_>, by: usize) -> DeValue<'_> {
    match value {
        DeValue::Table(table) => DeValue::Table(moved_table(table, by)),
        DeValue::Array(list) => {
            let list = list.into_iter().map(|one| moved_by(one, by, |one| moved_value(one, by)));
            DeValue::Array(list.collect::<DeArray<'_>>())
        }
        plain => plain,
    }
}

fn moved_by<T, U>(spanned: Spanned<T>, by: usize, inner: impl FnOnce(T) -> U) -> Spanned<U> {
    let span = spanned.span();
    Spanned::new(span.start + by..span.end + by, inner(spanned.into_inner()))
}

/// The parser's message for a key or a table that is there twice.
const DUPLICATE: &str = "duplicate key";

/// The first table of a file that is one of several and has single brackets: a second one is a duplicate
/// then.
fn single_brackets(sources: &Sources, shape: &Shape, start: usize, source: &Source) -> Option<Problem> {
    let mut place = start;
    for line in source.text.split_inclusive('\n') {
        if let Some(text) = shape::single_brackets(shape, line) {
            return Some(sources.problem(place, text));
        }
        place += line.len();
    }
    None
}

/// A syntax error, with its line. `start`: where the text that it is about begins.
fn not_understood(sources: &Sources, start: usize, error: &toml::de::Error) -> Problem {
    let message = match error.message().trim() {
        DUPLICATE => "this is there twice; remove one".to_owned(),
        other => other.replace('\n', ", "),
    };
    let Some(span) = error.span() else {
        return Problem { line: None, ..sources.problem(start, message) };
    };
    let place = start + span.start;
    let source = sources.text_of(place);
    let text = if source.is_empty() { message } else { format!("{message}, in `{source}`") };
    sources.problem(place, text)
}

#[cfg(test)]
mod tests;
