//! A domain's XML as a tree that knows where in the text each element is, and changes of that text.
//!
//! Changes are made in the text, not in the tree, so that all else of it (comments, order, white space) stays as it was.
//! The text may come from a tenant: its size, depth and number of elements are bounded, it may have no document type, and
//! so no entities but the five of XML.

use std::ops::Range;

use quick_xml::NsReader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{Namespace, ResolveResult};

/// Bytes of a domain, at most.
pub const MOST_BYTES: usize = 1 << 20;
pub const MOST_ELEMENTS: usize = 20_000;
pub const DEEPEST: usize = 64;

/// The namespace of what libvirt passes on to QEMU.
pub const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Why a text is no tree.
#[derive(Debug, thiserror::Error)]
pub enum XmlError {
    #[error("it has {0} bytes, and {MOST_BYTES} are the most")]
    TooLong(usize),
    #[error("it has more than {MOST_ELEMENTS} elements")]
    TooMany,
    #[error("its elements are nested more than {DEEPEST} deep")]
    TooDeep,
    #[error("it has a document type (<!DOCTYPE>), which a domain has not; remove it")]
    DocumentType,
    #[error("it says encoding={0:?}; convert it to UTF-8")]
    Encoding(String),
    #[error("byte {at}: {cause}")]
    Syntax { at: usize, cause: String },
    #[error("it has no element, or text outside of one")]
    NoElement,
    #[error("the element <{0}> does not end")]
    Unfinished(String),
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
    let mut reader = NsReader::from_str(source);
    let mut open: Vec<Element> = Vec::new();
    let mut outermost = None;
    let mut elements = 0;
    loop {
        let before = reader.buffer_position() as usize;
        let syntax =
            |cause: &dyn std::fmt::Display| XmlError::Syntax { at: before, cause: cause.to_string() };
        let (space, event) = reader.read_resolved_event().map_err(|cause| syntax(&cause))?;
        let space = match space {
            ResolveResult::Unbound => Space::Libvirt,
            // Its letters can be written as entities, and libvirt reads these.
            ResolveResult::Bound(Namespace(name)) => {
                match &*unescape(name).map_err(|cause| syntax(&cause))? {
                    QEMU => Space::Qemu,
                    _ => Space::Other,
                }
            }
            ResolveResult::Unknown(_) => Space::Other,
        };
        let one_tag = matches!(event, Event::Empty(_));
        let place = |end: u64| before..end as usize;
        match event {
            Event::Start(tag) | Event::Empty(tag) => {
                elements += 1;
                if elements > MOST_ELEMENTS {
                    return Err(XmlError::TooMany);
                }
                if open.len() >= DEEPEST {
                    return Err(XmlError::TooDeep);
                }
                let element = element(source, &tag, space).map_err(|cause| syntax(&cause))?;
                let start = place(reader.buffer_position());
                let (content_end, end) = (start.end, start.end);
                let element = Element { start, content_end, end, ..element };
                if one_tag {
                    close(element, &mut open, &mut outermost)?;
                } else {
                    open.push(element);
                }
            }
            Event::End(_) => {
                let Some(mut element) = open.pop() else { return Err(XmlError::NoElement) };
                (element.content_end, element.end) = (before, reader.buffer_position() as usize);
                close(element, &mut open, &mut outermost)?;
            }
            Event::Text(_) | Event::GeneralRef(_) => {
                let text = &source[place(reader.buffer_position())];
                let text = unescape(text).map_err(|cause| syntax(&cause))?;
                add_text(&text, &mut open)?;
            }
            Event::CData(text) => add_text(&text, &mut open)?,
            Event::Comment(_) | Event::PI(_) => {}
            Event::Decl(declaration) => {
                let encoding = declaration.encoding().transpose().map_err(|cause| syntax(&cause))?;
                if let Some(other) = encoding.filter(|name| !name.eq_ignore_ascii_case("utf-8")) {
                    return Err(XmlError::Encoding(other.into_owned()));
                }
            }
            Event::DocType(_) => return Err(XmlError::DocumentType),
            Event::Eof => break,
        }
    }
    if let Some(element) = open.pop() {
        return Err(XmlError::Unfinished(element.name));
    }
    outermost.ok_or(XmlError::NoElement)
}

fn element(source: &str, tag: &BytesStart<'_>, space: Space) -> Result<Element, quick_xml::Error> {
    let mut attributes = Vec::new();
    for attribute in tag.attributes() {
        let attribute = attribute?;
        // A value lies in the text, from which nothing was copied.
        let at = (attribute.value.as_ptr() as usize).wrapping_sub(source.as_ptr() as usize);
        let place = at..at.wrapping_add(attribute.value.len());
        attributes.push(Attribute {
            name: attribute.key.into_inner().to_owned(),
            value: unescape(&attribute.value)?.into_owned(),
            place,
        });
    }
    let name = tag.local_name().into_inner().to_owned();
    let (text, children) = (String::new(), Vec::new());
    Ok(Element { name, space, attributes, text, children, start: 0..0, content_end: 0, end: 0 })
}

fn close(element: Element, open: &mut [Element], outermost: &mut Option<Element>) -> Result<(), XmlError> {
    match open.last_mut() {
        Some(parent) => parent.children.push(element),
        None if outermost.is_some() => return Err(XmlError::NoElement),
        None => *outermost = Some(element),
    }
    Ok(())
}

fn add_text(text: &str, open: &mut [Element]) -> Result<(), XmlError> {
    match open.last_mut() {
        Some(element) => element.text.push_str(text),
        None if text.trim_start_matches('\u{feff}').trim().is_empty() => {}
        None => return Err(XmlError::NoElement),
    }
    Ok(())
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
    quick_xml::escape::escape(text).into_owned()
}
