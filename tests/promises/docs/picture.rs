//! Draws the picture of the architecture: boxes and edges from a TOML file, as SVG.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Picture {
    width: i32,
    height: i32,
    #[serde(rename = "box")]
    boxes: Vec<Box>,
    #[serde(rename = "edge")]
    edges: Vec<Edge>,
    #[serde(default, rename = "note")]
    notes: Vec<Note>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Box {
    id: String,
    at: [i32; 2],
    size: [i32; 2],
    kind: Kind,
    title: String,
    #[serde(default)]
    text: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edge {
    from: String,
    to: String,
    kind: Kind,
    #[serde(default)]
    label: Vec<String>,
    x: Option<i32>,
    to_x: Option<i32>,
    bend: Option<i32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    at: [i32; 2],
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Outside,
    Daemon,
    Plain,
    Stream,
    Frame,
}

impl Kind {
    /// The colours of a box: inside, and of its border and of edges.
    fn colours(self) -> (&'static str, &'static str) {
        match self {
            Kind::Outside => ("#f3f4f6", "#6b7280"),
            Kind::Daemon => ("#fafafa", "#374151"),
            Kind::Plain => ("#e5e7eb", "#6b7280"),
            Kind::Stream => ("#dbeafe", "#2563eb"),
            Kind::Frame => ("#ffedd5", "#c2570c"),
        }
    }
}

const TITLE: i32 = 14;
const TEXT: i32 = 12;
const LINE: i32 = 16;

/// An upper estimate of a text's width in a common sans-serif font.
pub fn width(text: &str, size: i32) -> i32 {
    let tenths: i32 = text
        .chars()
        .map(|c| match c {
            'i' | 'l' | 'j' | 't' | 'f' | 'r' | ' ' | '.' | ',' | ':' | ';' | '/' | '(' | ')' | '-' => 4,
            'm' | 'w' | 'M' | 'W' => 9,
            'A'..='Z' | '_' => 7,
            _ => 6,
        })
        .sum();
    tenths * size / 10
}

impl Box {
    fn centre(&self) -> i32 {
        self.at[0] + self.size[0] / 2
    }

    fn bottom(&self) -> i32 {
        self.at[1] + self.size[1]
    }

    fn right(&self) -> i32 {
        self.at[0] + self.size[0]
    }

    fn contains(&self, other: &Box) -> bool {
        self.at[0] <= other.at[0]
            && self.at[1] <= other.at[1]
            && self.right() >= other.right()
            && self.bottom() >= other.bottom()
    }

    fn overlaps(&self, other: &Box) -> bool {
        self.at[0] < other.right()
            && other.at[0] < self.right()
            && self.at[1] < other.bottom()
            && other.at[1] < self.bottom()
    }

    /// A box that holds others has its title at its top.
    fn draw(&self, holds_others: bool, svg: &mut String) {
        let ([x, y], [w, h], (fill, stroke)) = (self.at, self.size, self.kind.colours());
        let round = if self.kind == Kind::Daemon { 10 } else { 6 };
        let _ = writeln!(
            svg,
            r#"<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="{round}" fill="{fill}" stroke="{stroke}"/>"#
        );
        let lines = self.text.len() as i32;
        let first = if holds_others { y + 23 } else { y + (h - lines * LINE) / 2 + 5 };
        let centre = self.centre();
        for (index, line) in std::iter::once(&self.title).chain(&self.text).enumerate() {
            let (class, size) = if index == 0 { ("t", TITLE) } else { ("l", TEXT) };
            assert!(width(line, size) <= w - 8, "box {}: {line:?} is wider than the box", self.id);
            let down = first + index as i32 * (LINE + 1);
            assert!(down + 4 <= self.bottom(), "box {}: {line:?} is below the box", self.id);
            let _ =
                writeln!(svg, r#"<text class="{class}" x="{centre}" y="{down}">{}</text>"#, escaped(line));
        }
    }
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn arrow(svg: &mut String, x: i32, y: i32, down: bool, colour: &str) {
    let base = if down { y - 8 } else { y + 8 };
    let _ = writeln!(svg, r#"<path d="M{x} {y}L{} {base}L{} {base}Z" fill="{colour}"/>"#, x - 4, x + 4);
}

impl Edge {
    fn draw(&self, boxes: &HashMap<&str, &Box>, svg: &mut String) {
        let find =
            |id: &str| *boxes.get(id).unwrap_or_else(|| panic!("an edge names box {id}, which is missing"));
        let (from, to) = (find(&self.from), find(&self.to));
        let (start, end) = (from.bottom(), to.at[1]);
        assert!(start < end, "the edge from {} to {} does not run down", self.from, self.to);
        let colour = self.kind.colours().1;
        let x = self.x.unwrap_or(from.centre());
        let to_x = self.to_x.unwrap_or(x);
        assert!(x > from.at[0] && x < from.right(), "the edge from {} leaves beside its box", self.from);
        assert!(to_x > to.at[0] && to_x < to.right(), "the edge to {} arrives beside its box", self.to);
        let bend = self.bend.unwrap_or(i32::midpoint(start, end));
        let _ = writeln!(
            svg,
            r#"<path d="M{x} {}V{bend}H{to_x}V{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            start + 6,
            end - 6
        );
        arrow(svg, x, start + 1, false, colour);
        arrow(svg, to_x, end - 1, true, colour);
        for (index, line) in self.label.iter().enumerate() {
            let middle = i32::midpoint(start, end.min(196));
            let down = middle + 5 + index as i32 * LINE - (self.label.len() as i32 - 1) * LINE / 2;
            let _ = writeln!(svg, r#"<text class="e" x="{}" y="{down}">{}</text>"#, x + 12, escaped(line));
        }
    }
}

/// The SVG of a picture. Panics with a sentence when the picture has a mistake.
pub fn svg(source: &str) -> String {
    let picture: Picture = toml::from_str(source).expect("the picture's source");
    let (width, height) = (picture.width, picture.height);
    for (index, one) in picture.boxes.iter().enumerate() {
        for other in &picture.boxes[index + 1..] {
            let apart = !one.overlaps(other) || one.contains(other) || other.contains(one);
            assert!(apart, "boxes {} and {} overlap", one.id, other.id);
        }
    }
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="Architecture of vmlane">
<!-- Made from docs/architecture.toml by `make picture`. -->
<style>
text {{ font-family: "Helvetica Neue", Arial, "Liberation Sans", "DejaVu Sans", sans-serif; fill: #111827 }}
.t {{ font-size: {TITLE}px; font-weight: 600; text-anchor: middle }}
.l {{ font-size: {TEXT}px; text-anchor: middle; fill: #374151 }}
.e {{ font-size: {TEXT}px; fill: #374151 }}
.n {{ font-size: {TEXT}px; font-style: italic }}
</style>
<rect width="{width}" height="{height}" rx="12" fill="#ffffff" stroke="#d1d5db"/>
"##
    );
    let boxes: HashMap<&str, &Box> = picture.boxes.iter().map(|one| (one.id.as_str(), one)).collect();
    for one in &picture.boxes {
        let holds_others = picture.boxes.iter().any(|other| other.id != one.id && one.contains(other));
        one.draw(holds_others, &mut svg);
    }
    for edge in &picture.edges {
        edge.draw(&boxes, &mut svg);
    }
    for Note { at: [x, y], kind, text } in &picture.notes {
        let colour = kind.colours().1;
        let _ = writeln!(
            svg,
            r#"<text class="n" x="{x}" y="{y}" style="fill: {colour}">{}</text>"#,
            escaped(text)
        );
    }
    svg + "</svg>\n"
}
