//! A domain's XML as a tree that knows where in the text each element is, and changes of that text.
//!
//! Changes are made in the text, not in the tree, so that all else of it (comments, order, white space) stays
//! as it was. The text may come from a tenant: its size, depth and number of elements are bounded, it may
//! have no document type, and so no entities but the five of XML.

use std::ops::Range;

use roxmltree::{Document, Node};

/// Bytes of a domain, at most.
pub const MOST_BYTES: usize = 1 << 20;
pub const MOST_NODES: u32 = 50_000;
pub const DEEPEST: usize = 64;

/// The namespace of what libvirt passes on to QEMU.
pub const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Why a text is no tree.
#[derive(Debug, thiserror::Error)]
pub enum XmlError {
    #[error("it has {0} bytes, and {MOST_BYTES} are the most")]
    TooLong(usize),
    #[error("it has more than {MOST_NODES} elements, texts and comments")]
    TooMany,
    #[error("its elements are nested more than {DEEPEST} deep")]
    TooDeep,
    #[error("it has a document type (<!DOCTYPE>), which a domain has not; remove it")]
    DocumentType,
    #[error("its encoding is {0:?}; convert it to UTF-8")]
    Encoding(String),
    #[error("{0}")]
    Syntax(roxmltree::Error),
}

/// Whose element it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Libvirt,
    Qemu,
    /// Of a program's metadata.
    Other,
}

/// One attribute; its value without entities, and where it is in the text.
#[derive(Debug)]
pub struct Attribute {
    pub name: String,
    pub value: String,
    pub place: Range<usize>,
}

#[derive(Debug)]
pub struct Element {
    /// Without a prefix.
    pub name: String,
    pub space: Space,
    pub attributes: Vec<Attribute>,
    /// Namespaces that have a prefix here: the prefix, and whose it is.
    pub prefixes: Vec<(String, String)>,
    /// Its own text, without entities and without that of its children.
    pub text: String,
    pub children: Vec<Element>,
    /// Its first tag.
    pub start: Range<usize>,
    /// Where its content ends; it has none if that is the end of its first tag.
    pub content_end: usize,
    /// Where its last tag ends.
    pub end: usize,
}

impl Element {
    /// The elements in it with a name of libvirt's.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name && child.space == Space::Libvirt)
    }

    /// The first of them.
    pub fn first(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name && child.space == Space::Libvirt)
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|found| found.value.as_str())
    }

    /// An attribute of the first element of that name in it.
    pub fn of_first(&self, element: &str, attribute: &str) -> Option<&str> {
        self.first(element)?.attribute(attribute)
    }

    /// Whether its first tag is its last, too.
    fn is_one_tag(&self) -> bool {
        self.start.end == self.end
    }
}

/// The outermost element.
///
/// # Errors
/// It is no XML, or more than is read.
pub fn parse(source: &str) -> Result<Element, XmlError> {
    if source.len() > MOST_BYTES {
        return Err(XmlError::TooLong(source.len()));
    }
    if let Some(other) = declared_encoding(source).filter(|name| !name.eq_ignore_ascii_case("utf-8")) {
        return Err(XmlError::Encoding(other.to_owned()));
    }
    let options = roxmltree::ParsingOptions { nodes_limit: MOST_NODES, ..Default::default() };
    let document = Document::parse_with_options(source, options).map_err(|error| match error {
        roxmltree::Error::DtdDetected => XmlError::DocumentType,
        roxmltree::Error::NodesLimitReached => XmlError::TooMany,
        other => XmlError::Syntax(other),
    })?;
    element(source, document.root_element(), DEEPEST)
}

fn declared_encoding(source: &str) -> Option<&str> {
    let declaration = source.trim_start_matches('\u{feff}').strip_prefix("<?xml")?.split_once("?>")?.0;
    declaration.split_once("encoding")?.1.split(['\'', '"']).nth(1)
}

/// An element and all in it; `deeper` is how many elements may be nested from here on.
fn element(source: &str, node: Node<'_, '_>, deeper: usize) -> Result<Element, XmlError> {
    let deeper = deeper.checked_sub(1).ok_or(XmlError::TooDeep)?;
    let place = node.range();
    let start = place.start..tag_end(source, place.start);
    let content_end = if start.end == place.end { place.end } else { last_tag(source, &place) };
    let attribute = |attribute: roxmltree::Attribute<'_, '_>| {
        let place = attribute.range();
        let quote = source[place.clone()].find(['\'', '"']).unwrap_or_default();
        Attribute {
            // One of a program's metadata is none of libvirt's, whatever it is called.
            name: match attribute.namespace() {
                None => attribute.name().to_owned(),
                Some(space) => format!("{space}:{}", attribute.name()),
            },
            value: attribute.value().to_owned(),
            place: place.start + quote + 1..place.end - 1,
        }
    };
    let prefix = |space: &roxmltree::Namespace<'_>| Some((space.name()?.to_owned(), space.uri().to_owned()));
    let children = node.children().filter(Node::is_element).map(|child| element(source, child, deeper));
    Ok(Element {
        name: node.tag_name().name().to_owned(),
        space: match node.tag_name().namespace() {
            None => Space::Libvirt,
            Some(QEMU) => Space::Qemu,
            Some(_) => Space::Other,
        },
        attributes: node.attributes().map(attribute).collect(),
        prefixes: node.namespaces().filter_map(prefix).collect(),
        text: node.children().filter(Node::is_text).filter_map(|text| text.text()).collect(),
        children: children.collect::<Result<_, _>>()?,
        start,
        content_end,
        end: place.end,
    })
}

