//! The files that a configuration is made of: the main one, then those of `conf.d` beside it in the order of
//! their names, then the VMs that were added at run time.
//!
//! A place in them is one number: an offset in all texts, one after the other, each with a newline behind it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, OFlags};
use vmlane_access::Trust;

use crate::error::{ConfigError, Problem};

/// Bytes that a file may have.
pub const MOST_BYTES: u64 = 4 << 20;
/// Files that `conf.d` may have: one for each host of a large fleet, and one for each VM.
pub const MOST_FILES: usize = 4096;

/// What a file may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
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
    pub kind: SourceKind,
}

/// All files of a configuration, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(pub Vec<Source>);

/// The directory of further files beside the main one.
pub fn directory(main: &Path) -> PathBuf {
    main.parent().unwrap_or(Path::new("")).join("conf.d")
}

/// The main file, and those of `conf.d` that count: `*.toml`, by name. Hidden ones do not, nor what editors
/// and packages leave (`x.toml~`, `#x.toml#`, `x.toml.dpkg-old`). `trust`: whose the directory may be.
pub fn files(main: &Path, trust: &Trust<'_>) -> Result<Vec<PathBuf>, ConfigError> {
    let directory = directory(main);
    let unreadable = |cause: io::Error| ConfigError::File { path: directory.clone(), cause };
    // Who names a file in another user's directory has no conf.d to be judged there.
    if fs::symlink_metadata(&directory).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(vec![main.to_owned()]);
    }
    let opened = trust.open(&directory).map_err(|error| unreadable(error.about(&directory)))?;
    let entries = Dir::new(opened).map_err(|error| unreadable(error.into()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(error.into()))?;
        let bytes = entry.file_name().to_bytes();
        if bytes.ends_with(b".toml") && !bytes.starts_with(b".") && !bytes.starts_with(b"#") {
            names.push(OsString::from_vec(bytes.to_vec()));
        }
        if names.len() > MOST_FILES {
            return Err(ConfigError::TooManyFiles { path: directory, most: MOST_FILES });
        }
    }
    names.sort();
    Ok(std::iter::once(main.to_owned()).chain(names.iter().map(|name| directory.join(name))).collect())
}

/// The main file, and its owner: who names the file trusts its owner. It must be a file (a pipe would be
/// waited for).
fn open_main(path: &Path) -> io::Result<(File, u32)> {
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file, metadata.uid()))
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
        Sources(vec![Source { path: path.to_owned(), text: text.to_owned(), kind: SourceKind::Whole }])
    }

    /// The user that the daemon is to become, if the files name one, whatever else is in them.
    pub fn daemon_user(&self) -> Option<String> {
        let user = |source: &Source| {
            let table: toml::Table = source.text.parse().ok()?;
            Some(table.get("daemon")?.get("user")?.as_str()?.to_owned())
        };
        self.0.iter().filter(|source| source.text.contains("daemon")).find_map(user)
    }

    /// Reads the main file, and those of `conf.d`, which no others than root, this process's user and the
    /// main file's owner can have put there.
    pub fn read(main: &Path) -> Result<Sources, ConfigError> {
        // The main one first: if it is missing, that is what has to be reported.
        let unreadable = |cause| ConfigError::Unreadable { path: main.to_owned(), cause };
        let (file, owner) = open_main(main).map_err(unreadable)?;
        let text = read_from(file, MOST_BYTES).map_err(unreadable)?;
        let mut sources = vec![Source { path: main.to_owned(), text, kind: SourceKind::Whole }];
        let trust = Trust { owners: &[owner], link: true, ..Trust::default() };
        for path in files(main, &trust)?.into_iter().skip(1) {
            let opened = trust.open_file(&path).map_err(|error| error.about(&path));
            match opened.and_then(|file| read_from(file, MOST_BYTES)) {
                Ok(text) => sources.push(Source { path, text, kind: SourceKind::Whole }),
                Err(cause) => return Err(ConfigError::File { path, cause }),
            }
        }
        Ok(Sources(sources))
    }

    /// The same with the VMs that were added at run time.
    pub fn with(mut self, vms: impl IntoIterator<Item = Source>) -> Sources {
        self.0.extend(vms);
        self
    }

    /// Each file with the place of its first byte.
    pub fn placed(&self) -> impl Iterator<Item = (usize, &Source)> {
        self.0.iter().scan(0, |next, source| {
            let start = *next;
            *next += source.text.len() + 1;
            Some((start, source))
        })
    }

    /// The file of a place, and the line, counted from 1.
    pub fn at(&self, place: usize) -> Option<(&Source, usize)> {
        let (start, source) = self.placed().take_while(|(start, _)| *start <= place).last()?;
        Some((source, line_of(&source.text, place - start)))
    }

    /// A mistake at a place.
    pub fn problem(&self, place: usize, text: String) -> Problem {
        let (path, line) = match self.at(place) {
            Some((source, line)) => (source.path.clone(), line),
            None => Default::default(),
        };
        Problem { path, line: Some(line), text }
    }

    /// A place, as an operator reads it; `near` is the place of what the message is about: a line of the same
    /// file needs no name.
    pub fn shown(&self, place: usize, near: usize) -> String {
        match (self.at(place), self.at(near)) {
            (Some((file, line)), Some((same, _))) if std::ptr::eq(file, same) => format!("line {line}"),
            (Some((file, line)), _) => format!("{}:{line}", file.path.display()),
            (None, _) => "another one".into(),
        }
    }

    /// The text of the line of a place, without spaces around it.
    pub fn text_of(&self, place: usize) -> &str {
        let Some((source, line)) = self.at(place) else { return "" };
        source.text.lines().nth(line - 1).unwrap_or_default().trim()
    }

    /// What stands between two places of one file.
    pub fn slice(&self, span: &Range<usize>) -> &str {
        let found = self.placed().take_while(|(start, _)| *start <= span.start).last();
        found
            .and_then(|(start, source)| source.text.get(span.start - start..span.end.checked_sub(start)?))
            .unwrap_or_default()
    }

    /// All of it.
    pub fn span(&self) -> Range<usize> {
        0..self.placed().last().map_or(0, |(start, source)| start + source.text.len())
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}
