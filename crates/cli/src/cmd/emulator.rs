//! The QEMU of this host: which version it is.

use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use vmlane_attach::qemu::Version;

/// Where a QEMU is searched for: in PATH, then where Red Hat's distributions have theirs.
const USUAL: [&str; 2] = ["qemu-system-x86_64", "/usr/libexec/qemu-kvm"];

/// This host's QEMU and its version; none if there is none in the usual places.
pub fn version_here() -> anyhow::Result<Option<(String, Version)>> {
    for program in USUAL {
        match Command::new(program).arg("--version").output() {
            Ok(output) => {
                return read(program, &output.stdout).map(|version| Some((program.to_owned(), version)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("{program} --version")),
        }
    }
    Ok(None)
}

/// The QEMU that the environment names, and its version.
pub fn version_named() -> anyhow::Result<Option<(String, Version)>> {
    let Some(program) = std::env::var_os("VMLANE_QEMU").filter(|program| !program.is_empty()) else {
        return Ok(None);
    };
    let version = version_at("VMLANE_QEMU", Path::new(&program))?;
    Ok(Some((program.display().to_string(), version)))
}

/// The version of the QEMU that --emulator names.
pub fn version_of(program: &Path) -> anyhow::Result<Version> {
    version_at("--emulator", program)
}

fn version_at(named_by: &str, program: &Path) -> anyhow::Result<Version> {
    let name = program.display().to_string();
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("{named_by} {name}"))?;
    read(&name, &output.stdout).with_context(|| format!("{named_by} {name}"))
}

fn read(program: &str, text: &[u8]) -> anyhow::Result<Version> {
    let text = String::from_utf8_lossy(text);
    let version = text.strip_prefix("QEMU emulator version ").and_then(|rest| rest.split_whitespace().next());
    let Some(version) = version else {
        bail!(
            "`{program} --version` does not print \"QEMU emulator version ...\"; is it qemu-system-x86_64? Or name the version \
             with --qemu"
        );
    };
    // Debian and others write 7.2.19(Debian 1:7.2+dfsg-7) and 8.2.0-rc1.
    let number =
        version.split(|letter: char| !letter.is_ascii_digit() && letter != '.').next().unwrap_or_default();
    number.parse().map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        for (text, version) in [
            ("QEMU emulator version 7.2.19 (Debian 1:7.2+dfsg-7+deb12u16)\nCopyright", Version(7, 2)),
            ("QEMU emulator version 10.1.0-rc1\n", Version(10, 1)),
            ("QEMU emulator version 9.2.4(qemu-9.2.4-1.fc42)\n", Version(9, 2)),
        ] {
            assert_eq!(read("q", text.as_bytes()).unwrap(), version, "{text}");
        }
        for (text, words) in [("qemu 1\n", "--qemu"), ("QEMU emulator version 6.0.0\n", "too old")] {
            let error = format!("{:#}", read("q", text.as_bytes()).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
