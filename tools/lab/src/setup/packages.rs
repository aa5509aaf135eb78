//! The host tools that the set-up itself needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::system::{Family, System};
use super::{Progress, run};

/// A tool, or the file with Debian's keys, and the package that has it; none: that system has no such
/// package.
pub(super) struct Tool {
    pub name: &'static str,
    pub debian: &'static str,
    pub fedora: Option<&'static str>,
    pub arch: Option<&'static str>,
    pub suse: Option<&'static str>,
    pub alpine: Option<&'static str>,
}

const TOOLS: [Tool; 7] = [
    Tool {
        name: "mmdebstrap",
        debian: "mmdebstrap",
        fedora: Some("mmdebstrap"),
        arch: None,
        suse: None,
        alpine: None,
    },
    // Which mmdebstrap runs.
    Tool { name: "apt-get", debian: "apt", fedora: Some("apt"), arch: Some("apt"), suse: None, alpine: None },
    Tool {
        name: super::apt::KEYRING,
        debian: "debian-archive-keyring",
        fedora: Some("debian-keyring"),
        arch: Some("debian-archive-keyring"),
        suse: None,
        alpine: None,
    },
    everywhere("mke2fs", "e2fsprogs"),
    everywhere("depmod", "kmod"),
    Tool { debian: "xz-utils", ..everywhere("xz", "xz") },
    Tool { fedora: Some("iproute"), ..everywhere("ip", "iproute2") },
];

/// A tool whose package has the same name on all systems.
pub(super) const fn everywhere(name: &'static str, package: &'static str) -> Tool {
    let some = Some(package);
    Tool { name, debian: package, fedora: some, arch: some, suse: some, alpine: some }
}

impl Tool {
    fn is_there(&self) -> bool {
        if self.name.starts_with('/') {
            Path::new(self.name).exists()
        } else {
            run::find(self.name).is_some()
        }
    }

    fn package(&self, family: Family) -> Option<&'static str> {
        match family {
            Family::Debian => Some(self.debian),
            Family::Fedora => self.fedora,
            Family::Arch => self.arch,
            Family::Suse => self.suse,
            Family::Alpine => self.alpine,
            Family::Other => None,
        }
    }
}

/// Installs what is missing on Debian and its like when root, else returns an error that names the commands.
pub fn ensure(progress: &Progress<'_>) -> Result<()> {
    ensure_tools(&TOOLS, progress)
}

/// The same of other tools.
pub(super) fn ensure_tools(tools: &[Tool], progress: &Progress<'_>) -> Result<()> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !tool.is_there()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let system = System::of_host();
    let can_install = system.family == Family::Debian && run::find("apt-get").is_some();
    if !can_install || !rustix::process::geteuid().is_root() {
        bail!("{}", advice(&system, &missing));
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.debian).collect();
    progress.report(&format!("installing host packages: {}", packages.join(" ")));
    let install = || {
        let mut command = Command::new("apt-get");
        command
            .args(["install", "-y", "--no-install-recommends"])
            .args(&packages)
            .env("DEBIAN_FRONTEND", "noninteractive");
        run::tool("install host packages", &mut command, "")
    };
    if install().is_err() {
        // The usual reason is a package list that is empty or old.
        run::tool("refresh the package lists", Command::new("apt-get").arg("update"), "")?;
        install()?;
    }
    Ok(())
}

/// What to install, in the names of this system.
fn advice(system: &System, missing: &[&Tool]) -> String {
    let names = |tools: &[&Tool]| tools.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ");
    let mut text =
        format!("the lab is set up with tools that are missing here ({}): {}", system.name, names(missing));
    let (packaged, other): (Vec<&Tool>, Vec<&Tool>) =
        missing.iter().partition(|tool| tool.package(system.family).is_some());
    let packages: Vec<&str> = packaged.iter().filter_map(|tool| tool.package(system.family)).collect();
    if !packages.is_empty() {
        text += &format!("\nas root run: {} {}", system.family.install(), packages.join(" "));
    }
    if !other.is_empty() {
        text += &format!("\nno package of this system is known to have {}", names(&other));
        if other.iter().any(|tool| tool.name == "mmdebstrap") {
            text += if system.family == Family::Arch {
                "; the AUR has mmdebstrap"
            } else {
                "; mmdebstrap is one Perl script (https://gitlab.mister-muffin.de/josch/mmdebstrap) that runs apt"
            };
        }
        if system.family != Family::Arch {
            text += ". A VM or a privileged container with Debian has all of them: run this program there (it is static)";
        }
    }
    text + "\nthen run the same command again"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice_for(os_release: &str, missing: &[&str]) -> String {
        let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| missing.contains(&tool.name)).collect();
        advice(&System::parse(os_release), &missing)
    }

    #[test]
    fn what_is_missing_has_the_names_of_the_system() {
        let missing = ["mmdebstrap", "apt-get", super::super::apt::KEYRING, "xz", "ip", "depmod"];
        let is = |os_release: &str, words: &[&str], not: &[&str]| {
            let advice_for = advice_for(os_release, &missing);
            assert!(words.iter().all(|word| advice_for.contains(word)), "{advice_for}");
            assert!(!not.iter().any(|word| advice_for.contains(word)), "{advice_for}");
        };
        is(
            "ID=debian",
            &[
                "apt-get install --no-install-recommends mmdebstrap apt debian-archive-keyring kmod xz-utils iproute2\n",
            ],
            &["no package"],
        );
        is(
            "ID=fedora\nPRETTY_NAME=\"Fedora Linux 43\"",
            &["(Fedora Linux 43)", "dnf install mmdebstrap apt debian-keyring kmod xz iproute\n"],
            &["no package", "apt-get install"],
        );
        is(
            "ID=arch",
            &[
                "pacman -S apt debian-archive-keyring kmod xz iproute2\n",
                "have mmdebstrap; the AUR has mmdebstrap",
            ],
            &["apt-get install"],
        );
        let none = "no package of this system is known to have mmdebstrap, apt-get, /usr/share/keyrings/";
        is(
            "ID=opensuse-leap",
            &["zypper install kmod xz iproute2\n", none, "with Debian"],
            &["apt-get install"],
        );
        is("ID=alpine", &["apk add kmod xz iproute2\n", none, "with Debian"], &["apt-get install"]);
        is("ID=void\nNAME=Void", &["(Void)", none, "depmod, xz, ip", "with Debian"], &["as root run"]);
    }
}
