//! Which packages a change concerns: those whose files it touches, and those that depend on them.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::{Result, root};

/// A package of the workspace: its directory, and the packages of the workspace that it uses, also in tests.
#[derive(Debug)]
struct Package {
    name: String,
    directory: String,
    uses: Vec<String>,
}

/// Packages that changed since a commit, committed or not, and those that depend on them.
pub fn packages(since: &str) -> Result<Vec<String>> {
    let changed = output("git", &["diff", "--name-only", since])?;
    let new = output("git", &["ls-files", "--others", "--exclude-standard"])?;
    let files: Vec<&str> = changed.lines().chain(new.lines()).collect();
    let metadata = output("cargo", &["metadata", "--locked", "--no-deps", "--format-version=1"])?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(concerned(&workspace(&metadata), &files))
}

fn output(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).current_dir(root()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{program} {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn workspace(metadata: &Value) -> Vec<Package> {
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let package = |value: &Value| {
        let manifest = text(&value["manifest_path"]);
        let directory =
            manifest.trim_start_matches(root).trim_start_matches('/').trim_end_matches("Cargo.toml");
        let uses =
            value["dependencies"].as_array().into_iter().flatten().filter(|used| used["path"].is_string());
        Package {
            name: text(&value["name"]),
            directory: directory.to_owned(),
            uses: uses.map(|used| text(&used["name"])).collect(),
        }
    };
    metadata["packages"].as_array().into_iter().flatten().map(package).collect()
}

/// A file above all packages (`Cargo.lock`, `Cargo.toml`) concerns all of them; one of no package (docs)
/// those that judge the tree.
fn concerned(packages: &[Package], files: &[&str]) -> Vec<String> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for file in files {
        let owner = packages.iter().find(|package| file.starts_with(package.directory.as_str()));
        match owner {
            Some(package) => {
                found.insert(&package.name);
            }
            None if ["Cargo.toml", "Cargo.lock", ".cargo/config.toml"].contains(file) => {
                found.extend(packages.iter().map(|package| package.name.as_str()));
            }
            None => {
                found.insert(JUDGE);
            }
        }
    }
    loop {
        let depends = |package: &&Package| {
            !found.contains(package.name.as_str())
                && package.uses.iter().any(|used| found.contains(used.as_str()))
        };
        let more: Vec<&str> = packages.iter().filter(depends).map(|package| package.name.as_str()).collect();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    found.into_iter().map(str::to_owned).collect()
}

/// The package whose plain tests read documents, scripts and manifests.
const JUDGE: &str = "vmlane-tests";

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, directory: &str, uses: &[&str]) -> Package {
        let uses = uses.iter().map(|used| (*used).to_owned()).collect();
        Package { name: name.to_owned(), directory: directory.to_owned(), uses }
    }

    #[test]
    fn a_change_concerns_what_depends_on_it() {
        let all = [
            package("mem", "crates/mem/", &[]),
            package("port", "crates/port/", &["mem"]),
            package("cli", "crates/cli/", &["port"]),
            package("wire", "crates/wire/", &[]),
            package("vmlane-tests", "tests/", &["wire"]),
        ];
        assert_eq!(concerned(&all, &["crates/port/src/lib.rs"]), ["cli", "port"]);
        assert_eq!(concerned(&all, &["crates/wire/tests/it/main.rs"]), ["vmlane-tests", "wire"]);
        assert_eq!(concerned(&all, &["docs/guide/lab.md"]), ["vmlane-tests"]);
        assert_eq!(concerned(&all, &["Cargo.lock"]).len(), all.len());
        assert!(concerned(&all, &[]).is_empty());
    }
}
