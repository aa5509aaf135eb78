//! The lines of a `.vmx` file. What is asked for is marked, so that [`super::rest`] can account for
//! everything else.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use encoding_rs::{Encoding, UTF_8};

use crate::machine::{Machine, Note};
use crate::{Error, text};

/// Lines of a file, at most.
const MOST_LINES: usize = 20_000;

/// What is in a file: keys in lower case, as VMware compares them.
#[derive(Debug)]
pub struct Keys {
    entries: BTreeMap<String, Entry>,
    /// Devices that something was made of.
    used: RefCell<BTreeSet<String>>,
}

#[derive(Debug)]
struct Entry {
    line: usize,
    /// The key as it is written.
    written: String,
    /// None: what the file has of this key cannot be used.
    value: Option<String>,
    asked: Cell<bool>,
}

/// A device that is there.
#[derive(Clone, Copy, Debug)]
pub struct Device<'k> {
    keys: &'k Keys,
    pub place: &'k str,
}

impl Keys {
    /// The keys of a file, and what is to be noted of its lines.
    pub fn parse(bytes: &[u8]) -> Result<(Keys, Vec<Note>), Error> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let mut notes = Vec::new();
        let lines = bytes.split(|byte| *byte == b'\n').take(MOST_LINES + 1);
        let lines: Vec<(usize, Line)> = (1..).zip(lines.map(Line::of)).collect();
        if let Some((number, _)) = lines.get(MOST_LINES) {
            return Err(Error::line(*number, format!("a file has {MOST_LINES} lines at most")));
        }
        let encoding = encoding(&lines, &mut notes);
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        for (number, line) in lines {
            let (written, value) = match line {
                Line::Empty => continue,
                Line::Pair(key, value) => (key, Some(text::decoded(&value, encoding).into_owned())),
                Line::Broken { about, what } => {
                    notes.push(Note { what: format!("line {number}: {what}"), then: "is left out".into() });
                    let Some(key) = about else { continue };
                    (key, None)
                }
            };
            let key = written.to_ascii_lowercase();
            match entries.get_mut(&key) {
                Some(first) if first.value == value => {}
                Some(first) => {
                    notes.push(Note {
                        what: format!("line {number}: {written}"),
                        then: format!(
                            "is there twice, and not the same (line {}): neither is taken",
                            first.line
                        ),
                    });
                    first.value = None;
                }
                None => {
                    drop(entries.insert(key, Entry { line: number, written, value, asked: Cell::new(false) }))
                }
            }
        }
        Ok((Keys { entries, used: RefCell::default() }, notes))
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        let entry = self.entries.get(&key.to_ascii_lowercase())?;
        entry.asked.set(true);
        Some(entry)
    }

    /// A value that is not empty.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entry(key)?.value.as_deref().filter(|value| !value.is_empty())
    }

    /// The file has something of this key that cannot be used.
    pub fn is_unusable(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|entry| entry.value.is_none())
    }

    pub fn number<T: std::str::FromStr>(&self, key: &str, machine: &mut Machine) -> Option<T> {
        machine.number(key, self.get(key))
    }

    /// Is it TRUE? What is neither TRUE nor FALSE is noted.
    pub fn read_flag(&self, key: &str, machine: &mut Machine) -> bool {
        self.flag(key, machine).unwrap_or(false)
    }

    pub fn flag(&self, key: &str, machine: &mut Machine) -> Option<bool> {
        let value = self.get(key)?;
        let flag = flag(value);
        if flag.is_none() {
            machine.note(format!("{key} = {value:?}"), "is neither TRUE nor FALSE; it is left out");
        }
        flag
    }

    /// A device, if it is there. Whatever is not asked of it is noted in the end.
    pub fn device<'k>(&'k self, place: &'k str, machine: &mut Machine) -> Option<Device<'k>> {
        if !self.read_flag(&format!("{place}.present"), machine) {
            return None;
        }
        self.used.borrow_mut().insert(place.to_ascii_lowercase());
        Some(Device { keys: self, place })
    }

    /// Was something made of this device?
    pub fn is_used(&self, place: &str) -> bool {
        self.used.borrow().contains(place)
    }

    /// Keys with a value that were not asked for: in lower case, as they are written, and the value.
    pub fn not_asked(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.entries.iter().filter(|(_, entry)| !entry.asked.get()).filter_map(|(key, entry)| {
            let value = entry.value.as_deref().filter(|value| !value.is_empty())?;
            Some((key.as_str(), entry.written.as_str(), value))
        })
    }

    /// The value of a key, without its counting as asked for.
    pub fn peek(&self, key: &str) -> Option<&str> {
        self.entries.get(key)?.value.as_deref()
    }
}

impl<'k> Device<'k> {
    pub fn key(self, name: &str) -> String {
        format!("{}.{name}", self.place)
    }

    pub fn get(self, name: &str) -> Option<&'k str> {
        self.keys.get(&self.key(name))
    }

    pub fn is_unusable(self, name: &str) -> bool {
        self.keys.is_unusable(&self.key(name))
    }

    pub fn flag(self, name: &str, machine: &mut Machine) -> Option<bool> {
        self.keys.flag(&self.key(name), machine)
    }

    pub fn number<T: std::str::FromStr>(self, name: &str, machine: &mut Machine) -> Option<T> {
        self.keys.number(&self.key(name), machine)
    }
}

