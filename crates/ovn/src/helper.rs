//! The loop: asks the daemon which ports are to be up, and has the database and the interfaces follow; each
//! of them may go and come back at any time.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmlane_api::{OvnEntry, OvnReport};

use crate::bridge::{Entry, Step, View, Want};
use crate::database::{Database, Received};
use crate::rows::{Interface, Rows, TABLES};

/// Between two questions to the daemon.
const ASK: Duration = Duration::from_millis(500);
/// Between two checks of the configuration and of all interfaces.
const CHECK: Duration = Duration::from_secs(2);
/// How long ports stay bound while the daemon is away, and while its VMMs come back: a restart takes less.
const HOLD: Duration = Duration::from_secs(10);
/// Between attempts to reach the database: it doubles up to the second.
const RETRY: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
/// Transactions without an answer, at most.
const MOST_OPEN: usize = 64;
/// Reports in one request to the daemon, whose length is bounded.
const MOST_REPORTS: usize = 40;

/// The configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The socket of Open vSwitch's database.
    pub database: PathBuf,
    /// The integration bridge.
    pub bridge: String,
    pub entries: Vec<Entry>,
}

/// The daemon, as far as it is asked.
pub trait Daemon {
    /// Tells it what is new, and returns what it has.
    fn ask(&mut self, reports: Vec<OvnReport>) -> Result<Vec<OvnEntry>, String>;
}

/// The host's interfaces.
pub trait Interfaces {
    /// None: there is none of this name.
    fn is_up(&self, name: &str) -> Option<bool>;
    fn set_up(&self, name: &str, up: bool) -> io::Result<()>;
}

/// Requests to the process from outside.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    pub stop: Arc<AtomicBool>,
    pub reload: Arc<AtomicBool>,
}

/// One entry, and how it stands with it.
struct Slot {
    entry: Entry,
    want: Want,
    /// The transaction that is under way.
    open: Option<u64>,
    /// Why the last one failed, and when it is tried again.
    failed: Option<(String, Instant)>,
    /// What is wrong with its interface.
    link: Option<String>,
    /// What was last reported to the daemon.
    reported: Option<OvnReport>,
}

impl Slot {
    fn new(entry: Entry) -> Slot {
        Slot { entry, want: Want::Unknown, open: None, failed: None, link: None, reported: None }
    }
}

/// The connection to the database, or why there is none.
enum Line {
    Down { why: String, retry: Instant, timeout: Duration },
    Up { database: Database, rows: Rows, complete: bool },
}

/// Reads the configuration again if it has changed.
pub type Load = Box<dyn FnMut(bool) -> Result<Option<Settings>, String>>;

/// See the module's text.
pub struct Helper {
    settings: Settings,
    load: Load,
    load_failed: String,
    /// By what its ports are known among those of others.
    owner: String,
    daemon: Box<dyn Daemon>,
    /// Why it did not answer, since when.
    away: Option<(String, Instant)>,
    /// When it came back.
    back: Option<Instant>,
    interfaces: Box<dyn Interfaces>,
    signals: Signals,
    hold: Duration,
    slots: Vec<Slot>,
    line: Line,
    /// Something has happened since the last check of what is to be done.
    dirty: bool,
    ask: Instant,
    check: Instant,
}

impl Helper {
    /// `owner`: what marks the ports of this daemon, and of no other.
    pub fn new(
        settings: Settings,
        load: Load,
        owner: String,
        (daemon, interfaces): (Box<dyn Daemon>, Box<dyn Interfaces>),
        signals: Signals,
    ) -> Helper {
        let now = Instant::now();
        let line = Line::Down { why: String::new(), retry: now, timeout: RETRY[0] };
        let slots = settings.entries.iter().cloned().map(Slot::new).collect();
        Helper {
            settings,
            load,
            load_failed: String::new(),
            owner,
            daemon,
            away: None,
            back: None,
            interfaces,
            signals,
            hold: HOLD,
            slots,
            line,
            dirty: true,
            ask: now,
            check: now,
        }
    }

