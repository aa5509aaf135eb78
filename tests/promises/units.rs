//! The systemd units of packaging/: systemd accepts them, they expose little, and they agree with the
//! program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vmlane_tests::alone::{output, printed};
use vmlane_tests::tree;

vmlane_tests::tests! {
    plain {
        systemd_finds_nothing_to_complain_about,
        the_units_expose_little,
        the_units_have_what_survival_needs,
    }
}

/// What VMs need.
const UNITS: [&str; 2] = ["vmlane.service", "vmlane-keeper.service"];
/// What watching needs.
const EXPORTER: [&str; 2] = ["vmlane-metrics.service", "vmlane-metrics.socket"];
/// What streams between hosts need.
const ROUTE: [&str; 1] = ["vmlane-route.service"];
/// What NICs in OVN's networks need.
const OVN: [&str; 1] = ["vmlane-ovn.service"];
/// Tenths, as `systemd-analyze security --threshold` has them: below 3.
const EXPOSURE: &str = "29";

fn folder() -> PathBuf {
    tree::root().join("packaging/systemd")
}

fn unit(name: &str) -> String {
    tree::read(folder().join(name))
}

fn analyze(arguments: &[&str], units: &[PathBuf]) -> Command {
    let mut command = Command::new("systemd-analyze");
    command.args(arguments).args(units);
    command
}

/// The units with a program that this host has.
fn copies(into: &Path, change: impl Fn(String) -> String) -> Vec<PathBuf> {
    let copy = |name: &&str| {
        let path = into.join(name);
        std::fs::write(&path, change(unit(name).replace("/usr/bin/vmlane", "/bin/true"))).expect("a copy");
        path
    };
    UNITS.iter().chain(&EXPORTER).chain(&ROUTE).chain(&OVN).map(copy).collect()
}

fn systemd_finds_nothing_to_complain_about() {
    let folder = tempfile::tempdir().expect("a folder");
    let verify = |units: &[PathBuf]| -> Output {
        analyze(&["verify", "--man=no"], units).output().expect("systemd-analyze, of systemd")
    };
    let good = verify(&copies(folder.path(), |text| text));
    assert!(good.status.success() && printed(&good).trim().is_empty(), "{}", printed(&good));
    // It would report it.
    let bad = verify(&copies(folder.path(), |text| text.replace("Restart=", "Restarts=")));
    assert!(printed(&bad).contains("Restarts"), "{}", printed(&bad));
}

fn the_units_expose_little() {
    let all = UNITS.into_iter().chain(EXPORTER).chain(ROUTE).chain(OVN);
    for name in all.filter(|name| name.ends_with(".service")) {
        let words = ["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE];
        let printed = output(&mut analyze(&words, &[folder().join(name)]));
        println!("{}", printed.lines().find(|line| line.contains("Overall exposure")).expect("a result"));
    }
}

fn the_units_have_what_survival_needs() {
    let has = |name: &str, line: &str| {
        assert!(unit(name).lines().any(|there| there == line), "{name} has no line {line:?}");
    };
    for name in UNITS {
        // Never given up, whatever ends it, how often it may.
        has(name, "StartLimitIntervalSec=0");
        has(name, "Restart=always");
        has(name, "User=vmlane");
        has(name, "ReadWritePaths=/run/vmlane");
    }
    // A stop keeps what lets VMs continue, and the keeper is no process of the daemon's unit.
    has("vmlane.service", "KillSignal=SIGKILL");
    has("vmlane.service", "RestartPreventExitStatus=2 78");
    has(
        "vmlane.service",
        "ExecStart=/usr/bin/vmlane daemon --config /etc/vmlane/vmlane.toml --runtime-dir /run/vmlane \
         --state-dir /var/lib/vmlane --external-keeper",
    );
    has("vmlane-keeper.service", "ExecStart=/usr/bin/vmlane keeper --runtime-dir /run/vmlane");
    for tie in ["BindsTo=", "Requires=", "PartOf=", "StopPropagatedFrom="] {
        let tied = UNITS.into_iter().find(|name| unit(name).lines().any(|line| line.starts_with(tie)));
        assert_eq!(tied, None, "{tie} would end one with the other");
    }
}
