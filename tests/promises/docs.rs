//! The documentation agrees with the repository: the picture, the map of the crates, links between pages, the
//! tests that pages name, and what GitHub reads.

mod chart;
mod journeys;
pub(crate) mod named;
mod numbers;
mod picture;
mod promises;
mod rows;
mod workflows;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use vmlane_tests::tree::{crate_folder, crates, files, read, root};

use journeys::names_of_the_journeys_are_those_of_the_code;
use numbers::{numbers_are_those_of_rows_and_constants, the_tests_of_the_specification_exist};
use promises::promises_and_their_tests_name_each_other;
use workflows::workflows_have_the_right_shape;

vmlane_tests::tests! {
    plain {
        links_between_pages_lead_somewhere,
        names_of_the_journeys_are_those_of_the_code,
        numbers_are_those_of_rows_and_constants,
        promises_and_their_tests_name_each_other,
        the_crate_map_lists_every_crate_and_its_dependencies,
        the_picture_is_made_from_its_source,
        the_picture_of_speed_is_drawn_from_rows,
        the_summary_of_the_site_names_every_page_once,
        the_tests_of_the_specification_exist,
        the_threads_of_the_architecture_are_those_of_the_code,
        tests_and_sources_that_pages_name_exist,
        workflows_have_the_right_shape,
    }
}

/// All Markdown files at the top and below docs/.
fn pages() -> Vec<PathBuf> {
    let top = fs::read_dir(root()).expect("the repository").flatten().map(|entry| entry.path());
    let top = top.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    top.chain(files(&root().join("docs"), "md")).collect()
}

/// The anchor that a heading gets on GitHub.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Compares a picture with the one that is kept, or writes it (`make picture`).
fn is_current(name: &str, drawn: String) {
    let file = root().join(name);
    if std::env::var_os("VMLANE_DRAW").is_some() {
        fs::write(&file, drawn).expect("the picture is written");
        return;
    }
    assert!(read(&file) == drawn, "{name} is not current: run `make picture`");
}

fn the_picture_is_made_from_its_source() {
    is_current("docs/architecture.svg", picture::svg(&read("docs/architecture.toml")));
}

fn the_picture_of_speed_is_drawn_from_rows() {
    is_current("docs/chart.svg", chart::svg(&read("docs/chart.toml")));
}

/// The table of threads in ARCHITECTURE.md has every name that the daemon's crates give to one.
fn the_threads_of_the_architecture_are_those_of_the_code() {
    const DAEMON: [&str; 6] = ["daemon", "device", "host", "stream", "transport", "worker"];
    const NAMED: [&str; 4] =
        [".name(\"", ".name(format!(\"", "PeriodicThread::start(\"", "spawn(format!(\""];
    let text = read("ARCHITECTURE.md");
    let table = text.split("\n## ").find(|part| part.starts_with("Threads\n")).expect("a section \"Threads\"");
    let mut found = 0;
    let mut missing = BTreeSet::new();
    for path in DAEMON.iter().flat_map(|name| files(&root().join("crates").join(name).join("src"), "rs")) {
        let code = read(&path);
        for rest in NAMED.iter().flat_map(|named| code.split(named).skip(1)) {
            let (name, behind) = rest.split_once('"').expect("a string ends");
            // What is configured has names, too.
            let name = name.split('{').next().unwrap_or_default();
            if name.is_empty() || name.contains(": ") || behind.starts_with(".to_owned") {
                continue;
            }
            found += 1;
            if !table.contains(&format!("`{name}")) {
                missing.insert(format!("{name} ({})", path.display()));
            }
        }
    }
    assert!(found >= 10, "{found} names of threads: is the search right?");
    assert!(missing.is_empty(), "ARCHITECTURE.md, Threads, lacks: {missing:?}");
}

/// The table in ARCHITECTURE.md lists exactly the crates of the workspace, each with the crates it depends
/// on.
fn the_crate_map_lists_every_crate_and_its_dependencies() {
    let text = read("ARCHITECTURE.md");
    let map = text.split("\n## ").find(|part| part.starts_with("Crates\n")).expect("a section \"Crates\"");
    let mut listed = BTreeSet::new();
    let mut wrong = Vec::new();
    for row in map.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = cells[0].trim_matches('`').to_owned();
        assert!(cells.len() == 3, "row {name}: three cells");
        let documented: BTreeSet<String> = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let folder = if name == "tests" { Some(root().join("tests")) } else { crate_folder(&name) };
        let Some(folder) = folder else {
            wrong.push(format!("crate {name} does not exist"));
            continue;
        };
        let manifest: toml::Table = read(folder.join("Cargo.toml")).parse().expect("a manifest");
        let ours = manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten();
        let real: BTreeSet<String> =
            ours.filter_map(|(name, _)| name.strip_prefix("vmlane-")).map(str::to_owned).collect();
        if documented != real {
            wrong.push(format!("crate {name} depends on {real:?}, not on {documented:?}"));
        }
        assert!(listed.insert(name.clone()), "crate {name} is listed twice");
    }
    listed.remove("tests");
    let name = |folder: &PathBuf| folder.file_name().expect("a name").to_string_lossy().into_owned();
    let real: BTreeSet<String> = crates().iter().map(name).collect();
    wrong.extend(real.difference(&listed).map(|name| format!("crate {name} is missing")));
    assert!(wrong.is_empty(), "the table in ARCHITECTURE.md is not true:\n  {}", wrong.join("\n  "));
}