    /// How long ports stay bound while the daemon is away, and while its VMMs come back.
    pub fn holding(self, hold: Duration) -> Helper {
        Helper { hold, ..self }
    }

    /// Runs until it is asked to stop. Ports stay as they are then: VMs go on.
    pub fn run(mut self) -> io::Result<()> {
        while !self.signals.stop.load(Ordering::Relaxed) {
            self.turn(Instant::now());
            self.wait()?;
        }
        Ok(())
    }

    fn turn(&mut self, now: Instant) {
        let due = now >= self.check;
        if self.signals.reload.swap(false, Ordering::Relaxed) {
            self.reload(true);
        } else if due {
            self.reload(false);
        }
        self.serve_database(now);
        if now >= self.ask {
            self.ask = now + ASK;
            self.ask_daemon(now);
        }
        if due {
            self.check = now + CHECK;
        }
        if due || std::mem::take(&mut self.dirty) {
            self.follow(now);
        }
    }

    fn wait(&self) -> io::Result<()> {
        let until = self.ask.min(self.check).saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: until.min(ASK).as_nanos() as _ };
        let waited = match &self.line {
            Line::Up { database, .. } => {
                let writes = if database.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
                poll(&mut [PollFd::new(database, PollFlags::IN | writes)], Some(&timeout))
            }
            Line::Down { .. } => poll(&mut [], Some(&timeout)),
        };
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn reload(&mut self, asked: bool) {
        match (self.load)(asked) {
            Ok(None) => {}
            Ok(Some(settings)) => {
                self.load_failed.clear();
                self.apply(settings);
            }
            Err(why) => {
                if why != self.load_failed {
                    tracing::error!("{why}; the configuration before stays in force");
                }
                self.load_failed = why;
            }
        }
    }

    fn apply(&mut self, settings: Settings) {
        if settings == self.settings {
            return;
        }
        if (&settings.database, &settings.bridge) != (&self.settings.database, &self.settings.bridge) {
            self.lose("another one is configured".into(), Instant::now(), RETRY[0]);
        }
        let mut before: HashMap<_, _> = self
            .slots
            .drain(..)
            .map(|slot| ((slot.entry.vm.clone(), slot.entry.nic.clone()), slot))
            .collect();
        self.slots = settings
            .entries
            .iter()
            .map(|entry| match before.remove(&(entry.vm.clone(), entry.nic.clone())) {
                Some(slot) => Slot { entry: entry.clone(), failed: None, ..slot },
                None => Slot::new(entry.clone()),
            })
            .collect();
        tracing::info!(ports = self.slots.len(), "configuration read");
        self.settings = settings;
        self.dirty = true;
    }

    fn lose(&mut self, why: String, now: Instant, timeout: Duration) {
        let path = self.settings.database.display();
        let known = match &self.line {
            Line::Down { why: known, .. } => *known == why,
            Line::Up { .. } => false,
        };
        if !known {
            tracing::warn!(database = %path, "the database is not there: {why}; it is tried again");
        }
        self.line = Line::Down { why, retry: now + timeout, timeout: (timeout * 2).min(RETRY[1]) };
        self.slots.iter_mut().for_each(|slot| slot.open = None);
        self.dirty = true;
    }

