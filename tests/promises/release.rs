//! A release as users get it: two directories make the same artifacts, which are installed and serve in fresh
//! systems, as a package and as a tarball, and take over from the release before.

mod artifacts;

use std::fs;
use std::path::Path;
use std::process::Command;

use artifacts::{Artifacts, clone};
use vmlane_testkit::{TWO_VMCI, skipped};
use vmlane_tests::alone::output;
use vmlane_tests::kept;
use vmlane_tests::tree::root;

use crate::package;
use crate::package::container::{Container, Release, copy, debian};
use crate::package::guests::{SOCKETS, Traffic};
use crate::upgrade::take_turns;

vmlane_tests::tests! {
    plain {
        a_release_is_made_of_the_optimized_program_and_the_guide,
        checksums_name_every_artifact_and_detect_a_change,
    }
    long {
        two_directories_make_the_same_release,
        its_package_serves_in_debian_12_and_13,
        its_tarball_serves_in_debian_12_and_13,
        it_takes_over_from_the_release_before,
    }
}

const RELEASES: [Release; 2] = [Release::Bookworm, Release::Trixie];

fn a_release_is_made_of_the_optimized_program_and_the_guide() {
    let mut make = Command::new("make");
    make.args(["--dry-run", "release", "image", "CURDIR=/with a space"]);
    make.current_dir(root()).env_remove("MAKEFLAGS");
    let printed = output(make.env("VMLANE_BIN", "/some/other/program"));
    let at = |words: &str| printed.find(words).unwrap_or_else(|| panic!("{words}: {printed}"));
    assert!(at("cargo build --profile dist") < at("/dist/vmlane\" scripts/docs.sh"), "{printed}");
    assert!(at("/dist/vmlane\" scripts/docs.sh") < at("/dist/vmlane\" scripts/release.sh"), "{printed}");
    let uses = |words: &str| printed.matches(words).count();
    assert_eq!(uses("\"/with a space/target/"), uses("/with a space/target/"), "one word for the shell: {printed}");
    for named in ["=/vmlane'", "=/cargo'"] {
        assert!(at("--remap-path-prefix=") < at(named), "{printed}");
    }
}

/// With small artifacts in place of a release's.
fn checksums_name_every_artifact_and_detect_a_change() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["vmlane_9.9.9_amd64.deb", "vmlane-9.9.9-x86_64-linux.tar.gz", "vmlane-9.9.9.cdx.json"] {
        fs::write(folder.path().join(name), name).expect("an artifact");
    }
    output(Command::new("sh").args(["-c", "sha256sum -- * >SHA256SUMS"]).current_dir(folder.path()));
    let artifacts = Artifacts { folder: folder.path().to_owned() };
    assert_eq!(artifacts.version(), "9.9.9");
    assert_eq!(artifacts.wrong(), None);
    fs::write(artifacts.package(), "other").expect("an artifact");
    assert!(artifacts.wrong().is_some_and(|wrong| wrong.contains("amd64.deb: FAILED")));
    fs::write(artifacts.package(), "vmlane_9.9.9_amd64.deb").expect("an artifact");
    fs::write(folder.path().join("more"), "").expect("a file");
    assert!(artifacts.wrong().is_some_and(|wrong| wrong.contains("more")));
}

/// Where the environment differs in what a build could notice.
fn two_directories_make_the_same_release() {
    let first = Artifacts::get();
    let folder = tempfile::Builder::new().prefix("another directory-").tempdir_in(root().join("out"));
    let folder = folder.expect("a folder");
    let sources = clone(&folder.path().join("with/a-longer/name"));
    let mut make = Command::new("sh");
    make.args(["-c", "umask 077; exec make release"]).env("TZ", "Asia/Kathmandu").env("LC_ALL", "C.UTF-8");
    let second = Artifacts::make(&sources, make);
    let names = |artifacts: &Artifacts| files_of(&artifacts.folder);
    assert_eq!(names(&first), names(&second));
    let differs = |name: &&String| {
        let read = |artifacts: &Artifacts| fs::read(artifacts.folder.join(name)).expect("an artifact");
        read(&first) != read(&second)
    };
    let different: Vec<String> = names(&first).into_iter().filter(|name| differs(&name)).collect();
    if !different.is_empty() {
        let kept = folder.keep();
        panic!("{different:?} differ between {} and {}", first.folder.display(), kept.display());
    }
    kept("release", &format!("two directories made the same {} files of {}", names(&first).len(), first.version()));
}

