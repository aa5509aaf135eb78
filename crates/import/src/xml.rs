//! What both kinds of XML need.

use std::borrow::Cow;
use std::collections::BTreeMap;

use roxmltree::{Document, Node};

use crate::kind::{Expected, refuse_others};
use crate::machine::Machine;
use crate::{Error, MOST_BYTES};

/// Elements and attributes of a document, at most.
const MOST_NODES: u32 = 200_000;

/// The text of a document of the expected kind.
pub fn text_of(source: &[u8], expected: Expected) -> Result<Cow<'_, str>, Error> {
    if source.len() > MOST_BYTES {
        return Err(Error::TooLong(source.len()));
    }
    refuse_others(source, expected)?;
    Ok(crate::text::xml(source))
}

/// A document without entities of its own.
pub fn parse(text: &str) -> Result<Document<'_>, Error> {
    let options =
        roxmltree::ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..Default::default() };
    Document::parse_with_options(text, options).map_err(|error| Error::Xml(error.to_string()))
}

/// The elements in another one that have a name, whatever their namespace.
pub fn all<'a, 'i: 'a>(of: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    of.children().filter(move |node| node.is_element() && node.tag_name().name() == name)
}

/// The first of them.
pub fn first<'a, 'i: 'a>(of: Node<'a, 'i>, name: &'static str) -> Option<Node<'a, 'i>> {
    all(of, name).next()
}

/// The text of the first of them, if it has any.
pub fn text<'a, 'i: 'a>(of: Node<'a, 'i>, name: &'static str) -> Option<&'a str> {
    first(of, name)?.text().map(str::trim).filter(|text| !text.is_empty())
}

/// An attribute, whatever its namespace.
pub fn attribute<'a>(of: Node<'a, '_>, name: &str) -> Option<&'a str> {
    of.attributes().find(|attribute| attribute.name() == name).map(|attribute| attribute.value())
}

/// An attribute of an element in another one.
pub fn of_first<'a, 'i: 'a>(of: Node<'a, 'i>, element: &'static str, name: &str) -> Option<&'a str> {
    attribute(first(of, element)?, name)
}

/// Notes the elements in another one that are in no list: neither what is read, nor what may be
/// left out without a word. `hints` has what can be done about some.
pub fn note_others(
    machine: &mut Machine,
    place: &str,
    of: Node<'_, '_>,
    known: &[&[&str]],
    hints: &[(&str, &str)],
) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in of.children().filter(Node::is_element) {
        let name = node.tag_name().name();
        if !known.iter().any(|names| names.contains(&name)) {
            *counts.entry(name).or_default() += 1;
        }
    }
    for (name, count) in counts {
        let times = if count > 1 { format!(" ({count})") } else { String::new() };
        let hint = hints.iter().find(|(element, _)| *element == name).map(|(_, then)| format!("; {then}"));
        machine.note(
            format!("{place}<{name}>{times}"),
            format!("is not carried over{}", hint.unwrap_or_default()),
        );
    }
}
