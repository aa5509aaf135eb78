//! Which of the daemon's sockets a domain names, wherever it does.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use vmlane_config::paths::Paths;

use super::document::{Element, Space};

/// Text about a domain, which no program opens.
const PROSE: [&str; 4] = ["name", "title", "description", "metadata"];

/// What precedes or follows a path in QEMU's words and in JSON.
const ENDS: [char; 7] = [',', '=', '"', '\'', ' ', '\n', '\t'];

/// The sockets of VMs that a domain names, as the daemon calls them. A path that leads to one of them by
/// links or by `..` counts, too.
pub fn named(domain: &Element, paths: &Paths) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let real = paths.vms().canonicalize().ok();
    for child in &domain.children {
        if child.space != Space::Other && !PROSE.contains(&child.name.as_str()) {
            collect(child, paths, real.as_deref(), &mut found);
        }
    }
    found
}

fn collect(element: &Element, paths: &Paths, real: Option<&Path>, found: &mut BTreeSet<PathBuf>) {
    let values = element.attributes.iter().map(|attribute| attribute.value.as_str());
    for value in values.chain([element.text.as_str()]) {
        collect_paths(value, paths, real, found);
        if let Some(json) =
            value.trim_start().starts_with('{').then(|| serde_json::from_str(value).ok()).flatten()
        {
            strings(&json, &mut |text| collect_paths(text, paths, real, found));
        }
    }
    element.children.iter().for_each(|child| collect(child, paths, real, found));
}

/// The texts in JSON, in which a letter can be written in several ways.
fn strings(json: &serde_json::Value, each: &mut impl FnMut(&str)) {
    match json {
        serde_json::Value::String(text) => each(text),
        serde_json::Value::Array(list) => list.iter().for_each(|value| strings(value, each)),
        serde_json::Value::Object(map) => map.values().for_each(|value| strings(value, each)),
        _ => {}
    }
}

fn collect_paths(value: &str, paths: &Paths, real: Option<&Path>, found: &mut BTreeSet<PathBuf>) {
    // A runtime directory may have any of these letters in its name.
    let whole = [value];
    let parts = value.split(ENDS).filter(|part| part.starts_with('/'));
    for text in whole.into_iter().chain(parts).filter(|text| text.starts_with('/')) {
        let path = Path::new(text);
        let below = real.and_then(|real| Some(path.canonicalize().ok()?.strip_prefix(real).ok()?.to_owned()));
        let below = below.or_else(|| path.strip_prefix(paths.vms()).ok().map(Path::to_owned));
        // The directory of all VMs is no socket.
        found.extend(
            below.filter(|below| below.components().count() > 1).map(|below| paths.vms().join(below)),
        );
    }
    // QEMU's lists double a comma, and no list is needed to name a directory in them.
    let (text, vms) = (value.replace(",,", ","), paths.vms());
    let mut rest = text.as_str();
    let prefix = format!("{}/", vms.display());
    while let Some(at) = rest.find(&prefix) {
        rest = &rest[at + prefix.len()..];
        let end = rest.find(ENDS).unwrap_or(rest.len());
        let below = straight(Path::new(&rest[..end])).filter(|below| below.components().count() > 1);
        found.extend(below.map(|below| vms.join(below)));
    }
}

/// A relative path without `.` and `..`; None if it leads out.
fn straight(path: &Path) -> Option<PathBuf> {
    let mut straight = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => straight.push(name),
            Component::ParentDir => straight.pop().then_some(())?,
            _ => {}
        }
    }
    Some(straight)
}

/// The name of the VM whose socket it is.
pub fn vm_of<'a>(socket: &'a Path, paths: &Paths) -> Option<&'a str> {
    socket.strip_prefix(paths.vms()).ok()?.components().next()?.as_os_str().to_str()
}
