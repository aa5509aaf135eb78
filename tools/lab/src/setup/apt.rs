//! Which Debian mirror this host uses, and fetching packages of any release from it.
//!
//! Packages are unpacked by `mmdebstrap --variant=extract`: apt resolves the dependencies and
//! verifies signatures against Debian's own keyring, and no maintainer script runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::run;

pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Backports have a low priority by default, so a release that comes with them is asked for.
const PREFER_BACKPORTS: &str = "printf 'Package: *\\nPin: release a=*-backports\\nPin-Priority: 600\\n' \
     > \"$1\"/etc/apt/preferences.d/backports";

/// Releases that are not out yet; they have no security archive either.
const MAKING: [&str; 1] = ["forky"];

/// Names the mirror of Debian for a host whose apt has none.
const NAMED: &str = "VMLANE_DEBIAN_MIRROR";

/// The mirrors this host's apt is configured with, or the one that is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    pub main: String,
    pub security: Option<String>,
}

/// What to fetch: packages of one Debian release.
pub struct Fetch<'a> {
    pub step: &'a str,
    pub suite: &'a str,
    pub backports: bool,
    pub packages: &'a [&'a str],
}

impl Mirrors {
    /// The one that `VMLANE_DEBIAN_MIRROR` names; else what `/etc/apt/sources.list` and
    /// `/etc/apt/sources.list.d` name.
    pub fn of_host() -> Result<Self> {
        if let Some(named) = std::env::var(NAMED).ok().filter(|named| !named.is_empty()) {
            return Self::named(&named);
        }
        let mut text = Vec::new();
        let mut add = |path: &Path| {
            if let Ok(content) = fs::read_to_string(path) {
                text.push((path.extension().is_some_and(|e| e == "sources"), content));
            }
        };
        add(Path::new("/etc/apt/sources.list"));
        if let Ok(dir) = fs::read_dir("/etc/apt/sources.list.d") {
            let mut paths: Vec<_> = dir.flatten().map(|e| e.path()).collect();
            paths.sort();
            paths
                .iter()
                .filter(|p| p.extension().is_some_and(|e| e == "sources" || e == "list"))
                .for_each(|p| add(p));
        }
        let entries =
            text.iter().flat_map(
                |(deb822, content)| {
                    if *deb822 { deb822_entries(content) } else { list_entries(content) }
                },
            );
        Self::choose(entries).with_context(|| {
            format!(
                "no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d: the guest images and QEMU \
                 come from the mirror that apt uses; configure one there, or name one: {NAMED}=http://HOST/debian"
            )
        })
    }

    fn named(uri: &str) -> Result<Self> {
        ensure!(is_network(uri), "{NAMED}={uri}: this is no address of a mirror, such as http://HOST/debian");
        Ok(Self { main: uri.to_owned(), security: None })
    }

    /// The first archive with Debian's own release names that has `main` is the mirror.
    fn choose(entries: impl Iterator<Item = (String, String)>) -> Option<Self> {
        let mut main = None;
        let mut security = None;
        for (uri, suite) in entries.filter(|(_, suite)| is_debian(suite)) {
            let slot = if suite.contains("security") { &mut security } else { &mut main };
            slot.get_or_insert(uri);
        }
        Some(Self { main: main?, security })
    }

    /// Unpacks packages and their dependencies under `into`.
    pub fn fetch(&self, what: &Fetch<'_>, into: &Path) -> Result<()> {
        let Some(mmdebstrap) = run::find("mmdebstrap") else {
            bail!("{}: mmdebstrap is not installed", what.step)
        };
        let mut command = Command::new(mmdebstrap);
        command
            .args(["--variant=extract", "--architectures=amd64", "--quiet"])
            .args(["--aptopt=Apt::Install-Recommends \"false\"", "--aptopt=Acquire::Retries \"3\""]);
        if !rustix::process::geteuid().is_root() {
            // The other modes run as users of a range that may enter no home directory. Nothing is configured
            // here, so no root directory has to be changed.
            command.arg("--mode=chrootless");
        }
        for option in proxy_options() {
            command.arg(format!("--aptopt={option}"));
        }
        if what.backports {
            command.arg(format!("--setup-hook={PREFER_BACKPORTS}"));
        }
        command.arg(format!("--include={}", what.packages.join(","))).arg(what.suite).arg(into).arg("-");
        run::tool(what.step, &mut command, &self.sources(what)).map(drop)
    }

