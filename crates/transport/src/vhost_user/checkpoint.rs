//! A session that outlives its daemon: what is held for the next one, and how that one continues.
//!
//! What a request changes is valid with the commit that states that it was carried out. Until then all files
//! are held that were in force before it, so that a next daemon carries it out again from where it began;
//! descriptors for events are replaced at once, which that one repeats.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use vmlane_device::virtio::vhost::VhostDevice;
use vmlane_state::{Found, Records, Scope};

use super::agreed::Agreed;
use super::lines::{Line, RingLines};
use super::request::check_offered;
use crate::kept::{self, Done, Inbound, MessageFile};
use crate::stats::{SessionStats, guarded};

/// Kind of the journal of a session.
const KIND: u32 = 3;

/// A session's state in shared files.
pub struct Keep {
    files: kept::Keep,
    /// What is recorded, and the names of the files in force.
    records: Records,
    names: Vec<String>,
}

impl Keep {
    /// A new session's: everything is held from now on, unless its device does not survive.
    pub fn begin(
        scope: &Scope,
        stream: &UnixStream,
        message_file: &MessageFile,
        device: &mut dyn VhostDevice,
    ) -> io::Result<Keep> {
        let scope = if device.survival().is_some() { scope.clone() } else { Scope::none() };
        let files = kept::Keep::begin(KIND, &scope, stream, message_file, files_of(device))?;
        Ok(Keep { files, records: Records::new(), names: Vec::new() })
    }

    pub fn scope(&self) -> &Scope {
        &self.files.scope
    }

    /// Records that a request was carried out, and what has come of it.
    pub fn done(&mut self, done: Done, agreed: &Agreed) {
        done.stage(&self.files.log);
        let records = agreed.records();
        for (key, record) in records.iter().filter(|record| !self.records.contains(record)) {
            self.files.log.stage(*key, record);
        }
        self.files.log.commit();
        self.records = records;
        let names = agreed.names();
        let gone = self.names.iter().filter(|name| !names.contains(name));
        gone.for_each(|name| self.files.scope.remove(name));
        self.names = names;
    }

    /// The session is over: no daemon continues it.
    pub fn end(&self) {
        self.files.end();
    }
}

/// What the next daemon needs of a device.
fn files_of(device: &mut dyn VhostDevice) -> Vec<(&'static str, OwnedFd)> {
    device.survival().map_or(Vec::new(), |survival| survival.files())
}

/// A previous daemon's session, which its device has taken over.
pub struct Prepared {
    pub stream: UnixStream,
    pub message_file: MessageFile,
    pub keep: Keep,
    pub agreed: Agreed,
    /// See SET_BACKEND_REQ_FD.
    pub questions: Option<OwnedFd>,
    /// The device begins anew: nothing shows how far it came in its rings but they themselves.
    pub anew: bool,
    pub done: Option<Done>,
    pub inbound: Vec<Inbound>,
}

impl Prepared {
    /// From what was held below a device's scope, which the device takes over; call it before any thread of
    /// the device's runs. None if no front end was connected, or if its session cannot go on: then it ends,
    /// and the log has why. A device whose own state is of no use begins anew.
    pub fn from(
        mut found: Found,
        scope: &Scope,
        device: &mut dyn VhostDevice,
        lines: &RingLines,
        stats: &SessionStats,
    ) -> Option<Prepared> {
        let stream = UnixStream::from(found.take("sock")?);
        match Prepared::restore(stream, found, scope, device, stats) {
            Ok((mut prepared, found, messages_lost)) => {
                prepared.take_over(found, messages_lost, device, lines, stats);
                Some(prepared)
            }
            Err(error) => {
                tracing::error!(error, "a front end's session cannot go on, and ends");
                scope.remove_all("s/");
                None
            }
        }
    }

    /// Also what else was found, and whether the message file is a fresh one.
    fn restore(
        stream: UnixStream,
        mut found: Found,
        scope: &Scope,
        device: &mut dyn VhostDevice,
        stats: &SessionStats,
    ) -> Result<(Prepared, Found, bool), String> {
        if device.survival().is_none() {
            return Err("its device does not survive".to_owned());
        }
        let fresh = |error: io::Error| error.to_string();
        let (mut message_file, messages_lost) = kept::open_message_file(&mut found).map_err(fresh)?;
        let (files, records) = kept::Keep::open(KIND, scope, &mut found).map_err(fresh)?;
        let records = records.map_err(|error| error.to_string())?;
        let agreed = Agreed::restore(device.queues(), &records, &mut found, &stats.memory);
        let agreed = agreed.ok_or("its records are not valid")?;
        check_offered(&agreed, device).map_err(|error| error.to_string())?;
        let done = Done::of(&records);
        if messages_lost {
            message_file.set_cursor(done.map_or(1, |done| done.number.wrapping_add(1)), 0);
        }
        let keep = Keep { files, records, names: agreed.names() };
        let (questions, anew, inbound) = (None, false, Vec::new());
        let prepared = Prepared { stream, message_file, keep, agreed, questions, anew, done, inbound };
        Ok((prepared, found, messages_lost))
    }

    /// Connects the lines and has the device continue.
    fn take_over(
        &mut self,
        mut found: Found,
        messages_lost: bool,
        device: &mut dyn VhostDevice,
        lines: &RingLines,
        stats: &SessionStats,
    ) {
        let scope = &self.keep.files.scope;
        self.questions = found.take("back");
        restore_lines(&mut found, lines, self.agreed.rings.len());
        // What is left was not in force yet, or no longer. Of a message file that is lost no request is left
        // to need any.
        for name in found.0.keys().filter(|name| !name.starts_with("file.")) {
            if messages_lost || !name.starts_with("in.") {
                scope.remove(&format!("s/{name}"));
            }
        }
        let (mut files, inbound) = kept::sort(found);
        self.inbound = inbound;
        let adopted = adopt(device, &mut files);
        if let Err(error) = &adopted {
            tracing::error!(error, "the state of a previous daemon is of no use; device begins anew");
            guarded(stats, || device.survival().into_iter().for_each(|survival| survival.abandon()));
            scope.remove_all("s/file.");
        }
        self.anew = adopted.is_err();
        let again = messages_lost || self.anew;
        let held = if again { self.keep.files.hold(&self.message_file, files_of(device)) } else { Ok(()) };
        if let Err(error) = held {
            tracing::warn!(%error, "a session's state cannot be held for the next daemon");
        }
    }
}

fn adopt(device: &mut dyn VhostDevice, files: &mut Found) -> Result<(), String> {
    let adopt = || device.survival().map_or(Ok(()), |survival| survival.adopt(files));
    catch_unwind(AssertUnwindSafe(adopt)).unwrap_or_else(|_| Err("fault in device code".to_owned()))
}

/// The descriptors of rings, from their names.
fn restore_lines(found: &mut Found, lines: &RingLines, rings: usize) {
    let each = (0..rings).flat_map(|ring| [Line::Kick, Line::Call, Line::Error].map(|line| (line, ring)));
    for (line, ring) in each {
        let name = line.name(ring);
        if let Some(fd) = found.take(name.trim_start_matches("s/"))
            && let Err(error) = lines.set(line, ring, Some(fd))
        {
            tracing::warn!(name, %error, "a descriptor of a previous daemon is not used");
        }
    }
}
