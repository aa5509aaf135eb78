//! Runs one tool of the set-up; its failure names the step, the cause and the way out.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `command` quietly, with `input` on its standard input.
pub fn tool(step: &str, command: &mut Command, input: &str) -> Result<String> {
    use std::io::Write;
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{step}: cannot run {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that ends without reading all of it is judged by its exit status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("{step}: {name}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    bail!("{step}: {name} failed ({}): {}\n{}", output.status, cause(&stderr), way_out(&stderr));
}

/// The lines of a tool's standard error that give the reason.
fn cause(stderr: &str) -> String {
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|l| l.starts_with("E:") || l.starts_with("W:") || l.contains("rror"))
        .filter(|l| !l.contains("main() received signal") && !l.contains("apt-get --yes"))
        .map(|l| l.get(..300).unwrap_or(l))
        .collect();
    let lines = if errors.is_empty() { stderr.lines().collect() } else { errors };
    lines[lines.len().saturating_sub(6)..].join("\n  ")
}

fn way_out(stderr: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|w| stderr.contains(w));
    if has(&["No space left"]) {
        "the disk is full: free some space (the cache needs about 1 GiB), or set XDG_CACHE_HOME \
         to a place that has it"
    } else if has(&["Could not resolve", "Temporary failure", "Unable to connect", "Could not connect"]) {
        "the package mirror cannot be reached: check the network, or the proxy and mirror that \
         apt is configured with, then run the same command again"
    } else if has(&["NO_PUBKEY", "not signed", "signature"]) {
        "the signature does not verify: update the package debian-archive-keyring"
    } else if has(&["Unable to locate package", "has no installation candidate", "404"]) {
        "the mirror lacks the package: run apt-get update, or check that the mirror carries this \
         suite"
    } else {
        "run the same command again when the cause is gone; finished steps are kept"
    }
}

/// The tool's absolute path, if it is installed (`sbin` too, which is not in every user's PATH).
pub fn find(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin"].map(Into::into))
        .map(|dir| dir.join(name))
        .find(|p| is_executable(p))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_step_and_a_way_out() {
        let script = "echo 'E: Could not resolve host' >&2; exit 3";
        let error = tool("fetch QEMU", Command::new("sh").args(["-c", script]), "").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("fetch QEMU") && text.contains("Could not resolve"), "{text}");
        assert!(text.contains("mirror cannot be reached"), "{text}");
    }

    #[test]
    fn input_reaches_the_tool() {
        assert_eq!(tool("copy", &mut Command::new("cat"), "hello").unwrap(), "hello");
    }
}