    fn sources(&self, what: &Fetch<'_>) -> String {
        // The lists of a release under development are valid for a week. A mirror that is behind does for a
        // package that is wanted in one version; the signature shows whose packages these are.
        let lasting = if MAKING.contains(&what.suite) { " check-valid-until=no" } else { "" };
        let line =
            |uri: &str, suite: &str| format!("deb [signed-by={KEYRING}{lasting}] {uri} {suite} main\n");
        let mut text = line(&self.main, what.suite);
        if what.backports {
            text += &line(&self.main, &format!("{}-backports", what.suite));
        }
        if let Some(uri) = self.security.as_ref().filter(|_| lasting.is_empty()) {
            text += &line(uri, &format!("{}-security", what.suite));
        }
        text
    }
}

fn is_debian(suite: &str) -> bool {
    const RELEASES: [&str; 9] =
        ["bullseye", "bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"];
    RELEASES
        .iter()
        .any(|r| suite.strip_prefix(r).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '/'])))
}

/// `(uri, suite)` of every one-line `deb` entry with the component `main`.
fn list_entries(text: &str) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb ") else { continue };
        let rest = match (rest.trim_start().strip_prefix('['), rest.find(']')) {
            (Some(_), Some(end)) => &rest[end + 1..],
            _ => rest,
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        if let [uri, suite, components @ ..] = &words[..]
            && components.contains(&"main")
            && is_network(uri)
        {
            entries.push(((*uri).to_owned(), (*suite).to_owned()));
        }
    }
    entries
}

/// The same of deb822 text: stanzas of `Key: value` with continuation lines.
fn deb822_entries(text: &str) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| -> Vec<String> {
            let mut words = Vec::new();
            let mut inside = false;
            for line in stanza.lines().filter(|l| !l.starts_with('#')) {
                if line.starts_with([' ', '\t']) {
                    if inside {
                        words.extend(line.split_whitespace().map(str::to_owned));
                    }
                    continue;
                }
                let (key, value) = line.split_once(':').unwrap_or((line, ""));
                inside = key.eq_ignore_ascii_case(name);
                if inside {
                    words.extend(value.split_whitespace().map(str::to_owned));
                }
            }
            words
        };
        let disabled = field("Enabled").iter().any(|v| v.eq_ignore_ascii_case("no"));
        let is_main = field("Components").iter().any(|c| c == "main");
        if disabled || !is_main || !field("Types").iter().any(|t| t == "deb") {
            continue;
        }
        for uri in field("URIs").iter().filter(|u| is_network(u)) {
            entries.extend(field("Suites").into_iter().map(|suite| (uri.clone(), suite)));
        }
    }
    entries
}

fn is_network(uri: &str) -> bool {
    ["http://", "https://", "mirror+", "file:"].iter().any(|p| uri.starts_with(p))
}

/// mmdebstrap starts from an empty apt configuration; the host's proxy must come along.
fn proxy_options() -> Vec<String> {
    let Ok(output) = Command::new("apt-config").args(["dump", "Acquire"]).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|l| l.to_ascii_lowercase().contains("proxy") && !l.contains("\"\""))
        .map(|l| l.trim_end_matches(';').to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_entries() {
        let text = "# deb http://old/ bookworm main\n\
                    deb [arch=amd64 signed-by=/x] http://m/debian bookworm main contrib # note\n\
                    deb-src http://m/debian bookworm main\n\
                    deb http://m/sec bookworm-security main\n\
                    deb cdrom:[x]/ bookworm main\n";
        let expect = Mirrors { main: "http://m/debian".into(), security: Some("http://m/sec".into()) };
        assert_eq!(Mirrors::choose(list_entries(text).into_iter()), Some(expect));
    }

    #[test]
    fn deb822_stanzas() {
        let text = "Types: deb\nURIs: http://other/node\nSuites: nodistro\nComponents: main\n\n\
                    Types: deb\n# note\nURIs: http://off/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n\
                    Types: deb deb-src\nURIs:\n http://m/debian\nSuites: bookworm bookworm-updates\nComponents: main\n";
        let expect = Mirrors { main: "http://m/debian".into(), security: None };
        assert_eq!(Mirrors::choose(deb822_entries(text).into_iter()), Some(expect));
    }

    #[test]
    fn a_host_without_a_mirror_of_debian_uses_the_one_that_is_named() {
        assert_eq!(Mirrors::named("http://m/debian").unwrap().main, "http://m/debian");
        let error = Mirrors::named("m/debian").unwrap_err().to_string();
        assert!(error.contains("VMLANE_DEBIAN_MIRROR=m/debian"), "{error}");
    }

    #[test]
    fn suites_of_others_are_not_debian() {
        assert!(is_debian("bookworm-updates") && is_debian("bullseye/updates"));
        assert!(!is_debian("noble") && !is_debian("nodistro") && !is_debian("stable2"));
    }
}
