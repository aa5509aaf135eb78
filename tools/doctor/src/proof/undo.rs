//! Makes changes and takes them back, with the record on disk always ahead of the machine.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::{Entry, Record, Store};
use super::setting::{Parts, Setting};
use crate::change::Change;
use crate::sys::Ethtool;

/// A device that is being set by somebody else for a moment.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// The machine's settings under a proof.
pub struct Changes {
    store: Store,
    record: Record,
}

/// How taking everything back went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// Settings that are as before again.
    pub restored: usize,
    /// What was left as it is, because somebody else has changed it meanwhile or it is gone: a sentence each.
    pub left: Vec<String>,
    /// What could not be put back; it stays in the record.
    pub failed: Vec<String>,
}

impl Changes {
    /// For a proof: nothing may be left of one before.
    pub fn begin(directory: &Path) -> Result<Changes, String> {
        let store = Store::open(directory)?;
        match store.read()? {
            None => Ok(Changes { store, record: Record::begin() }),
            Some(_) => Err(format!(
                "{}: an earlier proof was cut short before it had put everything back; run: vmlane doctor --undo",
                store.path().display()
            )),
        }
    }

    /// What an earlier proof has left; none if that is nothing.
    pub fn left_behind(directory: &Path) -> Result<Option<Changes>, String> {
        if !directory.exists() {
            return Ok(None);
        }
        let store = Store::open(directory)?;
        Ok(store.read()?.map(|record| Changes { store, record }))
    }

    /// Whether the machine has been started since, so that its run-time settings are gone.
    pub fn is_of_another_boot(&self) -> bool {
        self.record.boot != Record::begin().boot
    }

    pub fn is_of_another_namespace(&self) -> bool {
        self.record.namespace != Record::begin().namespace
    }

    /// Forgets the record, without touching any setting.
    pub fn forget(&mut self) -> Result<(), String> {
        self.record.entries.clear();
        self.store.write(&self.record)
    }

    /// Makes one change: written down first, then made, then read back.
    pub fn apply(&mut self, change: &Change) -> Result<(), String> {
        let setting = Setting::of(change);
        setting.check()?;
        let name = setting.name();
        let wrong = |what: &str, error: std::io::Error| format!("{name}: {what}: {error}");
        let before = setting.read().map_err(|error| wrong("cannot be read", error))?;
        let wanted = setting.target(change, &before)?;
        if wanted.is_empty() {
            return Err(format!("{name}: cannot be changed here"));
        }
        if !self.record.has_room() {
            return Err("too many changes at once".to_owned());
        }
        let entry = Entry { index: index(&setting), setting, before, wanted, after: None };
        self.record.entries.push(entry.clone());
        self.store.write(&self.record).inspect_err(|_| {
            self.record.entries.pop();
        })?;
        let Entry { setting, before, wanted, .. } = entry;
        let made = setting.write(&wanted).map_err(|error| wrong("cannot be set", error));
        // Even where that failed, a part of it may be made.
        let after = setting.read().map_err(|error| wrong("cannot be read back", error))?;
        let is_made = wanted.iter().any(|(name, value)| after.get(name) == Some(value))
            || before.iter().any(|(name, value)| after.get(name) != Some(value));
        if let Some(entry) = self.record.entries.last_mut() {
            entry.after = Some(after);
        }
        self.store.write(&self.record)?;
        made?;
        if is_made { Ok(()) } else { Err(format!("{name}: the change is without effect")) }
    }

    /// Takes everything back, the last change first.
    pub fn undo(&mut self) -> Undone {
        let mut undone = Undone::default();
        let mut kept = Vec::new();
        for entry in self.record.entries.drain(..).rev() {
            if let Err(why) = restore(&entry, &mut undone) {
                undone.failed.push(why);
                kept.push(entry);
            }
        }
        kept.reverse();
        self.record.entries = kept;
        undone.failed.extend(self.store.write(&self.record).err());
        undone
    }
}

fn index(setting: &Setting) -> Option<u32> {
    Ethtool::open().ok()?.index(setting.interface()?).ok()
}

