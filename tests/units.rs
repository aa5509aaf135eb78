//! The systemd units of packaging/: systemd accepts them, they expose little, and they agree with the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd")
}

fn unit(name: &str) -> String {
    let path = folder().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn analyze(arguments: &[&str], units: &[PathBuf]) -> Output {
    Command::new("systemd-analyze")
        .args(arguments)
        .args(units)
        .output()
        .expect("systemd-analyze; `apt-get install systemd` has it")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
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

#[test]
fn systemd_finds_nothing_to_complain_about() {
    let folder = tempfile::tempdir().expect("a folder");
    let verify = ["verify", "--man=no"];
    let output = analyze(&verify, &copies(folder.path(), |text| text));
    assert!(output.status.success() && told(&output).trim().is_empty(), "{}", told(&output));
    // It would say so.
    let output = analyze(&verify, &copies(folder.path(), |text| text.replace("Restart=", "Restarts=")));
    assert!(told(&output).contains("Restarts"), "{}", told(&output));
}

#[test]
fn the_units_expose_little() {
    for name in
        UNITS.into_iter().chain(EXPORTER).chain(ROUTE).chain(OVN).filter(|name| name.ends_with(".service"))
    {
        let output = analyze(
            &["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE],
            &[folder().join(name)],
        );
        let told = told(&output);
        assert!(output.status.success(), "{told}");
        println!("{}", told.lines().find(|line| line.contains("Overall exposure")).expect("a result"));
    }
}

#[test]
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