/// Pages that `make docs` makes, which the repository does not have.
const GENERATED: [&str; 2] = ["docs/guide/commands.md", "docs/guide/metrics.md"];
/// Pages at the top that have a place in the site.
const AT_THE_TOP: [&str; 7] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "PROMISES.md",
    "RELEASING.md",
    "SECURITY.md",
    "SPECIFICATION.md",
];

/// The site has every page below docs/, once, and no other. Decisions are added by `make docs`.
fn the_summary_of_the_site_names_every_page_once() {
    let text = read("docs/SUMMARY.md");
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let mut named: Vec<String> = links.filter(|link| !link.is_empty()).map(str::to_owned).collect();
    named.sort();
    let docs = root().join("docs");
    let mut expected: Vec<String> = pages()
        .iter()
        .filter_map(|page| page.strip_prefix(&docs).ok())
        .map(|page| page.to_str().expect("a name").to_owned())
        .filter(|page| page != "SUMMARY.md" && !page.starts_with("decisions/"))
        .chain(GENERATED.map(|page| page.strip_prefix("docs/").expect("below docs/").to_owned()))
        .chain(AT_THE_TOP.map(str::to_owned))
        .collect();
    expected.sort();
    assert_eq!(named, expected);
}

/// What `make docs` puts into the site; links to experiments become text.
fn is_in_site(target: &Path) -> bool {
    let target = target.canonicalize().expect("it is there");
    let script = read("scripts/docs.sh");
    let at_the_top = script.split("at_the_top='").nth(1).and_then(|rest| rest.split('\'').next());
    let mut at_the_top = at_the_top.expect("pages at the top").split('|');
    target.starts_with(root().join("docs"))
        || target.starts_with(root().join("experiments"))
        || at_the_top.any(|name| target == root().join(format!("{name}.md")))
}

fn links_between_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages().into_iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            if path.contains("://") {
                continue;
            }
            let target =
                if path.is_empty() { page.clone() } else { page.parent().expect("a folder").join(path) };
            let reached = target.exists()
                && (heading.is_empty()
                    || read(&target)
                        .lines()
                        .filter(|line| line.starts_with('#'))
                        .any(|line| anchor(line.trim_start_matches('#')) == heading));
            if !reached {
                broken.push(format!("{}: {link}", page.display()));
            } else if page != root().join("README.md") && !is_in_site(&target) {
                broken.push(format!("{}: {link} is not in the site", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// Words in backticks that are paths of a crate's sources or tests, or a test that a page places in one of
/// them. The changelog speaks of what was, the facts of what is elsewhere.
fn tests_and_sources_that_pages_name_exist() {
    let mut wrong = Vec::new();
    let is_of_others = |page: &&PathBuf| {
        let names = ["CHANGELOG.md", "facts"];
        page.components().any(|part| names.iter().any(|name| part.as_os_str() == *name))
    };
    for page in pages().iter().filter(|page| !is_of_others(page)) {
        let text = read(page);
        let words: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        // Each crate has its tests/it/main.rs.
        let is_path = |word: &str| {
            ["tests/", "/src/"].iter().any(|folder| word.contains(folder))
                && !word.starts_with("tests/it/")
                && !word.contains(|c: char| c.is_whitespace() || "*<$".contains(c))
        };
        let there = |word: &str| {
            let paths = ["", "crates", "tools"].map(|folder| root().join(folder).join(word));
            paths.into_iter().find(|path| path.exists())
        };
        for (at, word) in words.iter().enumerate() {
            if is_path(word) && there(word).is_none() {
                wrong.push(format!("{}: there is no {word}", page.display()));
            } else if page.ends_with("SECURITY.md") && named::is_a_test(word) {
                let file = words[at..].iter().find(|word| !named::is_a_test(word)).expect("where it is");
                let texts = there(file).map(|path| named::texts(&path)).unwrap_or_default();
                if !texts.iter().any(|text| text.contains(&format!("fn {word}("))) {
                    wrong.push(format!("{}: there is no test {word} in {file}", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "what is named and is not there:\n{}", wrong.join("\n"));
}
