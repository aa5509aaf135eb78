//! The documentation agrees with the repository: the picture, the map of the crates, links between pages.

#[path = "docs/picture.rs"]
mod picture;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the repository").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Markdown files at the top and below docs/.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![root().join("docs")];
    let mut pages = Vec::new();
    let mut visit = |folder: &Path, deep: bool| {
        let mut below = Vec::new();
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            } else if deep && path.is_dir() {
                below.push(path);
            }
        }
        below
    };
    visit(&root(), false);
    while let Some(folder) = folders.pop() {
        folders.extend(visit(&folder, true));
    }
    pages.sort();
    pages
}

/// The anchor that a heading gets on GitHub.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[test]
fn the_picture_is_made_from_its_source() {
    let source = root().join("docs/architecture.toml");
    let drawn = picture::svg(&read(&source));
    let file = root().join("docs/architecture.svg");
    if std::env::var_os("VMLANE_DRAW").is_some() {
        fs::write(&file, drawn).expect("the picture is written");
        return;
    }
    assert!(read(&file) == drawn, "docs/architecture.svg is not current: run `make picture`");
}

/// The table in ARCHITECTURE.md lists exactly the crates of the workspace, each with the crates it depends on.
#[test]
fn the_crate_map_lists_every_crate_and_its_dependencies() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let map = text.split("\n## ").find(|part| part.starts_with("Crates\n")).expect("a section \"Crates\"");
    let mut listed = BTreeSet::new();
    let mut wrong = Vec::new();
    for row in map.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = cells[0].trim_matches('`').to_owned();
        assert!(cells.len() == 3, "row {name}: three cells");
        let told: BTreeSet<String> = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let folder = if name == "tests" { root().join("tests") } else { root().join("crates").join(&name) };
        if !folder.is_dir() {
            wrong.push(format!("crate {name} does not exist"));
            continue;
        }
        let manifest: toml::Table = read(&folder.join("Cargo.toml")).parse().expect("a manifest");
        let ours = manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten();
        let real: BTreeSet<String> =
            ours.filter_map(|(name, _)| name.strip_prefix("vmlane-")).map(str::to_owned).collect();
        if told != real {
            wrong.push(format!("crate {name} depends on {real:?}, not on {told:?}"));
        }
        assert!(listed.insert(name.clone()), "crate {name} is listed twice");
    }
    listed.remove("tests");
    let real: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .expect("crates/")
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    wrong.extend(real.difference(&listed).map(|name| format!("crate {name} is missing")));
    assert!(wrong.is_empty(), "the table in ARCHITECTURE.md is not true:\n  {}", wrong.join("\n  "));
}

/// Pages that `make docs` makes, which the repository does not have.
const GENERATED: [&str; 2] = ["docs/guide/commands.md", "docs/guide/metrics.md"];
/// Pages at the top that have a place in the site.
const AT_THE_TOP: [&str; 4] = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// The site has every page below docs/, once, and no other. Decisions are added by `make docs`.
#[test]
fn the_summary_of_the_site_names_every_page_once() {
    let text = read(&root().join("docs/SUMMARY.md"));
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

#[test]
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
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}
