//! PROMISES.md and the tests: each test that a row names is there and runs where the row puts it, and no test
//! with guests is without a promise.

use std::collections::BTreeSet;

use vmlane_tests::harness::Form;
use vmlane_tests::tree::{files, read, root};

use super::named::{exists, own};

/// A promise: its short name, and the tests that `make test` and `make acceptance` run.
struct Row {
    name: String,
    test: Vec<String>,
    acceptance: Vec<String>,
}

/// The rows of all tables.
fn rows() -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, _, test, acceptance] = cells[..] else { panic!("PROMISES.md: four cells, not {line}") };
        let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Row { name: name.trim_matches('`').into(), test: names(test), acceptance: names(acceptance) }
    };
    read("PROMISES.md").lines().filter(|line| line.starts_with("| `")).map(row).collect()
}

/// The promises for which tests print a line.
fn documented() -> BTreeSet<String> {
    let call = concat!("kept", "(");
    let sources = files(&root().join("tests/promises"), "rs");
    let documented = sources.iter().flat_map(|path| {
        let text = read(path);
        let name = |rest: &str| {
            let named = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"'));
            named.unwrap_or_else(|| panic!("{}: {call} without a name", path.display())).0.to_owned()
        };
        text.split(call).skip(1).map(name).collect::<Vec<_>>()
    });
    documented.collect()
}

pub fn promises_and_their_tests_name_each_other() {
    let (rows, documented) = (rows(), documented());
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    let form = |name: &str| own().find(|(own, _)| *own == name).map(|(_, form)| form);
    for Row { name, test, acceptance } in &rows {
        let all = || test.iter().chain(acceptance);
        wrong.extend(all().filter(|test| !exists(test)).map(|test| format!("{name}: no test {test}")));
        let is_long = |test: &&String| form(test) == Some(Form::Long);
        let early = test.iter().filter(is_long);
        wrong.extend(early.map(|test| format!("{name}: make test does not run {test}")));
        let late = acceptance.iter().filter(|test| !is_long(test));
        wrong.extend(late.map(|test| format!("{name}: make test runs {test}, too")));
        let is_silent = !documented.contains(name);
        if is_silent && all().any(|test| form(test).is_some_and(|form| form != Form::Plain)) {
            wrong.push(format!("{name}: its tests print no line"));
        }
        if all().next().is_none() {
            wrong.push(format!("{name} has no tests"));
        }
        named.extend(all().cloned());
    }
    let names: BTreeSet<&String> = rows.iter().map(|row| &row.name).collect();
    assert_eq!(names.len(), rows.len(), "a name has two rows");
    wrong.extend(documented.iter().filter(|name| !names.contains(name)).map(|name| format!("{name} has no row")));
    let with_guests = own().filter(|(_, form)| *form != Form::Plain).map(|(name, _)| name);
    let unnamed = with_guests.filter(|name| !named.contains(*name));
    wrong.extend(unnamed.map(|name| format!("no row names {name}")));
    assert!(wrong.is_empty(), "PROMISES.md and the tests differ:\n  {}", wrong.join("\n  "));
}
