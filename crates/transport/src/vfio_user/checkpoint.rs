//! A session that outlives its daemon: what is held for the next one, and how that one continues.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use vmlane_mem::{MapRequest, MemoryMap};
use vmlane_state::{Found, Records, Scope, Unusable};

use crate::irq::{IrqKind, IrqSet};
use crate::kept::{self, Done, Inbound, MemoryName, MessageFile};
use crate::stats::SessionStats;

/// Kind of the journal of a session.
pub const KIND: u32 = 1;
/// Kind of a record of its own: which interrupts are switched on.
const SWITCHES: u32 = 2;

/// A session's state in shared files.
pub struct Keep {
    pub files: kept::Keep,
    switches: u8,
}

impl Keep {
    pub fn new(files: kept::Keep) -> Keep {
        Keep { files, switches: 0 }
    }

    /// Stages that a request was carried out; its device's records follow, then the commit.
    pub fn done(&mut self, done: Done, irqs: &IrqSet) {
        done.stage(&self.files.log);
        let switches = irqs.switches();
        if switches != self.switches {
            self.switches = switches;
            self.files.log.stage((SWITCHES, 0, 0), &[switches]);
        }
    }
}

/// A previous daemon's session, before its device takes over.
pub struct Prepared {
    pub stream: UnixStream,
    pub message_file: MessageFile,
    pub map: MemoryMap,
    pub keep: Keep,
    pub done: Option<Done>,
    /// What the previous daemon recorded of the device, or why that is of no use.
    pub records: Result<Records, Unusable>,
    pub files: Found,
    pub inbound: Vec<Inbound>,
    messages_lost: bool,
}

impl Prepared {
    /// From what was held below a device's scope; `None` if no VMM was connected. Damaged state is
    /// replaced by fresh, and reported: the socket lives on in any case.
    pub fn from(mut found: Found, scope: &Scope, irqs: &IrqSet) -> Option<Prepared> {
        let stream = UnixStream::from(found.take("sock")?);
        let (message_file, messages_lost) = kept::open_message_file(&mut found).ok()?;
        let (files, records) = kept::Keep::open(KIND, scope, &mut found).ok()?;
        let mut keep = Keep::new(files);
        let map = memory(&mut found, irqs.stats());
        lines(&mut found, irqs);
        let done = records.as_ref().ok().and_then(Done::of);
        let switches = |records: &Records| {
            let record = records.iter().find(|((kind, ..), _)| *kind == SWITCHES)?;
            <[u8; 1]>::try_from(&record.1[..]).ok()
        };
        if let Some([switches]) = records.as_ref().ok().and_then(switches) {
            irqs.set_switches(switches);
            keep.switches = switches;
        }
        let (files, inbound) = kept::sort(found);
        Some(Prepared { stream, message_file, map, keep, done, records, files, inbound, messages_lost })
    }

    /// Holds anew what had to be replaced, and the device's files.
    pub fn hold(&self, files: Vec<(&'static str, OwnedFd)>) {
        let again = self.messages_lost || self.records.is_err();
        let held = if again { self.keep.files.hold(&self.message_file, files) } else { Ok(()) };
        if let Err(error) = held {
            tracing::warn!(%error, "a session's state cannot be held for the next daemon");
        }
    }
}

/// The memory map, from the names of its files.
fn memory(found: &mut Found, stats: &SessionStats) -> MemoryMap {
    let mut map = MemoryMap::default();
    for (name, fd) in found.take_all("mem.").0 {
        let name = format!("mem.{name}");
        let Some(MemoryName { guest, len, offset, writable }) = MemoryName::parse(&name) else { continue };
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
        for (name, fd) in found.take_all(&prefix).0 {
            if let Some(vector) = name.parse::<usize>().ok().filter(|vector| *vector < 2048)
                && let Err(error) = irqs.connect(kind, vector, vec![fd])
            {
                tracing::warn!(name = prefix.clone() + &name, %error, "an interrupt of a previous daemon is not used");
            }
        }
    }
}