/// VMware's words for true and false.
pub fn flag(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// The encoding of a file's values.
fn encoding(lines: &[(usize, Line)], notes: &mut Vec<Note>) -> &'static Encoding {
    let named = lines.iter().find_map(|(_, line)| match line {
        Line::Pair(key, value) if key.eq_ignore_ascii_case(".encoding") => {
            Some(String::from_utf8_lossy(value))
        }
        _ => None,
    });
    let Some(named) = named else { return UTF_8 };
    text::encoding(&named).unwrap_or_else(|| {
        let then = "is no encoding that is known; names are read as UTF-8";
        notes.push(Note { what: format!(".encoding = {named:?}"), then: then.into() });
        UTF_8
    })
}

/// One line of a file, as open-vm-tools' `dictll.c` describes them: a key, `=`, a value with or
/// without quotation marks, and perhaps a comment.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Empty,
    Pair(String, Vec<u8>),
    /// It is none; and the key that it is about, if one can be seen.
    Broken {
        about: Option<String>,
        what: String,
    },
}

impl Line {
    fn of(line: &[u8]) -> Line {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            return Line::Empty;
        }
        let end = line.iter().position(|byte| byte.is_ascii_whitespace() || b"=#".contains(byte));
        let (key, rest) = line.split_at(end.unwrap_or(line.len()));
        let key = String::from_utf8_lossy(key).into_owned();
        let about = Some(key.clone()).filter(|key| !key.is_empty());
        let broken = |why: &str| Line::Broken {
            about: about.clone(),
            what: format!("{:?} {why}", String::from_utf8_lossy(line)),
        };
        let Some(value) = rest.trim_ascii_start().strip_prefix(b"=").filter(|_| !key.is_empty()) else {
            return broken("is not of the form key = \"value\"");
        };
        let value = value.trim_ascii_start();
        let (value, behind) = match value.strip_prefix(b"\"") {
            Some(quoted) => match quoted.iter().position(|byte| *byte == b'"') {
                Some(end) => (quoted.get(..end), quoted.get(end + 1..)),
                None => return broken("has a quotation mark without its other one"),
            },
            None => {
                let end = value.iter().position(|byte| *byte == b'#').unwrap_or(value.len());
                (value.get(..end).map(<[u8]>::trim_ascii_end), value.get(end..))
            }
        };
        let (value, behind) = (value.unwrap_or_default(), behind.unwrap_or_default().trim_ascii_start());
        if !behind.is_empty() && !behind.starts_with(b"#") {
            return broken("has more behind its value");
        }
        Line::Pair(key, unescaped(value))
    }
}

/// Bytes of a value; `|22` in it is a byte by its number, whatever the file's encoding.
fn unescaped(value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [first, behind @ ..] = rest {
        let digits = behind
            .first_chunk::<2>()
            .filter(|digits| *first == b'|' && digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> (Keys, Vec<String>) {
        let (keys, notes) = Keys::parse(text.as_bytes()).unwrap();
        (keys, notes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn values_are_taken_out_of_their_quotation_marks() {
        for (line, value) in [
            ("a = \"a b\"", "a b"),
            ("a = TRUE", "TRUE"),
            ("a=\"a|22b|7Cc\"", "a\"b|c"),
            ("  a = \"|\"\t", "|"),
            ("a = \"|2\"", "|2"),
            ("a = \"v\" # comment", "v"),
            ("a = v # comment", "v"),
            ("a = \"v # w\"#", "v # w"),
            ("a = # nothing", ""),
            ("a = \"v\"\r", "v"),
        ] {
            assert_eq!(Line::of(line.as_bytes()), Line::Pair("a".into(), value.into()), "{line}");
        }
        for line in ["a = \"open", "a = \"", "a", "a b", "= \"x\"", "a = \"x\" y"] {
            assert!(matches!(Line::of(line.as_bytes()), Line::Broken { .. }), "{line}");
        }
    }

    #[test]
    fn a_broken_line_is_left_out_with_what_it_is_about() {
        let (keys, notes) = keys("a = \"1\"\nnonsense\nethernet0.networkName = \"VM\nb = \"2\"\n");
        assert_eq!((keys.get("a"), keys.get("B")), (Some("1"), Some("2")));
        assert!(keys.is_unusable("ethernet0.networkName") && !keys.is_unusable("a"));
        assert!(notes[0].starts_with("line 2: \"nonsense\" is not of the form key"), "{notes:?}");
        assert!(notes[1].contains("line 3") && notes[1].contains("quotation mark"), "{notes:?}");
    }

    #[test]
    fn of_a_key_that_is_there_twice_neither_is_taken() {
        let (keys, notes) = keys("displayName = \"x\"\ndisplayname = \"y\"\na = \"1\"\nA = \"1\"\n");
        assert_eq!((keys.get("displayName"), keys.get("a")), (None, Some("1")));
        assert_eq!(
            notes,
            ["line 2: displayname: is there twice, and not the same (line 1): neither is taken"]
        );
    }

    #[test]
    fn values_are_of_the_files_encoding() {
        let name = b".encoding = \"GBK\"\na = \"\xcd\xf8\xc2\xe7|D2|BB\"\n";
        let (keys, notes) = Keys::parse(name).unwrap();
        assert!(keys.get("a") == Some("网络一") && notes.is_empty(), "{keys:?}");
        let (keys, notes) = Keys::parse(b".encoding = \"x-moon\"\na = \"\xc4\"\n").unwrap();
        assert_eq!((keys.get("a"), notes.len()), (Some("\\xC4"), 1));
    }
}
