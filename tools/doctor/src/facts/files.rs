//! Small files of /proc and /sys, never more of one than is needed.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Bytes of a file that are read.
const MOST: u64 = 1 << 20;

/// A file's text; none where there is no such file.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The one line of a file of /sys.
pub fn line(path: impl AsRef<Path>) -> Option<String> {
    text(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

pub fn number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    line(path)?.parse().ok()
}

/// The last part of what a link leads to.
pub fn link(path: impl AsRef<Path>) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// The names in a directory, in order, at most `most`.
pub fn names(path: impl AsRef<Path>, most: usize) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).take(most).collect();
    names.sort();
    names
}
