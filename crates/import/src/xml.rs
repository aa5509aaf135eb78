//! What both kinds of XML need.

use roxmltree::{Document, Node};

use crate::{Error, MOST_BYTES};

/// Elements and attributes of a document, at most.
const MOST_NODES: u32 = 200_000;

/// A document without entities of its own.
pub fn parse(text: &str) -> Result<Document<'_>, Error> {
    if text.len() > MOST_BYTES {
        return Err(Error::TooLong(text.len()));
    }
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
