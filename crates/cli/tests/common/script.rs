//! A program that a test writes and runs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Written by another process: a child that a test beside this one forks holds what this process has open
/// until it has become its own program, and a file open for writing cannot be run.
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut install = install.spawn().expect("install");
    install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success(), "{} is not written", path.display());
}
