//! The journeys of ARCHITECTURE.md name files and functions that are there.

use std::path::PathBuf;

use vmlane_tests::tree::{files, read, root};

/// Rust files of the workspace, each with its path from `crates/` or `tools/`, or from the root, on.
fn sources() -> Vec<(String, String)> {
    let (crates, tools) = (root().join("crates"), root().join("tools"));
    let name = |path: &PathBuf| {
        let from = [&crates, &tools].into_iter().find(|group| path.starts_with(group));
        let path = path.strip_prefix(from.map_or(root(), PathBuf::as_path)).expect("of the repository");
        path.to_string_lossy().into_owned()
    };
    let all = [&crates, &tools, &root().join("tests")].map(|folder| files(folder, "rs"));
    all.iter().flatten().map(|path| (name(path), read(path))).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `round.rs` is a file of this name, `handover/link.rs` one in this folder, `worker/worker.rs` one of this
/// crate.
fn is_named(path: &str, name: &str) -> bool {
    let without = path.replace("/src/", "/");
    let ends = |path: &str| path == name || path.ends_with(&format!("/{name}"));
    ends(path) || ends(&without)
}

/// Every file that a journey or "Start here" names is there, and every `Type::function` in a file that has
/// both.
pub fn names_of_the_journeys_are_those_of_the_code() {
    let text = read("ARCHITECTURE.md");
    let sources = sources();
    let parts = text.split("\n## ").filter(|part| part.starts_with("Journey") || part.starts_with("Start here"));
    let (mut found, mut missing) = (0, Vec::new());
    for word in parts.flat_map(quoted) {
        let is_there = if word.ends_with(".rs") {
            sources.iter().any(|(path, _)| is_named(path, word))
        } else if let Some((of, function)) = word.split_once("::")
            && of.starts_with(|first: char| first.is_ascii_uppercase())
        {
            let function = format!("fn {function}");
            sources.iter().any(|(_, text)| text.contains(&function) && text.contains(of))
        } else {
            continue;
        };
        found += 1;
        if !is_there {
            missing.push(word);
        }
    }
    assert!(found >= 40, "{found} names in the journeys: is the search right?");
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:?}");
}
