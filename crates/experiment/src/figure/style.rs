//! What tells series apart: lightness and pattern of fills, dashes and markers of lines; hue comes last.

use std::fmt::Write;

/// Ground, pattern strokes, and their path in a tile of 8 by 8; neighbours differ in lightness and in pattern.
const FILLS: [(&str, &str, &str); 8] = [
    ("#1f4e8c", "", ""),
    ("#f6d3a8", "#9a5412", "M-2 2L2 -2M0 8L8 0M6 10L10 6"),
    ("#7fb3e6", "", ""),
    ("#8a4b14", "#fff", "M-2 6L2 10M0 0L8 8M6 -2L10 2"),
    ("#f2f2f2", "#444", "M2 2h1.6v1.6h-1.6zM6 6h1.6v1.6h-1.6z"),
    ("#4d4d4d", "#fff", "M0 2H8M0 6H8"),
    ("#bfe3c0", "#2d6a31", "M2 0V8M6 0V8"),
    ("#6b3a7a", "#fff", "M0 4H8M4 0V8"),
];

/// Colour and dashes.
const LINES: [(&str, &str); 8] = [
    ("#1f4e8c", ""),
    ("#c0661a", "7 4"),
    ("#4f97d9", "2 3"),
    ("#8a4b14", "9 3 2 3"),
    ("#555", "4 2"),
    ("#2d6a31", "1 2"),
    ("#6b3a7a", "12 4"),
    ("#9a8a00", "6 2 2 2 2 2"),
];

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The fill of a series.
pub fn fill(id: &str, number: usize) -> String {
    let (ground, stroke, _) = FILLS[number % FILLS.len()];
    if stroke.is_empty() { ground.to_owned() } else { format!("url(#{id}-{})", number % FILLS.len()) }
}

/// Defines the patterns that `count` series use.
pub fn patterns(svg: &mut String, id: &str, count: usize) {
    svg.push_str("<defs>\n");
    for (number, (ground, stroke, path)) in FILLS.iter().enumerate().take(count) {
        if !stroke.is_empty() {
            let _ = writeln!(
                svg,
                "<pattern id=\"{id}-{number}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
                 <rect width=\"8\" height=\"8\" fill=\"{ground}\"/>\
                 <path d=\"{path}\" stroke=\"{stroke}\" stroke-width=\"1.4\" fill=\"none\"/></pattern>"
            );
        }
    }
    svg.push_str("</defs>\n");
}

/// The attributes of a line.
pub fn line_style(number: usize) -> String {
    let (colour, dashes) = LINES[number % LINES.len()];
    let dashes = if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
    format!("stroke=\"{colour}\" stroke-width=\"2.2\" fill=\"none\"{dashes}")
}

/// A marker: shape and filling differ from series to series.
pub fn marker(number: usize, (x, y): (f64, f64), attributes: &str, tip: &str) -> String {
    let (colour, _) = LINES[number % LINES.len()];
    let filled = number.is_multiple_of(2);
    let inside = if filled { colour } else { "#fff" };
    let path = match number % 4 {
        0 => format!("M{:.1} {y:.1}a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0 -9.2 0z", x - 4.6),
        1 => format!("M{:.1} {:.1}h8.4v8.4h-8.4z", x - 4.2, y - 4.2),
        2 => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.4),
        _ => format!("M{x:.1} {:.1}l5.6 5.6l-5.6 5.6l-5.6 -5.6z", y - 5.6),
    };
    let title = if tip.is_empty() { String::new() } else { format!("<title>{tip}</title>") };
    format!(
        "<path{attributes} d=\"{path}\" fill=\"{inside}\" stroke=\"{colour}\" stroke-width=\"1.8\">{title}</path>\n"
    )
}
