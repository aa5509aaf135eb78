//! Texts of peers and devices: bounded when they arrive, and without control characters where they are shown.

use serde_json::Value;

/// Characters of a string that is kept.
const LONGEST: usize = 256;
/// Entries of a list or table that are kept.
const MOST: usize = 2048;

/// Cuts strings, lists and tables to size and escapes control characters, at every depth. (`serde_json`
/// itself bounds the depth.)
pub fn tame(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(&text)),
        Value::Array(items) => Value::Array(items.into_iter().take(MOST).map(tame).collect()),
        Value::Object(entries) => Value::Object(
            entries.into_iter().take(MOST).map(|(key, value)| (printable(&key), tame(value))).collect(),
        ),
        other => other,
    }
}

/// The text as one line that no terminal takes for a command: control characters, and those that change the
/// direction of writing, become escapes.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(LONGEST) {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}') {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The same of each line.
pub fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable(line) + "\n").collect()
}

/// A string as it is, anything else as JSON.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Bits per second, for people.
pub fn rate(bps: f64) -> String {
    match bps {
        bps if bps >= 1e9 => format!("{:.2} Gbit/s", bps / 1e9),
        bps if bps >= 1e6 => format!("{:.1} Mbit/s", bps / 1e6),
        bps => format!("{:.0} kbit/s", bps / 1e3),
    }
}

/// Microseconds, for people.
pub fn time(us: f64) -> String {
    if us >= 10_000.0 { format!("{:.0} ms", us / 1000.0) } else { format!("{us:.0} us") }
}

/// Bytes, for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        bytes if bytes >= 1 << 10 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_peer_reaches_the_terminal_as_a_command() {
        assert_eq!(printable("a\u{1b}[2Jb\n\u{202e}c\u{9b}"), "a\\u{1b}[2Jb\\n\\u{202e}c\\u{9b}");
        assert_eq!(printable_lines("a\u{1b}[2J\n\n  b"), "a\\u{1b}[2J\n\n  b\n");
        let hostile = serde_json::json!({ "k\r": ["x".repeat(9999), { "\u{7}": 1 }], "n": vec![0; 9999] });
        let tamed = tame(hostile);
        assert_eq!(tamed["k\\r"][0].as_str().unwrap().len(), LONGEST);
        assert_eq!(tamed["k\\r"][1]["\\u{7}"], 1);
        assert_eq!(tamed["n"].as_array().unwrap().len(), MOST);
    }

    #[test]
    fn numbers_have_fitting_units() {
        assert_eq!(
            (rate(2.5e9), rate(1.25e6), rate(900.0)),
            ("2.50 Gbit/s".into(), "1.2 Mbit/s".into(), "1 kbit/s".into())
        );
        assert_eq!(
            (size(100), size(65536), size(3 << 20)),
            ("100 bytes".into(), "64 KiB".into(), "3.0 MiB".into())
        );
        assert_eq!((time(900.4), time(25_000.0)), ("900 us".into(), "25 ms".into()));
    }
}
