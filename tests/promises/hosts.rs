//! Hosts that are not Debian: what is to be installed is named as the system names it, and nothing is
//! tried that only Debian has.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use vmlane_tests::alone::{printed, vmlane};
use vmlane_tests::{kept, tree};

vmlane_tests::tests! {
    plain { building_elsewhere_asks_for_packages_of_that_system }
    guests { the_lab_elsewhere_asks_for_packages_of_that_system }
}

const SYSTEMS: [(&str, &str); 5] = [
    ("Fedora Linux 43", "ID=fedora"),
    ("Arch Linux", "ID=arch"),
    ("openSUSE Leap 16.0", "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\""),
    ("Alpine Linux v3.22", "ID=alpine"),
    ("Void", "ID=void"),
];

fn os_release((name, id): (&str, &str)) -> String {
    format!("PRETTY_NAME=\"{name}\"\n{id}\n")
}

/// A directory for PATH with these programs of this host and no others.
fn programs(directory: &Path, names: &[&str]) {
    std::fs::create_dir_all(directory).expect("a directory");
    let path = std::env::var_os("PATH").expect("a PATH");
    for name in names {
        let program = std::env::split_paths(&path).map(|at| at.join(name)).find(|program| program.exists());
        symlink(program.unwrap_or_else(|| panic!("{name} is not in PATH")), directory.join(name))
            .expect("a link");
    }
}

/// What scripts/bootstrap.sh prints there, without a C compiler, to somebody who wants to run tests, too.
fn bootstrap(system: (&str, &str)) -> Output {
    let folder = tempfile::tempdir().expect("a directory");
    let (path, file) = (folder.path().join("bin"), folder.path().join("os-release"));
    programs(&path, &["bash", "cargo", "dirname", "id", "sed", "tail", "tr"]);
    std::fs::write(&file, os_release(system)).expect("os-release");
    let mut command = Command::new(path.join("bash"));
    command.arg(tree::root().join("scripts/bootstrap.sh"));
    command.args(["g++", "ncat", "python3", "lintian", "tshark"]);
    command.env("PATH", &path).env("VMLANE_OS_RELEASE", &file).output().expect("bash")
}

fn building_elsewhere_asks_for_packages_of_that_system() {
    let expected = [
        "Fedora Linux 43 lacks packages: run 'dnf install gcc gcc-c++ nmap-ncat python3 lintian wireshark-cli' as root",
        "Arch Linux lacks packages: run 'pacman -S gcc nmap python wireshark-cli' as root",
        "openSUSE Leap 16.0 lacks packages: run 'zypper install gcc gcc-c++ ncat python3 wireshark' as root",
        "Alpine Linux v3.22 has musl, and vmlane is built with glibc: build it on Debian or Fedora",
        "These are missing, by their names on Debian: gcc g++ ncat python3 lintian tshark; install what has the same",
    ];
    for (system, expected) in SYSTEMS.into_iter().zip(expected) {
        let output = bootstrap(system);
        let printed = printed(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains(expected), "{printed}");
        assert!(!printed.contains("apt-get") && !printed.contains("command not found"), "{printed}");
    }
    let printed = printed(&bootstrap(SYSTEMS[1]));
    assert!(printed.contains("Arch Linux has no package known to be like lintian of Debian"), "{printed}");
}

/// The program alone in a file system of its own, as on a host that has none of the tools.
fn the_lab_elsewhere_asks_for_packages_of_that_system() {
    let expected = [
        "as root run: dnf install mmdebstrap apt debian-keyring e2fsprogs kmod xz iproute\n",
        "as root run: pacman -S apt debian-archive-keyring e2fsprogs kmod xz iproute2\n",
        "as root run: zypper install e2fsprogs kmod xz iproute2\n",
        "as root run: apk add e2fsprogs kmod xz iproute2\n",
        "no package of this system is known to have mmdebstrap, apt-get,",
    ];
    for (system, expected) in SYSTEMS.into_iter().zip(expected) {
        let folder = tempfile::tempdir().expect("a directory");
        let root = folder.path();
        std::fs::create_dir(root.join("etc")).expect("a directory");
        std::fs::write(root.join("etc/os-release"), os_release(system)).expect("os-release");
        std::fs::copy(vmlane().get_program(), root.join("vmlane")).expect("a copy");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--root"]).arg(root).args(["/vmlane", "lab", "setup"]);
        let output = command.env_clear().env("HOME", "/").output().expect("unshare, of util-linux");
        let printed = printed(&output);
        assert!(!output.status.success(), "{printed}");
        assert!(printed.contains(expected) && printed.contains(&format!("({})", system.0)), "{printed}");
        assert!(!printed.contains("apt-get install"), "{printed}");
    }
    kept(
        "packages",
        "building, and the lab, name what to install on Fedora, Arch, openSUSE, Alpine and others",
    );
}