    fn serve_database(&mut self, now: Instant) {
        if let Line::Down { retry, timeout, .. } = &self.line {
            let timeout = *timeout;
            if now < *retry {
                return;
            }
            match Database::connect(&self.settings.database, &TABLES) {
                Ok(database) => self.line = Line::Up { database, rows: Rows::default(), complete: false },
                Err(error) => return self.lose(error.to_string(), now, timeout),
            }
        }
        let Line::Up { database, rows, complete } = &mut self.line else { return };
        let received = match database.receive(now) {
            Ok(received) => received,
            Err(error) => return self.lose(error.to_string(), now, RETRY[0] * 2),
        };
        for received in received {
            match received {
                Received::Rows(tables) => {
                    if let Err(why) = rows.update(&tables) {
                        return self.lose(why, now, RETRY[1]);
                    }
                    if !std::mem::replace(complete, true) {
                        tracing::info!(database = %self.settings.database.display(), "the database is there");
                    }
                }
                Received::Answer { number, result } => {
                    let Some(slot) = self.slots.iter_mut().find(|slot| slot.open == Some(number)) else {
                        continue;
                    };
                    slot.open = None;
                    let failed =
                        result.err().map(|why| (format!("the database refused it: {why}"), now + CHECK));
                    if let (Some((why, _)), None) = (&failed, &slot.failed) {
                        tracing::error!(vm = slot.entry.vm, nic = slot.entry.nic, "{why}");
                    }
                    slot.failed = failed;
                }
            }
            self.dirty = true;
        }
    }

    fn ask_daemon(&mut self, now: Instant) {
        let fresh: Vec<(usize, OvnReport)> = self.fresh_reports();
        let reports = fresh.iter().map(|(_, report)| report.clone()).collect();
        match self.daemon.ask(reports) {
            Ok(entries) => {
                for (at, report) in fresh {
                    if let Some(slot) = self.slots.get_mut(at) {
                        slot.reported = Some(report);
                    }
                }
                if self.away.take().is_some() {
                    tracing::info!("the daemon is there");
                    self.back = Some(now);
                    // It may be another one, which knows nothing.
                    self.slots.iter_mut().for_each(|slot| slot.reported = None);
                }
                let held = self.back.is_some_and(|back| now.saturating_duration_since(back) < self.hold);
                self.want(
                    |slot, up| match up {
                        Some(true) => Want::Up,
                        Some(false) if held && slot.want != Want::Down => match slot.want {
                            Want::Unknown => Want::Unknown,
                            _ => Want::Held,
                        },
                        Some(false) => Want::Down,
                        // The daemon's configuration is older than this one.
                        None => Want::Down,
                    },
                    &entries,
                );
            }
            Err(why) => {
                let (known, since) = self.away.get_or_insert_with(|| (String::new(), now));
                if *known != why {
                    tracing::warn!("the daemon is not there: {why}");
                    *known = why;
                }
                let lost = now.saturating_duration_since(*since) >= self.hold;
                self.want(
                    |slot, _| match slot.want {
                        Want::Up | Want::Held if !lost => Want::Held,
                        _ if lost => Want::Down,
                        other => other,
                    },
                    &[],
                );
            }
        }
    }

    fn want(&mut self, wanted: impl Fn(&Slot, Option<bool>) -> Want, entries: &[OvnEntry]) {
        let up: HashMap<_, _> = entries.iter().map(|one| ((&*one.vm, &*one.nic), one.up)).collect();
        for slot in &mut self.slots {
            let want = wanted(slot, up.get(&(&*slot.entry.vm, &*slot.entry.nic)).copied());
            if want != slot.want {
                let Entry { vm, nic, port, .. } = &slot.entry;
                tracing::info!(vm, nic, port, before = ?slot.want, now = ?want, "port");
                slot.want = want;
                self.dirty = true;
            }
        }
    }

    /// Does what is to be done now.
    fn follow(&mut self, now: Instant) {
        let Line::Up { database, rows, complete: true } = &mut self.line else { return };
        let view = View::new(rows, &self.settings.bridge);
        let mut open = self.slots.iter().filter(|slot| slot.open.is_some()).count();
        let mut error = None;
        for slot in &mut self.slots {
            let interface = view.interface(&slot.entry, &self.owner).map(|(_, interface)| interface);
            slot.link = follow_link(&*self.interfaces, slot, interface);
            let waits = slot.failed.as_ref().is_some_and(|(_, retry)| now < *retry);
            if slot.open.is_some() || waits || open >= MOST_OPEN {
                continue;
            }
            match view.step(&slot.entry, &self.owner, slot.want) {
                Step::Nothing => slot.failed = None,
                Step::Wrong(why) => slot.failed = Some((why, now)),
                Step::Do(operations) => match database.transact(operations) {
                    Ok(number) => {
                        slot.open = Some(number);
                        open += 1;
                    }
                    Err(broken) => error = Some(broken),
                },
            }
        }
        let is_entry = |name: &str| self.slots.iter().any(|slot| slot.entry.interface == name);
        if let Some(operations) = view.stale(&self.owner, is_entry) {
            tracing::info!("ports that are not in the configuration any more are removed");
            error = error.or(database.transact(operations).err());
        }
        if let Some(error) = error {
            self.lose(error.to_string(), now, RETRY[0]);
        }
    }

