//! What a session of either protocol holds for the next daemon, and what that one finds of it.

mod done;
mod held;
mod message_file;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use vmlane_state::{Found, Journal, Records, Scope, Unusable};

pub use self::done::Done;
pub use self::held::{Inbound, MemoryName, found_file, hold, hold_inbound, sort};
pub use self::message_file::{MessageFile, StoredAnswer};

/// Bytes of one half of a session's journal.
const HALF: usize = 4 << 20;
const NAME: &str = "vmlane-session";
/// The message file is held by this name: other versions of the daemon find it there.
const MESSAGES: &str = "mail";

/// A session's state in shared files.
pub struct Keep {
    pub scope: Scope,
    pub log: Journal,
}

impl Keep {
    /// A new session's: everything is held from now on. `kind`: of its journal.
    pub fn begin(
        kind: u32,
        scope: &Scope,
        stream: &UnixStream,
        message_file: &MessageFile,
        files: Vec<(&'static str, OwnedFd)>,
    ) -> io::Result<Keep> {
        scope.remove_all("s/");
        let keep = Keep { scope: scope.clone(), log: Journal::create(NAME, kind, HALF)? };
        keep.hold(message_file, files)?;
        // The socket last: without it there is no session to continue.
        keep.scope.put("s/sock", stream.as_fd())?;
        Ok(keep)
    }

    /// A previous daemon's, with its records, or a fresh one, and why those are of no use.
    pub fn open(
        kind: u32,
        scope: &Scope,
        found: &mut Found,
    ) -> io::Result<(Keep, Result<Records, Unusable>)> {
        let file = found.take("log").ok_or_else(|| Unusable::Missing("log".to_owned()));
        let (log, records) = match file.and_then(|file| Journal::open(file, kind, HALF)) {
            Ok((log, records)) => (log, Ok(records)),
            Err(error) => (Journal::create(NAME, kind, HALF)?, Err(error)),
        };
        Ok((Keep { scope: scope.clone(), log }, records))
    }

    /// Holds message file, journal and the device's files.
    pub fn hold(&self, message_file: &MessageFile, files: Vec<(&'static str, OwnedFd)>) -> io::Result<()> {
        self.scope.put(&format!("s/{MESSAGES}"), message_file.file().as_fd())?;
        self.scope.put("s/log", self.log.file().as_fd())?;
        for (name, file) in files {
            self.scope.put(&format!("s/file.{name}"), file.as_fd())?;
        }
        Ok(())
    }

    /// The session is over: no daemon continues it.
    pub fn end(&self) {
        self.scope.remove_all("s/");
    }
}

/// A previous daemon's message file, or a fresh one, and whether it is that.
pub fn open_message_file(found: &mut Found) -> io::Result<(MessageFile, bool)> {
    let file = found.take(MESSAGES).ok_or_else(|| Unusable::Missing(MESSAGES.to_owned()));
    match file.and_then(MessageFile::open) {
        Ok(message_file) => Ok((message_file, false)),
        Err(error) => {
            tracing::warn!(what = MESSAGES, %error, "state of a previous daemon is not used");
            Ok((MessageFile::create()?, true))
        }
    }
}