fn files_of(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// VMs get their devices, bytes pass between them, and programs of the host get the library.
fn serves(container: &Container, program: &str) {
    container.run("systemctl is-active vmlane vmlane-keeper && systemctl is-enabled vmlane vmlane-keeper");
    fs::write(container.path("/etc/vmlane/vmlane.toml"), [SOCKETS, TWO_VMCI].concat()).expect("the configuration");
    container.run("systemctl reload vmlane");
    let traffic = Traffic::start(|vm, name| container.path(&format!("/run/vmlane/vm/{vm}/{name}.sock")));
    traffic.goes_on();
    container.replaces_daemon("systemctl kill -s KILL vmlane || true");
    traffic.goes_on();
    traffic.finish();
    let maps = container.run(&format!("{program} run -- cat /proc/self/maps"));
    let installed = Path::new(program).with_file_name("../lib/vmlane/libvmlane_vsock.so.0");
    let library = container.run(&format!("realpath {}", installed.display()));
    assert!(maps.contains(&library), "{library} is not in {maps}");
}

fn its_package_serves_in_debian_12_and_13() {
    let artifacts = Artifacts::get();
    for release in RELEASES {
        let (_folder, root) = copy(&debian(release, None));
        fs::copy(artifacts.package(), root.join("vmlane.deb")).expect("the package in the container");
        let container = Container::boot(&root);
        container.run("dpkg -i /vmlane.deb");
        assert_eq!(container.version(), artifacts.version());
        container.run("test -s /usr/share/doc/vmlane/html/index.html && test -s /usr/share/man/man1/vmlane.1.gz");
        serves(&container, "/usr/bin/vmlane");
        container.run("dpkg --purge vmlane");
        assert_eq!(package::files(&container), "");
    }
    kept("release", &format!("the package of {} serves in Debian 12 and 13", artifacts.version()));
}

/// By the commands that its note has.
fn its_tarball_serves_in_debian_12_and_13() {
    let artifacts = Artifacts::get();
    for release in RELEASES {
        let (_folder, root) = copy(&debian(release, None));
        output(Command::new("tar").arg("-xzf").arg(artifacts.tarball()).arg("-C").arg(root.join("root")));
        let container = Container::boot(&root);
        assert!(container.fails("dpkg -s vmlane"));
        let note = container.run("cat /root/vmlane-*/INSTALL");
        let (commands, _) = note.split_once("After an upgrade").expect("the part of an upgrade");
        let commands: Vec<&str> = commands.lines().filter_map(|line| line.strip_prefix("    ")).collect();
        assert!(commands.len() > 5, "{note}");
        let script = format!("set -e; cd /root/vmlane-*; {}", commands.join("\n"));
        container.run(&script);
        let printed = container.run("/usr/local/bin/vmlane --version");
        assert_eq!(printed, format!("vmlane {}", artifacts.version()));
        serves(&container, "/usr/local/bin/vmlane");
        // The same again is an upgrade: what the administrator has written stays.
        container.run(&script);
        container.replaces_daemon("/usr/local/bin/vmlane daemon --can-replace && systemctl restart vmlane");
        container.run("grep -q '^cid = 3' /etc/vmlane/vmlane.toml && test -S /run/vmlane/vm/a/vmci.sock");
    }
    kept("release", &format!("the tarball of {} serves in Debian 12 and 13", artifacts.version()));
}

fn it_takes_over_from_the_release_before() {
    let Some(before) = Artifacts::before() else {
        skipped("no release before this one: VMLANE_RELEASE_BEFORE is the directory with its artifacts");
        return;
    };
    let now = Artifacts::get();
    let (old, new) = (before.version(), now.version());
    let counted = take_turns((&before.package(), &old), (&now.package(), &new));
    kept("release", &format!("the packages of {old} and {new} took turns, {counted}"));
}
