//! Every number of README.md and SPECIFICATION.md is that of an experiment's rows, of a test's constant or of
//! another page: docs/numbers.toml has where each comes from.

use std::ops::Range;

use serde::Deserialize;
use vmlane_tests::tree::read;

use super::named::exists;
use super::rows::{by_run, matching, median};

const PAGES: [&str; 2] = ["README.md", "SPECIFICATION.md"];
/// Stands for a number in a pattern.
const HOLE: &str = "{}";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sources {
    number: Vec<Number>,
}

/// Words of a page with numbers, and where these are from.
#[derive(Deserialize)]
struct Number {
    text: String,
    #[serde(flatten)]
    source: Source,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    /// A line of a file, with the same numbers.
    Line { file: String, line: String },
    /// The median of rows; with `over` that of the ratios run by run.
    Rows { rows: String, value: String, of: toml::Table, over: Option<toml::Table> },
}

impl Source {
    /// The numbers as a page with these ones has to have them: a median has as many decimals as the page's.
    fn numbers(&self, on_the_page: &[String]) -> Result<Vec<String>, String> {
        match self {
            Source::Line { file, line } => {
                let text = joined(&read(file));
                let found = matches(&text, &joined(line)).into_iter().next();
                let found = found.ok_or_else(|| format!("{file} has no {line:?}"))?;
                Ok(found.numbers.into_iter().zip(on_the_page).map(as_on_the_page).collect())
            }
            Source::Rows { rows, value, of, over } => {
                let number = measured(rows, value, of, over.as_ref());
                let decimals = |shown: &String| shown.split_once('.').map_or(0, |(_, digits)| digits.len());
                Ok(on_the_page.iter().map(|shown| format!("{number:.0$}", decimals(shown))).collect())
            }
        }
    }
}

/// A constant of 100.0 is 100.
fn as_on_the_page((number, shown): (String, &String)) -> String {
    if number.strip_suffix(".0") == Some(shown) { shown.clone() } else { number }
}

fn measured(rows: &str, value: &str, of: &toml::Table, over: Option<&toml::Table>) -> f64 {
    let of = by_run(&matching(rows, of), value);
    let Some(over) = over else { return median(of.into_values()) };
    let over = by_run(&matching(rows, over), value);
    median(of.iter().filter_map(|(run, value)| Some(value / over.get(run)?)))
}

/// A place where a pattern matches, and the numbers in its holes.
struct Match {
    at: Range<usize>,
    numbers: Vec<String>,
}

/// What may be between the digits of a number.
const BETWEEN: [char; 3] = ['.', ',', '_'];

/// How many bytes of a number a text begins with.
fn number(text: &str) -> usize {
    let end = text.find(|c: char| !(c.is_ascii_digit() || BETWEEN.contains(&c))).unwrap_or(text.len());
    text[..end].trim_end_matches(BETWEEN).len()
}

fn match_at(text: &str, start: usize, pattern: &str) -> Option<Match> {
    let (mut at, mut numbers) = (start, Vec::new());
    for (index, words) in pattern.split(HOLE).enumerate() {
        if index > 0 {
            let length = number(&text[at..]);
            let digits = text.get(at..at + length).filter(|digits| !digits.is_empty())?;
            numbers.push(digits.replace([',', '_'], ""));
            at += length;
        }
        at += text[at..].starts_with(words).then_some(words.len())?;
    }
    Some(Match { at: start..at, numbers })
}

/// All places of a pattern. It begins with words.
fn matches(text: &str, pattern: &str) -> Vec<Match> {
    let first = pattern.split(HOLE).next().unwrap_or_default();
    assert!(!first.is_empty(), "{pattern:?} begins with a number");
    text.match_indices(first).filter_map(|(start, _)| match_at(text, start, pattern)).collect()
}

/// One space for any white space.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A text without what is between two marks.
fn without(text: &str, [from, to]: [&str; 2]) -> String {
    let mut parts = text.split(from);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| kept + part.split_once(to).map_or("", |(_, after)| after))
}

/// A page without blocks of code, comments, targets of links and words in backticks.
fn prose(page: &str) -> String {
    let mut text = page.split("```").step_by(2).collect::<Vec<_>>().join(" ");
    for marks in [["<!--", "-->"], ["](", ")"]] {
        text = without(&text, marks);
    }
    joined(&text.split('`').step_by(2).collect::<Vec<_>>().join("`"))
}

/// Where numbers are: digits that belong to no word.
fn numbers(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut before = [' '; 2];
    for (at, c) in text.char_indices() {
        let [earlier, last] = before;
        let is_in_word = last.is_alphanumeric() || BETWEEN.contains(&last);
        let is_joined = last == '-' && earlier.is_alphanumeric();
        if c.is_ascii_digit() && !is_in_word && !is_joined {
            found.push(at..at + number(&text[at..]));
        }
        before = [last, c];
    }
    found
}

/// The numbers of a page that no source explains, and those that differ from their source.
fn faults(page: &str, sources: &[Number], used: &mut [bool]) -> Vec<String> {
    let text = prose(&read(page));
    let mut explained: Vec<Range<usize>> = Vec::new();
    let mut wrong = Vec::new();
    for (source, used) in sources.iter().zip(used) {
        for Match { at, numbers } in matches(&text, &joined(&source.text)) {
            *used = true;
            match source.source.numbers(&numbers) {
                Ok(expected) if expected == numbers => explained.push(at),
                Ok(expected) => wrong.push(format!("{page}: {:?} has {numbers:?}, not {expected:?}", &text[at])),
                Err(error) => wrong.push(format!("{page}: {:?}: {error}", &text[at])),
            }
        }
    }
    let is_explained = |of: &Range<usize>| explained.iter().any(|by| by.start <= of.start && of.end <= by.end);
    let around = |at: &Range<usize>| {
        let from = text[..at.start].char_indices().rev().nth(40).map_or(0, |(from, _)| from);
        text[from..].chars().take(80).collect::<String>()
    };
    let open = numbers(&text).into_iter().filter(|at| !is_explained(at));
    wrong.extend(open.map(|at| format!("{page}: no source for {} in {:?}", &text[at.clone()], around(&at))));
    wrong
}

pub fn numbers_are_those_of_rows_and_constants() {
    let sources: Sources = toml::from_str(&read("docs/numbers.toml")).expect("docs/numbers.toml");
    let mut used = vec![false; sources.number.len()];
    for Number { text, .. } in &sources.number {
        assert!(numbers(text).is_empty(), "{text:?} has a number that is compared with nothing");
    }
    let mut wrong: Vec<String> =
        PAGES.iter().flat_map(|page| faults(page, &sources.number, &mut used)).collect();
    let unused = sources.number.iter().zip(&used).filter(|(_, used)| !**used);
    wrong.extend(unused.map(|(source, _)| format!("docs/numbers.toml: no page has {:?}", source.text)));
    assert!(wrong.is_empty(), "numbers that differ from their source:\n  {}", wrong.join("\n  "));
}

/// The tests that SPECIFICATION.md names, as PROMISES.md does, are there.
pub fn the_tests_of_the_specification_exist() {
    let text = read("SPECIFICATION.md");
    let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|word| word.contains("::")).collect();
    assert!(named.len() >= 10, "{} tests: is the search right?", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "SPECIFICATION.md names tests that are not there: {missing:?}");
}