    /// What the daemon does not know yet.
    fn fresh_reports(&self) -> Vec<(usize, OvnReport)> {
        let view = match &self.line {
            Line::Up { rows, complete: true, .. } => Ok(View::new(rows, &self.settings.bridge)),
            Line::Up { .. } => Err("it has not shown its rows yet".to_owned()),
            Line::Down { why, .. } => Err(why.clone()),
        };
        let view = view.map_err(|why| format!("database {}: {why}", self.settings.database.display()));
        let fresh = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let report = self.report(slot, &view);
            (slot.reported.as_ref() != Some(&report)).then_some((at, report))
        });
        fresh.take(MOST_REPORTS).collect()
    }

    fn report(&self, slot: &Slot, view: &Result<View<'_>, String>) -> OvnReport {
        let Entry { vm, nic, port, .. } = &slot.entry;
        let (state, problem, whole) = match view {
            Err(why) => ("failed", why.clone(), false),
            Ok(view) => {
                let interface = view.interface(&slot.entry, &self.owner).map(|(_, interface)| interface);
                let (state, problem) = judge(slot, interface, port);
                (state, problem, view.is_whole())
            }
        };
        let problem = problem.chars().take(400).collect();
        OvnReport { vm: vm.clone(), nic: nic.clone(), state: state.into(), problem, whole }
    }
}

/// How it stands with a port.
fn judge(slot: &Slot, interface: Option<&Interface>, port: &str) -> (&'static str, String) {
    if let Some((why, _)) = &slot.failed {
        return ("failed", why.clone());
    }
    if matches!(slot.want, Want::Down | Want::Unknown) {
        return ("down", String::new());
    }
    let Some(interface) = interface else { return ("waiting", "its port is being made".into()) };
    if !interface.error.is_empty() {
        return ("failed", format!("Open vSwitch: {}", interface.error));
    }
    if interface.number.is_none() {
        return ("waiting", "Open vSwitch has not taken the interface yet; does ovs-vswitchd run?".into());
    }
    if let Some(why) = &slot.link {
        return ("failed", why.clone());
    }
    match interface.external_ids.get("ovn-installed").is_some_and(|installed| installed == "true") {
        true => ("bound", String::new()),
        false => (
            "waiting",
            format!(
                "OVN has not bound {port:?} here: is there a logical port of this name, does its requested-chassis, if it has \
                 one, name this host, and does ovn-controller run?"
            ),
        ),
    }
}

/// An interface is up only while it is at the bridge: otherwise what its VM sends would reach the host's own
/// network stack, and no ACL would see it. Returns what is wrong.
fn follow_link(interfaces: &dyn Interfaces, slot: &Slot, interface: Option<&Interface>) -> Option<String> {
    let name = &slot.entry.interface;
    let wanted = interface.is_some_and(|interface| interface.number.is_some());
    let is_up = interfaces.is_up(name)?;
    if is_up == wanted {
        return None;
    }
    let word = if wanted { "up" } else { "down" };
    match interfaces.set_up(name, wanted) {
        Ok(()) => {
            tracing::info!(vm = slot.entry.vm, nic = slot.entry.nic, interface = name, "set {word}");
            None
        }
        Err(error) => Some(format!("interface {name} cannot be set {word}: {error}")),
    }
}
