//! A session that outlives its daemon: what is held for the next one, and how that one continues.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use vmlane_mem::{MapRequest, MemoryMap};
use vmlane_state::{Found, Journal, Reader, Records, Scope, Unusable, Writer};

use super::held::MemoryName;
use super::mail::{Letter, Mail};
use crate::irq::{IrqKind, IrqSet};
use crate::stats::SessionStats;

/// Kind of the journal of a session, and bytes of one of its halves.
const KIND: u32 = 1;
const HALF: usize = 4 << 20;

/// Kinds of records that are the session's own.
mod record {
    /// The last request that was carried out.
    pub const DONE: u32 = 1;
    /// Which interrupts are switched on.
    pub const SWITCHES: u32 = 2;
}

/// The last request that was carried out, and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub number: u64,
    /// Bytes of the request.
    pub size: usize,
    /// Nothing is to be sent if it is empty.
    pub letter: Letter,
}

/// A session's state in shared files.
pub struct Keep {
    pub scope: Scope,
    pub log: Journal,
    switches: u8,
}

impl Keep {
    /// A new session's: everything is held from now on.
    pub fn begin(
        scope: &Scope,
        stream: &UnixStream,
        mail: &Mail,
        files: Vec<(&'static str, OwnedFd)>,
    ) -> io::Result<Keep> {
        let log = Journal::create("vmlane-session", KIND, HALF)?;
        let keep = Keep { scope: scope.clone(), log, switches: 0 };
        keep.hold(mail, files)?;
        // The socket last: without it there is no session to continue.
        keep.scope.put("s/sock", stream.as_fd())?;
        Ok(keep)
    }

    fn hold(&self, mail: &Mail, files: Vec<(&'static str, OwnedFd)>) -> io::Result<()> {
        self.scope.put("s/mail", mail.file().as_fd())?;
        self.scope.put("s/log", self.log.file().as_fd())?;
        for (name, file) in files {
            self.scope.put(&format!("s/file.{name}"), file.as_fd())?;
        }
        Ok(())
    }

    /// Stages that a request was carried out; what its device has to say follows, then the commit.
    pub fn done(&mut self, done: Done, irqs: &IrqSet) {
        let mut record = Writer::new();
        record.u64(done.number).u64(done.size as u64).u64(done.letter.at).u64(done.letter.len);
        self.log.stage((record::DONE, 0, 0), &record.0);
        let switches = irqs.switches();
        if switches != self.switches {
            self.switches = switches;
            self.log.stage((record::SWITCHES, 0, 0), &[switches]);
        }
    }

    /// The session is over: no daemon continues it.
    pub fn end(&self) {
        self.scope.remove_all("s/");
    }
}

/// A previous daemon's session, before its device takes over.
pub struct Prepared {
    pub stream: UnixStream,
    pub mail: Mail,
    pub map: MemoryMap,
    pub keep: Keep,
    pub done: Option<Done>,
    /// What the previous daemon recorded of the device, or why that is of no use.
    pub records: Result<Records, Unusable>,
    pub files: Found,
    /// Descriptors of requests that were not carried out: number of the request, place, descriptor.
    pub inbound: Vec<(u64, u64, OwnedFd)>,
    mail_lost: bool,
}

impl Prepared {
    /// From what was held below a device's scope; `None` if no VMM was connected. Damaged state is
    /// replaced by fresh, and told: the socket lives on in any case.
    pub fn from(mut found: Found, scope: &Scope, irqs: &IrqSet) -> Option<Prepared> {
        let stream = UnixStream::from(found.take("sock")?);
        let told = |what: &str, error: &Unusable| {
            tracing::warn!(what, %error, "state of a previous daemon is not used");
        };
        let missing = |name: &str| Unusable::Missing(name.to_owned());
        let mail = found.take("mail").ok_or_else(|| missing("mail")).and_then(Mail::open);
        let mail_lost = mail.as_ref().inspect_err(|error| told("mail", error)).is_err();
        let mail = mail.or_else(|_| Mail::create()).ok()?;
        let log = found.take("log").ok_or_else(|| missing("log"));
        let (log, records) = match log.and_then(|file| Journal::open(file, KIND, HALF)) {
            Ok((log, records)) => (log, Ok(records)),
            Err(error) => (Journal::create("vmlane-session", KIND, HALF).ok()?, Err(error)),
        };
        let mut keep = Keep { scope: scope.clone(), log, switches: 0 };
        let map = memory(&mut found, irqs.stats());
        lines(&mut found, irqs);
        let known = |kind| {
            let records = records.as_ref().ok()?;
            Some(&records.iter().find(|((found, ..), _)| *found == kind)?.1[..])
        };
        let done = known(record::DONE).and_then(parse_done);
        if let Some([switches]) = known(record::SWITCHES) {
            irqs.set_switches(*switches);
            keep.switches = *switches;
        }
        let mut inbound = Vec::new();
        let mut files = Found::default();
        for (name, fd) in found.0 {
            if let Some(name) = name.strip_prefix("file.") {
                files.0.insert(name.to_owned(), fd);
            } else if let Some((number, place)) =
                name.strip_prefix("in.").and_then(|words| words.split_once('.'))
                && let (Ok(number), Ok(place)) = (number.parse(), place.parse())
            {
                inbound.push((number, place, fd));
            }
        }
        inbound.sort_by_key(|(number, place, _)| (*number, *place));
        Some(Prepared { stream, mail, map, keep, done, records, files, inbound, mail_lost })
    }

    /// Holds anew what had to be replaced, and the device's files.
    pub fn hold(&self, files: Vec<(&'static str, OwnedFd)>) {
        let again = self.mail_lost || self.records.is_err();
        let held = if again { self.keep.hold(&self.mail, files) } else { Ok(()) };
        if let Err(error) = held {
            tracing::warn!(%error, "a session's state cannot be held for the next daemon");
        }
    }
}

fn parse_done(record: &[u8]) -> Option<Done> {
    let mut reader = Reader::new(record);
    let (number, size) = (reader.u64()?, usize::try_from(reader.u64()?).ok()?);
    let letter = Letter { at: reader.u64()?, len: reader.u64()? };
    reader.end()?;
    Some(Done { number, size, letter })
}

/// The memory map, from the names of its files.
fn memory(found: &mut Found, stats: &SessionStats) -> MemoryMap {
    let mut map = MemoryMap::default();
    let names: Vec<String> = found.0.keys().filter(|name| name.starts_with("mem.")).cloned().collect();
    for name in names {
        let (Some(fd), Some(place)) = (found.take(&name), MemoryName::parse(&name)) else { continue };
        let MemoryName { guest, len, offset, writable } = place;
        match stats.memory.map(&map, MapRequest { guest, len, offset, fd, writable }) {
            Ok(more) => map = more,
            Err(error) => tracing::warn!(name, %error, "a memory file of a previous daemon is not used"),
        }
    }
    map
}

/// The interrupts, from the names of their descriptors.
fn lines(found: &mut Found, irqs: &IrqSet) {
    for kind in [IrqKind::Intx, IrqKind::Msi, IrqKind::Msix] {
        let prefix = format!("irq.{}.", kind.name());
        let names: Vec<String> = found.0.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        for name in names {
            let vector = name[prefix.len()..].parse::<usize>().ok().filter(|vector| *vector < 2048);
            if let (Some(fd), Some(vector)) = (found.take(&name), vector)
                && let Err(error) = irqs.connect(kind, vector, vec![fd])
            {
                tracing::warn!(name, %error, "an interrupt of a previous daemon is not used");
            }
        }
    }
}