/// Where the tag that begins at `from` ends: a `>` in a value does not end it.
fn tag_end(source: &str, from: usize) -> usize {
    let mut quote = None;
    let ends = |byte: u8| {
        match quote {
            Some(end) if byte == end => quote = None,
            None if matches!(byte, b'\'' | b'"') => quote = Some(byte),
            _ => {}
        }
        quote.is_none() && byte == b'>'
    };
    source[from..].bytes().position(ends).map_or(source.len(), |at| from + at + 1)
}

/// Where the last tag of an element begins.
fn last_tag(source: &str, element: &Range<usize>) -> usize {
    source[element.clone()].rfind("</").map_or(element.end, |at| element.start + at)
}

/// Changes of a text, each at a place of its own.
#[derive(Debug)]
pub struct Edits<'a> {
    source: &'a str,
    changes: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    pub fn of(source: &'a str) -> Edits<'a> {
        Edits { source, changes: Vec::new() }
    }

    /// The white space before an element on its line; empty if there is more than that.
    fn indentation(&self, at: usize) -> &'a str {
        let line = self.source[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = &self.source[line..at];
        if before.bytes().all(|byte| byte == b' ' || byte == b'\t') { before } else { "" }
    }

    pub fn replace(&mut self, place: Range<usize>, text: impl Into<String>) {
        self.changes.push((place, text.into()));
    }

    /// Takes an element out, with the line that it leaves empty.
    pub fn remove(&mut self, element: &Element) {
        let mut from = element.start.start - self.indentation(element.start.start).len();
        if self.source[..from].ends_with('\n') && self.source[element.end..].starts_with(['\n', '\r']) {
            from -= if self.source[..from].ends_with("\r\n") { 2 } else { 1 };
        }
        self.replace(from..element.end, "");
    }

    /// Puts lines in the place of an element.
    pub fn exchange(&mut self, element: &Element, lines: &str) {
        let lines = indented(self.indentation(element.start.start), lines);
        self.replace(element.start.start..element.end, lines.trim());
    }

    /// Puts lines after an element, with its indentation.
    pub fn after(&mut self, element: &Element, lines: &str) {
        let lines = indented(self.indentation(element.start.start), lines);
        self.replace(element.end..element.end, format!("\n{}", lines.trim_end()));
    }

    /// Puts lines into an element, after all that is in it.
    pub fn append(&mut self, to: &Element, lines: &str) {
        let outer = self.indentation(to.start.start);
        let inner = match to.children.last() {
            Some(last) => self.indentation(last.start.start).to_owned(),
            None => format!("{outer}  "),
        };
        let lines = indented(&inner, lines);
        if to.is_one_tag() {
            let tag = self.source[to.start.clone()].trim_end_matches("/>").trim_end();
            let name = tag[1..].split(|byte: char| byte.is_ascii_whitespace()).next().unwrap_or_default();
            self.replace(to.start.clone(), format!("{tag}>\n{}\n{outer}</{name}>", lines.trim_end()));
            return;
        }
        let content = &self.source[to.start.end..to.content_end];
        let at = to.start.end + content.trim_end().len();
        self.replace(at..to.content_end, format!("\n{}\n{outer}", lines.trim_end()));
    }

    /// Gives an element an attribute.
    pub fn set(&mut self, element: &Element, name: &str, value: &str) {
        match element.attributes.iter().find(|attribute| attribute.name == name) {
            Some(attribute) if attribute.value == value => {}
            Some(attribute) => self.replace(attribute.place.clone(), escaped(value)),
            None => {
                let tag = &self.source[element.start.clone()];
                let inside = tag.trim_end_matches('>').trim_end_matches('/').trim_end();
                let at = element.start.start + inside.len();
                self.replace(at..at, format!(" {name}='{}'", escaped(value)));
            }
        }
    }

    /// The text with all changes; in the order of their places, and of their making where these are the same.
    pub fn apply(mut self) -> String {
        self.changes.sort_by_key(|(place, _)| (place.start, place.end));
        let mut out = String::with_capacity(self.source.len());
        let mut from = 0;
        for (place, text) in &self.changes {
            out += &self.source[from.min(place.start)..place.start];
            out += text;
            from = from.max(place.end);
        }
        out + &self.source[from..]
    }
}

/// Lines behind an indentation.
pub fn indented(indentation: &str, lines: &str) -> String {
    lines.lines().map(|line| format!("{indentation}{line}\n")).collect()
}

/// Text as it may stand in an attribute or an element.
pub fn escaped(text: &str) -> String {
    let escape = |letter| match letter {
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '&' => "&amp;".to_owned(),
        '\'' => "&apos;".to_owned(),
        '"' => "&quot;".to_owned(),
        other => other.to_string(),
    };
    text.chars().map(escape).collect()
}
