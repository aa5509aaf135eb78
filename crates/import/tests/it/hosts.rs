//! Listings of hosts, each with the configuration and the report that come of it. `VMLANE_WRITE=1` writes
//! what comes of them now. `crates/daemon` tests which cards reach which.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use vmlane_import::{Host, Options, configuration, host};

fn cases() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hosts");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    cases.sort();
    cases
}

fn hosts(case: &Path) -> Vec<Host> {
    let files = (1..).map(|number| format!("esx{number}")).map_while(|name| {
        let text = std::fs::read(case.join(format!("{name}.txt"))).ok()?;
        Some(host(&name, text).unwrap())
    });
    files.collect()
}

#[test]
fn each_listing_becomes_what_is_expected() {
    let mut wrong = String::new();
    let cases = cases();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let done = configuration(&[], &Options { hosts: hosts(&case), ..Options::default() });
        let notes: String = done.notes.iter().map(|note| format!("# {note}\n")).collect();
        let came = format!("{notes}\n{}", done.toml);
        let file = case.join("expected.toml");
        if std::env::var_os("VMLANE_WRITE").is_some() {
            std::fs::write(&file, &came).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        if expected != came {
            let _ = writeln!(wrong, "==> {} became\n{came}\n<== and not\n{expected}", case.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn nothing_of_a_listing_is_dropped_without_a_line() {
    for case in cases() {
        let hosts = hosts(&case);
        let done = configuration(&[], &Options { hosts, ..Options::default() });
        let all = done.toml.clone() + &done.notes.iter().map(|note| format!("{note}\n")).collect::<String>();
        let cards = std::fs::read_to_string(case.join("cards.txt")).unwrap();
        let lines = cards.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            let network = line.split(" | ").next().unwrap();
            let name = network.rsplit_once(" dvportgroup").map_or(network, |(_, number)| number);
            let uplinks = line.strip_prefix("uplinks | ").and_then(|rest| rest.split(" | ").nth(1));
            for name in
                uplinks.map_or_else(|| vec![name.trim_start_matches('=')], |all| all.split(' ').collect())
            {
                assert!(all.contains(name), "{}: {name}: {all}", case.display());
            }
        }
    }
}
