//! Which Linux this host runs, as far as that decides what its packages are called and what installs them.

use std::fs;
use std::path::Path;

/// Systems with names of their own for packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Debian,
    Fedora,
    Arch,
    Suse,
    Alpine,
    Other,
}

/// This host's system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    pub family: Family,
    /// For people.
    pub name: String,
}

impl System {
    pub fn of_host() -> System {
        System::read(&["/etc/os-release", "/usr/lib/os-release"].map(Path::new))
    }

    /// The first of these files that there is.
    fn read(files: &[&Path]) -> System {
        let text = files.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        System::parse(&text)
    }

    /// Understands a file of the form of os-release(5).
    pub fn parse(text: &str) -> System {
        let value = |key: &str| {
            let line = text.lines().rev().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
        };
        let (id, like) = (value("ID"), value("ID_LIKE"));
        let families = [id.as_str()].into_iter().chain(like.split_whitespace()).filter_map(family);
        let name =
            [value("PRETTY_NAME"), value("NAME"), id.clone()].into_iter().find(|name| !name.is_empty());
        System {
            family: families.into_iter().next().unwrap_or(Family::Other),
            name: name.unwrap_or_else(|| "this system".into()),
        }
    }
}

/// The family of an ID in os-release.
fn family(id: &str) -> Option<Family> {
    Some(match id {
        "debian" | "ubuntu" => Family::Debian,
        "fedora" | "rhel" | "centos" => Family::Fedora,
        "arch" => Family::Arch,
        "suse" | "opensuse" => Family::Suse,
        "alpine" => Family::Alpine,
        other if other.starts_with("opensuse-") => Family::Suse,
        _ => return None,
    })
}

impl Family {
    /// What installs packages; empty: not known.
    pub fn install(self) -> &'static str {
        match self {
            Family::Debian => "apt-get install --no-install-recommends",
            Family::Fedora => "dnf install",
            Family::Arch => "pacman -S",
            Family::Suse => "zypper install",
            Family::Alpine => "apk add",
            Family::Other => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_known_by_their_id_or_by_what_they_are_like() {
        let is = |text: &str, family, name: &str| {
            assert_eq!(System::parse(text), System { family, name: name.into() }, "{text}");
        };
        is("PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n", Family::Debian, "Debian GNU/Linux 12");
        is("NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"", Family::Debian, "Linux Mint");
        is("ID=fedora\nPRETTY_NAME='Fedora Linux 43'", Family::Fedora, "Fedora Linux 43");
        is("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"", Family::Fedora, "rocky");
        is("ID=manjaro\nID_LIKE=arch", Family::Arch, "manjaro");
        is("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"", Family::Suse, "opensuse-leap");
        is("ID=alpine", Family::Alpine, "alpine");
        is("ID=nixos\nNAME=NixOS", Family::Other, "NixOS");
        is("", Family::Other, "this system");
    }

    #[test]
    fn the_first_file_that_there_is_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("os-release");
        fs::write(&file, "ID=arch").unwrap();
        assert_eq!(System::read(&[Path::new("/nothing/here"), &file]).family, Family::Arch);
    }
}
