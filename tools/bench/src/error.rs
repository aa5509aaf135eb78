//! Everything that can go wrong in a measurement, worded for the person at the terminal.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid; the text names the key, the value and the way out.
    #[error("{0}")]
    Usage(String),
    #[error("cannot connect to {address}: {cause}{hint}")]
    Connect { address: String, cause: io::Error, hint: String },
    #[error("cannot listen on {address}: {cause}{hint}")]
    Listen { address: String, cause: io::Error, hint: &'static str },
    #[error(
        "{peer} does not speak vmlane bench ({why}): check host and port, or start `vmlane bench server` there"
    )]
    WrongPeer { peer: String, why: String },
    #[error(
        "{peer} speaks version {theirs} of the bench protocol, this program version {ours}: use the same vmlane on both ends"
    )]
    Version { peer: String, ours: u32, theirs: u32 },
    #[error("{peer} gave no answer for {} s while {doing}: is it alive, and is the way to it open?", (.waited.as_secs_f64() * 10.0).round() / 10.0)]
    Silent { peer: String, waited: Duration, doing: &'static str },
    #[error("{peer} closed the connection while {doing}")]
    Gone { peer: String, doing: &'static str },
    #[error("{peer} reports: {message}")]
    Refused { peer: String, message: String },
    /// A session of ours failed, and the server knows something about it.
    #[error("{ours}; {theirs}")]
    Both { ours: Box<Error>, theirs: Box<Error> },
    #[error("session {session}: {doing}: {cause}")]
    Data { session: usize, doing: &'static str, cause: io::Error },
    #[error("{doing}: {cause}")]
    Io { doing: &'static str, cause: io::Error },
}

impl Error {
    /// For `map_err`: an I/O error with what was being done.
    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> Error {
        move |cause| Error::Io { doing, cause }
    }

    pub(crate) fn data(session: usize, doing: &'static str) -> impl Fn(io::Error) -> Error {
        move |cause| Error::Data { session, doing, cause }
    }

    /// Whether the command line was wrong (exit code 2) rather than the measurement (1).
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_))
    }
}
