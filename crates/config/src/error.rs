//! Mistakes in a configuration, and why there is none.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub path: PathBuf,
    /// Counted from 1; none if the mistake has no place.
    pub line: Option<usize>,
    /// Key, value, what is wrong and the way out.
    pub text: String,
}

impl Problem {
    /// One without a place.
    pub fn about(path: &Path, text: String) -> Problem {
        Problem { path: path.to_owned(), line: None, text }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(out, ":{line}")?;
        }
        write!(out, ": {}", self.text)
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "configuration {path}: {cause}; create it, or name another file with --config \
         (one VM takes three lines: [[vm]], name = \"a\", cid = 3)"
    )]
    Unreadable { path: PathBuf, cause: io::Error },
    #[error("configuration {path}: {cause}; make it readable, or remove it")]
    File { path: PathBuf, cause: io::Error },
    #[error("configuration {path}: there are more than {most} files in it; put several into one")]
    TooManyFiles { path: PathBuf, most: usize },
    #[error("{}", lines(problems))]
    Invalid { problems: Vec<Problem> },
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
