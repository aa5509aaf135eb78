//! The files that a configuration is made of: the main one, then those of `conf.d` beside it in the order of their names,
//! then the VMs that were added at run time.
//!
//! A place in them is one number: an offset in all texts, one after the other, each with a newline behind it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::ConfigError;

/// Bytes that a file may have.
pub const MOST_BYTES: u64 = 4 << 20;
/// Files that `conf.d` may have: one for each host of a large fleet, and one for each VM.
pub const MOST_FILES: usize = 4096;

/// What a file may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything.
    Whole,
    /// One VM and nothing else: it was added while a daemon ran.
    Vm,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub path: PathBuf,
    pub text: String,
    pub kind: Kind,
}

/// All files of a configuration, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(pub Vec<Source>);

/// The directory of further files beside the main one.
pub fn directory(main: &Path) -> PathBuf {
    main.parent().unwrap_or(Path::new("")).join("conf.d")
}

/// The main file, and those of `conf.d` that count: `*.toml`, by name. Hidden ones do not, nor what editors and packages
/// leave (`x.toml~`, `#x.toml#`, `x.toml.dpkg-old`).
pub fn files(main: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let directory = directory(main);
    let unreadable = |cause| ConfigError::File { path: directory.clone(), cause };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![main.to_owned()]),
        Err(error) => return Err(unreadable(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let bytes = name.as_bytes();
        if bytes.ends_with(b".toml") && !bytes.starts_with(b".") && !bytes.starts_with(b"#") {
            names.push(name);
        }
        if names.len() > MOST_FILES {
            return Err(ConfigError::TooManyFiles { path: directory });
        }
    }
    names.sort();
    Ok(std::iter::once(main.to_owned()).chain(names.iter().map(|name| directory.join(name))).collect())
}

/// The text of a file, which must be a file (a pipe would be waited for), of a bounded length.
pub fn read(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    read_from(File::open(path)?, MOST_BYTES)
}

/// The text of an open file of at most so many bytes.
pub fn read_from(file: File, most: u64) -> io::Result<String> {
    let mut text = String::new();
    if file.take(most + 1).read_to_string(&mut text)? as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes; split it")));
    }
    Ok(text)
}

impl Sources {
    /// A single file with this text.
    pub fn of(path: &Path, text: &str) -> Sources {
        Sources(vec![Source { path: path.to_owned(), text: text.to_owned(), kind: Kind::Whole }])
    }

    /// Reads the main file, and those of `conf.d`.
    pub fn read(main: &Path) -> Result<Sources, ConfigError> {
        let mut sources = Vec::new();
        // The main one first: if it is missing, that is what has to be said.
        let text = |path: &Path| match read(path) {
            Err(cause) if path == main => Err(ConfigError::Unreadable { path: path.to_owned(), cause }),
            Err(cause) => Err(ConfigError::File { path: path.to_owned(), cause }),
            Ok(text) => Ok(text),
        };
        text(main)?;
        for path in files(main)? {
            sources.push(Source { text: text(&path)?, path, kind: Kind::Whole });
        }
        Ok(Sources(sources))
    }

    /// The same with the VMs that were added at run time.
    pub fn with(mut self, vms: impl IntoIterator<Item = Source>) -> Sources {
        self.0.extend(vms);
        self
    }

    /// Each file with the place of its first byte.
    pub(super) fn placed(&self) -> impl Iterator<Item = (usize, &Source)> {
        self.0.iter().scan(0, |next, source| {
            let start = *next;
            *next += source.text.len() + 1;
            Some((start, source))
        })
    }

    /// The file of a place, by its number, and the line, counted from 1.
    pub(super) fn line(&self, place: usize) -> Option<(usize, usize)> {
        let (number, (start, source)) =
            self.placed().enumerate().take_while(|(_, (start, _))| *start <= place).last()?;
        Some((number, line_of(&source.text, place - start)))
    }

    /// The same, as an operator reads it; `near` is the place of what it is said about: a line of the same file needs no name.
    pub(super) fn shown(&self, place: usize, near: usize) -> String {
        match (self.line(place), self.line(near)) {
            (Some((file, line)), Some((same, _))) if file == same => format!("line {line}"),
            (Some((file, line)), _) => format!("{}:{line}", self.0[file].path.display()),
            (None, _) => "another one".into(),
        }
    }

    /// The text of the line of a place, without spaces around it.
    pub(super) fn text_of(&self, place: usize) -> &str {
        let Some((file, line)) = self.line(place) else { return "" };
        self.0[file].text.lines().nth(line - 1).unwrap_or_default().trim()
    }

    /// All of it.
    pub(super) fn span(&self) -> Range<usize> {
        0..self.placed().last().map_or(0, |(start, source)| start + source.text.len())
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}
