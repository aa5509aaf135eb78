//! The language of the tree: words that neither identifiers nor the log may have, and the width of comments.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use proc_macro2::{TokenStream, TokenTree};

use crate::Result;

/// The words, what stands in their place, and the identifiers that are allowed.
const LIST: &str = "scripts/words.txt";
/// Columns of a line that is a comment, as of any other line.
const WIDTH: usize = 110;
/// What writes to the log.
const LOG: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// What [`LIST`] has.
#[derive(Default)]
pub struct Words {
    instead: HashMap<String, String>,
    allowed: Vec<String>,
}

impl Words {
    pub fn parse(text: &str) -> Result<Words> {
        let mut words = Words::default();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (names, what) = line.split_once(": ").ok_or_else(|| {
                format!("{LIST}:{number}: {line:?}: not `WORD...: INSTEAD` or `allow NAME: WHY`")
            })?;
            match names.strip_prefix("allow ") {
                Some(name) => words.allowed.push(name.to_owned()),
                None => names.split(' ').for_each(|name| {
                    words.instead.insert(name.to_owned(), what.to_owned());
                }),
            }
        }
        Ok(words)
    }

    /// The first word of an identifier that is not to be there.
    fn in_identifier(&self, name: &str) -> Option<&str> {
        if self.allowed.iter().any(|allowed| allowed == name) {
            return None;
        }
        parts(name)
            .into_iter()
            .find_map(|part| self.instead.get_key_value(&part).map(|(word, _)| word.as_str()))
    }

    fn in_text(&self, text: &str) -> Option<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphabetic());
        words
            .map(str::to_ascii_lowercase)
            .find_map(|word| self.instead.get_key_value(&word).map(|(word, _)| word.as_str()))
    }
}

/// The words of an identifier, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| c != '_') {
            last.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    parts
}

/// What a file has that is not to be there: a line each.
fn judge(words: &Words, file: &str, text: &str) -> Result<String> {
    let mut found = String::new();
    let mut note = |line: usize, what: &str, word: &str| {
        let instead = words.instead.get(word).map_or("", String::as_str);
        let _ = writeln!(found, "{file}:{line}: {what}: not `{word}` but: {instead}");
    };
    let tokens: TokenStream = text.parse().map_err(|error| format!("{file}: {error}"))?;
    let mut left = vec![tokens.into_iter().collect::<Vec<_>>()];
    while let Some(tokens) = left.pop() {
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) => {
                    let name = ident.to_string();
                    if let Some(word) = words.in_identifier(&name) {
                        note(ident.span().start().line, &name, word);
                    }
                }
                TokenTree::Group(group) => {
                    let is_log = at >= 2
                        && matches!(tokens.get(at - 1), Some(TokenTree::Punct(mark)) if mark.as_char() == '!')
                        && matches!(tokens.get(at - 2), Some(TokenTree::Ident(name)) if LOG.iter().any(|log| name == log));
                    if is_log {
                        for part in group.stream() {
                            let TokenTree::Literal(text) = part else { continue };
                            if let Some(word) = words.in_text(&text.to_string()) {
                                note(text.span().start().line, &text.to_string(), word);
                            }
                        }
                    }
                    left.push(group.stream().into_iter().collect());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        let comment = line.trim_start();
        let shown = comment.trim_start_matches(['/', '!', ' ']);
        fenced = comment.starts_with("//") && (fenced != shown.starts_with("```"));
        let as_it_is = fenced || shown.starts_with('|');
        if comment.starts_with("//") && !as_it_is && line.chars().count() > WIDTH {
            let _ = writeln!(found, "{file}:{number}: a comment of more than {WIDTH} columns");
        }
    }
    Ok(found)
}

/// Judges all Rust files of the tree. False: some have what is not to be there, which is printed.
pub fn check() -> Result<bool> {
    let words = Words::parse(&fs::read_to_string(LIST).map_err(|error| format!("{LIST}: {error}"))?)?;
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"];
    let listed = Command::new("git").args(list).output().map_err(|error| format!("git: {error}"))?;
    let mut all = String::new();
    for file in String::from_utf8_lossy(&listed.stdout).lines().filter(|file| Path::new(file).exists()) {
        let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        all += &judge(&words, file, &text)?;
    }
    print!("{all}");
    Ok(all.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_names_and_of_the_log_are_found_with_what_stands_in_their_place() {
        let words = Words::parse("# a list\ntold tells: notified\nallow told_by_linux: its name\n").unwrap();
        let judged = |text: &str| judge(&words, "a.rs", text).unwrap();
        assert_eq!(judged("fn was_told() {}"), "a.rs:1: was_told: not `told` but: notified\n");
        assert_eq!(judged("struct A;\nstruct PeerTells;"), "a.rs:2: PeerTells: not `tells` but: notified\n");
        assert!(judged("fn f() { warn!(a, \"it tells\"); }").contains("it tells"));
        for fine in [
            "fn f() { assert!(a, \"it tells\"); }",
            "// it tells",
            "fn told_by_linux() {}",
            "fn retold_x() {}",
        ] {
            assert_eq!(judged(fine), "", "{fine}");
        }
        assert!(judged(&format!("// {}", "x ".repeat(60))).contains("110 columns"));
        assert_eq!(judged(&format!("//! | {} |", "x ".repeat(60))), "", "a table");
        assert_eq!(judged(&format!("//! ```\n//! {}\n//! ```", "x ".repeat(60))), "", "a listing");
        assert!(Words::parse("told").is_err());
    }
}
