//! Tests by name, as PROMISES.md has them: `module::test` is of this program, `crate: module::test` of
//! a crate.

use std::fs;
use std::path::Path;

use vmlane_tests::harness::Form;
use vmlane_tests::tree::{crate_folder, files};

/// What only parts a crate's files, and is no module of a name.
const PARTING: [&str; 7] = ["", "it", "lib", "main", "mod", "src", "tests"];

/// The tests of this program, and when they run.
pub fn own() -> impl Iterator<Item = (&'static str, Form)> {
    let all = crate::MODULES.iter().copied().flatten().copied().flatten();
    all.map(|test| (test.name.split_once("::").expect("a crate").1, test.form))
}

/// Whether there is a test of this name that runs. Of a crate's modules, the last ones suffice.
pub fn exists(name: &str) -> bool {
    let Some((of, path)) = name.split_once(": ") else {
        return own().any(|(own, _)| own == name);
    };
    let Some(folder) = crate_folder(of) else { return false };
    let modules = |path: &str| -> Vec<String> {
        let parts = path.split(['/', ':']).filter(|part| !PARTING.contains(part));
        parts.map(str::to_owned).collect()
    };
    let mut wanted = modules(path);
    let test = format!("fn {}(", wanted.pop().unwrap_or_default());
    let is_there = |file: &Path| {
        let of_the_crate = file.strip_prefix(&folder).expect("a file of the crate").with_extension("");
        modules(&of_the_crate.to_string_lossy()).ends_with(&wanted)
            && texts(file).iter().any(|text| is_run(text, &test))
    };
    files(&folder, "rs").iter().any(|file| is_there(file))
}

/// Whether a function is there, and nothing above it marks it as ignored.
fn is_run(text: &str, function: &str) -> bool {
    let above = text.split_once(function).and_then(|(before, _)| before.rsplit("\n\n").next());
    above.is_some_and(|above| !above.contains("#[ignore"))
}

/// Whether a word of a page can only be a test.
pub fn is_a_test(word: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.chars().all(is_of_names) && word.matches('_').count() >= 4
}

/// The text of a file, or of all sources below a folder.
pub fn texts(path: &Path) -> Vec<String> {
    let paths = if path.is_dir() { files(path, "rs") } else { vec![path.to_owned()] };
    paths.iter().map(|path| fs::read_to_string(path).expect("a source")).collect()
}