fn restore(entry: &Entry, undone: &mut Undone) -> Result<(), String> {
    let (setting, name) = (&entry.setting, entry.setting.name());
    if setting.interface().is_some() && index(setting) != entry.index {
        undone.left.push(format!("{name}: the interface is gone or another one: left as it is"));
        return Ok(());
    }
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let now = setting.read().map_err(|error| format!("{name}: cannot be read: {error}"))?;
        let (back, others) = plan(entry, &now);
        if let Err(error) = setting.write(&back) {
            last = error.to_string();
            continue;
        }
        let now = setting.read().map_err(|error| format!("{name}: cannot be read back: {error}"))?;
        if back.iter().all(|(part, value)| now.get(part) == Some(value)) {
            undone.restored += 1;
            undone.left.extend(others.into_iter().map(|part| {
                let (set, now) = (entry.after.as_ref().and_then(|after| after.get(&part)), now.get(&part));
                let shown = |value: Option<&String>| value.map_or("nothing", |value| value).to_owned();
                format!(
                    "{name}: {part} was set to {} by somebody else meanwhile (before the proof {}, by the proof {}): left as it is",
                    shown(now),
                    shown(entry.before.get(&part)),
                    shown(set)
                )
            }));
            return Ok(());
        }
        "it does not keep the value".clone_into(&mut last);
    }
    Err(format!("{name}: cannot be put back: {last}"))
}

/// The parts to put back, and those that are neither as before nor as the proof has left them.
fn plan(entry: &Entry, now: &Parts) -> (Parts, Vec<String>) {
    let (mut back, mut others) = (Parts::new(), Vec::new());
    for (part, before) in &entry.before {
        let Some(value) = now.get(part).filter(|value| *value != before) else { continue };
        match &entry.after {
            Some(after) if after.get(part) == Some(value) => back.insert(part.clone(), before.clone()),
            // It was cut short: what differs is of the change that was under way.
            None => back.insert(part.clone(), before.clone()),
            Some(_) => {
                others.push(part.clone());
                None
            }
        };
    }
    (back, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(list: &[(&str, &str)]) -> Parts {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_what_the_proof_has_changed_is_put_back() {
        let mut entry = Entry {
            setting: Setting::Rings("eth0".to_owned()),
            index: Some(2),
            before: parts(&[("rx", "64"), ("tx", "512"), ("rx-jumbo", "64")]),
            wanted: parts(&[("rx", "1024")]),
            after: Some(parts(&[("rx", "1024"), ("tx", "512"), ("rx-jumbo", "128")])),
        };
        let untouched = parts(&[("rx", "1024"), ("tx", "512"), ("rx-jumbo", "128")]);
        assert_eq!(plan(&entry, &untouched), (parts(&[("rx", "64"), ("rx-jumbo", "64")]), Vec::new()));
        let by_another = parts(&[("rx", "2048"), ("tx", "256"), ("rx-jumbo", "128")]);
        let (back, others) = plan(&entry, &by_another);
        assert_eq!((back, others), (parts(&[("rx-jumbo", "64")]), vec!["rx".to_owned(), "tx".to_owned()]));
        // Put back already.
        assert_eq!(plan(&entry, &entry.before), (Parts::new(), Vec::new()));
        // Cut short between the change and its second note.
        entry.after = None;
        assert_eq!(plan(&entry, &untouched).0, parts(&[("rx", "64"), ("rx-jumbo", "64")]));
    }

    #[test]
    fn what_an_earlier_proof_left_stands_in_the_way_of_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("doctor");
        assert!(Changes::left_behind(&path).unwrap().is_none());
        let mut changes = Changes::begin(&path).unwrap();
        changes.record.entries.push(Entry {
            setting: Setting::Mtu("no-such-if".to_owned()),
            index: Some(7),
            before: parts(&[("mtu", "1500")]),
            wanted: parts(&[("mtu", "9000")]),
            after: None,
        });
        changes.store.write(&changes.record).unwrap();
        drop(changes);
        assert!(Changes::begin(&path).err().unwrap().contains("--undo"));
        let mut left = Changes::left_behind(&path).unwrap().unwrap();
        assert!(!left.is_of_another_boot() && !left.is_of_another_namespace());
        let undone = left.undo();
        assert!(undone.left[0].contains("gone") && undone.failed.is_empty(), "{undone:?}");
        drop(left);
        assert!(Changes::begin(&path).is_ok());
    }
}
