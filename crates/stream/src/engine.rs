//! A worker's streams: who has a turn, who sleeps, and the safety net.
//!
//! A worker is adaptive: a stream is turned while bytes move and polled for a while after, then it is armed
//! by the rules and left alone. The worker sleeps when no stream is polled. A safety net inspects sleeping
//! streams ten times a second; it counts what it finds and must find nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{debug, error, warn};
use vmlane_port::wrap::StreamTap;
use vmlane_port::{Budget, End, Resumed, Shutdown, Side};
use vmlane_worker::{
    Engine, Event, Heartbeat, Interval, Meter, Polling, Ports, Rounds, WakeFds, Woken, Work,
};

use crate::doorbells::StreamDoorbells;
use crate::joined::{Broken, Inspection, JoinedStream, Turn};
use crate::requests::{Command, Requests, Signals, Slots};
use crate::settings::Settings;
use crate::stats::WorkerStats;

/// How often the safety net inspects.
const INSPECT: Duration = Duration::from_millis(100);
/// How often a reader is reminded of bytes it has not come for, while more arrive.
const RENOTIFY: Duration = Duration::from_millis(1);
/// What it costs to have one more stream, and to end it.
const NEW: Work = Work { bytes: 0, descriptors: 0, turns: 2, polls: 0, rebuilds: 0 };
/// A stream whose ends never announce anything is polled this often when idle.
const SILENT: Duration = Duration::from_millis(1);

/// Who opened a stream, and is charged for it: known by its [`Budget`].
struct Owner(Weak<Budget>);

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

/// The streams of one worker, by slot. Many fields: the worker's clocks and its lists of slots belong to all
/// streams.
pub struct StreamEngine {
    requests: Arc<Requests>,
    settings: Settings,
    stats: Arc<WorkerStats>,
    heartbeat: Arc<Heartbeat>,
    streams: Vec<Option<JoinedStream>>,
    /// Slots of the streams that are polled.
    polled: Vec<usize>,
    /// The same in the order of this round.
    turns: Vec<usize>,
    /// Which of them begins.
    first: usize,
    meter: Meter<Owner>,
    /// Bytes and turns that the counters do not have yet.
    moved: (u64, u64),
    /// All bytes.
    total: u64,
    now: Instant,
    polling: Polling,
    renotify: Interval,
    inspect: Interval,
    silent: Interval,
    /// The first time that a sleeping stream is to be inspected.
    next_inspection: Option<Instant>,
    /// Slots of streams that fell asleep while an end deferred something.
    deferring: Vec<usize>,
    doorbells: StreamDoorbells,
    /// Those that have rung.
    rung: Vec<(usize, Side)>,
    /// What records the bytes of streams: empty while there is no capture. The ends are wrapped for it.
    taps: Vec<Arc<dyn StreamTap>>,
}

impl StreamEngine {
    pub(crate) fn new(
        requests: Arc<Requests>,
        settings: Settings,
        stats: Arc<WorkerStats>,
        heartbeat: Arc<Heartbeat>,
    ) -> StreamEngine {
        let now = Instant::now();
        StreamEngine {
            requests,
            settings,
            stats,
            heartbeat,
            streams: Vec::new(),
            polled: Vec::new(),
            turns: Vec::new(),
            first: 0,
            meter: Meter::default(),
            moved: (0, 0),
            total: 0,
            now,
            polling: Polling::default(),
            renotify: Interval::new(RENOTIFY, now),
            inspect: Interval::new(INSPECT, now),
            silent: Interval::new(SILENT, now),
            next_inspection: None,
            deferring: Vec::new(),
            doorbells: StreamDoorbells::new(now),
            rung: Vec::new(),
            taps: Vec::new(),
        }
    }

    /// Puts a new stream into its slot; `opener` is charged for it.
    fn insert(&mut self, slot: usize, mut stream: JoinedStream, opener: &Arc<Budget>) {
        stream.account = self.meter.open(Owner(Arc::downgrade(opener)));
        self.meter.charge(stream.account, NEW);
        stream.inspections = stream.inspections.max(self.settings.inspections);
        if !self.taps.is_empty() {
            stream.set_taps(&self.taps);
            stream.report_begin(&self.taps);
        }
        self.doorbells.watch(slot, &mut stream);
        if self.streams.len() <= slot {
            self.streams.resize_with(slot + 1, || None);
        }
        if let Some(place) = self.streams.get_mut(slot) {
            *place = Some(stream);
        }
        self.stats.joined.inc();
    }

    fn signalled(&mut self, slot: usize, signals: Signals) {
        for side in Side::BOTH {
            for what in [Shutdown::Send, Shutdown::Receive] {
                if signals.contains(Signals::shutdown(side, what)) {
                    self.guarded(slot, |stream| stream.shutdown(side, what));
                }
            }
        }
        for side in Side::BOTH {
            if signals.contains(Signals::reset(side)) {
                self.guarded(slot, |stream| stream.reset(side));
            }
        }
        if signals != Signals::default() {
            self.activate(slot);
        }
    }

    #[inline]
    fn stream(&mut self, slot: usize) -> Option<&mut JoinedStream> {
        self.streams.get_mut(slot)?.as_mut()
    }

    fn activate(&mut self, slot: usize) {
        let now = self.now;
        let Some(stream) = self.stream(slot) else { return };
        stream.watch.busy = now;
        if !stream.watch.polled {
            stream.watch.polled = true;
            self.polled.push(slot);
        }
    }

    /// The opener of a stream is charged for its turns, and has so much for a round: a guest with a thousand
    /// streams takes no more of the worker than one with one.
    fn shared_round(&mut self) -> bool {
        let mut moved_any = false;
        self.meter.refill(self.settings.quota);
        // The stream that begins changes, so that each of an owner's streams gets its turn.
        let count = self.polled.len();
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        self.turns.clear();
        self.turns.extend_from_slice(&self.polled);
        self.turns.rotate_left(self.first);
        let turns = std::mem::take(&mut self.turns);
        for &slot in &turns {
            // It may have been ended by another one's turn.
            let Some(stream) = self.stream(slot).filter(|stream| stream.watch.polled) else { continue };
            let account = stream.account;
            if self.meter.is_over(account) {
                self.stats.deferred.bump(1);
                moved_any = true;
                continue;
            }
            let (moved, work) = self.turn(slot);
            self.meter.charge(account, work);
            moved_any |= moved;
        }
        self.turns = turns;
        moved_any
    }

    /// A turn of one stream: whether bytes moved, and the work it was.
    #[inline]
    fn turn(&mut self, slot: usize) -> (bool, Work) {
        self.heartbeat.serve(slot as u32);
        let quota = self.settings.quota;
        match self.guarded(slot, |stream| stream.turn(quota)) {
            Some(Turn::Moved(bytes)) => {
                self.moved.0 += bytes as u64;
                self.total += bytes as u64;
                self.moved.1 += 1;
                let now = self.now;
                if let Some(stream) = self.stream(slot) {
                    stream.moves(now);
                }
                (true, Work::turn(bytes))
            }
            Some(Turn::Idle) => {
                self.try_sleep(slot);
                (false, Work::poll())
            }
            None => (false, Work::poll()),
        }
    }

    /// Puts an idle stream to sleep once it has been polled long enough.
    fn try_sleep(&mut self, slot: usize) {
        let (now, polling) = (self.now, self.polling);
        let Settings { quota, poll, .. } = self.settings;
        let Some(stream) = self.stream(slot) else { return };
        if poll || !stream.watch.is_idle(now, polling.window) {
            return;
        }
        if polling.contended && stream.try_nap(now, polling.nap) {
            return;
        }
        if self.guarded(slot, |stream| stream.try_sleep(quota, now)) == Some(true) {
            self.stats.sleeps.inc();
            let inspection = self.stream(slot).and_then(|stream| stream.next_inspection());
            self.next_inspection = self.next_inspection.into_iter().chain(inspection).min();
            self.deactivate(slot);
            self.note_deferred(slot);
        }
    }

    /// What a stream defers when it falls asleep goes out now, or as soon as its time has come.
    fn note_deferred(&mut self, slot: usize) {
        if self.guarded(slot, JoinedStream::flush_deferred) == Some(false)
            && let Some(stream) = self.stream(slot)
            && !std::mem::replace(&mut stream.deferring, true)
        {
            self.deferring.push(slot);
        }
    }

    /// What the rings hold of the streams that are polled, if all of them are left alone for a nap.
    fn filling(&self) -> Option<u64> {
        let mut streams = self.polled.iter().filter_map(|&slot| self.streams.get(slot)?.as_ref());
        streams
            .try_fold(0, |room, stream| stream.is_napping(self.now).then(|| room + stream.ring_size() as u64))
    }

    fn deactivate(&mut self, slot: usize) {
        if let Some(stream) = self.stream(slot) {
            stream.watch.polled = false;
        }
        if let Some(index) = self.polled.iter().position(|&other| other == slot) {
            self.polled.swap_remove(index);
        }
    }

    /// Runs `action` on a stream; a fault of its ends or a panic of ours ends that stream and no other.
    fn guarded<T>(
        &mut self,
        slot: usize,
        action: impl FnOnce(&mut JoinedStream) -> Result<T, Broken>,
    ) -> Option<T> {
        let stream = self.streams.get_mut(slot)?.as_mut()?;
        // A fault is large and rare: it takes a path of its own, so that what a turn returns stays small.
        let mut fault = None;
        let doorbells = &mut self.doorbells;
        let value = catch_unwind(AssertUnwindSafe(|| match action(stream) {
            Ok(value) => Some(value),
            Err(broken) => {
                fault = Some(broken);
                None
            }
        }));
        match value {
            Ok(Some(value)) => return Some(value),
            Ok(None) => {
                self.stats.broken.inc();
                if let Some(broken) = fault {
                    debug!(side = ?broken.side, "stream ended: {}", broken.fault);
                }
            }
            Err(_) => {
                self.stats.panics.inc();
                error!("a stream's turn panicked; the stream is ended");
            }
        }
        let ending = || {
            Side::BOTH.into_iter().for_each(|side| doorbells.forget(stream, side));
            stream.break_up();
        };
        if catch_unwind(AssertUnwindSafe(ending)).is_err() {
            self.stats.panics.inc();
        }
        self.remove(slot);
        None
    }

    /// Polls the doorbells; streams whose doorbells have rung are polled from now on.
    fn answer_doorbells(&mut self) {
        let mut rung = std::mem::take(&mut self.rung);
        self.doorbells.poll(self.now, &mut rung);
        for &(slot, side) in &rung {
            let Some(account) = self.stream(slot).map(|stream| stream.account) else { continue };
            self.meter.charge(account, Work::poll());
            if self.guarded(slot, |stream| Ok(stream.answer_doorbell(side))) == Some(false) {
                self.forget_doorbell(slot, side);
            }
            self.activate(slot);
        }
        self.rung = rung;
    }

    fn forget_doorbell(&mut self, slot: usize, side: Side) {
        if let Some(stream) = self.streams.get_mut(slot).and_then(Option::as_mut) {
            self.doorbells.forget(stream, side);
        }
    }

    fn remove(&mut self, slot: usize) {
        self.deactivate(slot);
        if let Some(stream) = self.streams.get_mut(slot).and_then(Option::take) {
            self.meter.close(stream.account);
            self.requests.with(|slots| slots.free(slot));
        }
    }

    /// What need not be done every round: counters, readers to renotify, streams that never announce
    /// anything, the safety net.
    fn housekeeping(&mut self) {
        let now = self.now;
        if self.doorbells.are_due(now) {
            self.answer_doorbells();
        }
        if !self.deferring.is_empty() {
            self.flush_deferred();
        }
        let (bytes, turns) = std::mem::take(&mut self.moved);
        self.stats.bytes.add(bytes);
        self.stats.turns.add(turns);
        if self.renotify.tick(now) {
            for index in (0..self.polled.len()).rev() {
                let Some(&slot) = self.polled.get(index) else { continue };
                self.guarded(slot, |stream| {
                    stream.renotify_reader()?;
                    stream.flush_deferred()
                });
            }
        }
        if self.silent.tick(now) {
            for slot in 0..self.streams.len() {
                let is_silent = |stream: &mut JoinedStream| !stream.watch.polled && !stream.announces();
                if self.stream(slot).is_some_and(is_silent)
                    && let Some(Turn::Moved(_)) = self.guarded(slot, |stream| stream.turn(usize::MAX))
                {
                    self.activate(slot);
                }
            }
        }
        let everyone = self.inspect.tick(now);
        if everyone || self.next_inspection.is_some_and(|due| due <= now) {
            for slot in 0..self.streams.len() {
                let Some(stream) = self.stream(slot).filter(|stream| !stream.watch.polled) else { continue };
                match stream.next_inspection() {
                    Some(due) if due <= now => self.inspect(slot),
                    None if everyone => self.inspect(slot),
                    _ => {}
                }
            }
            let asleep = self.streams.iter().flatten().filter(|stream| !stream.watch.polled);
            self.next_inspection = asleep.filter_map(|stream| stream.next_inspection()).min();
        }
    }

    fn inspect(&mut self, slot: usize) {
        match self.guarded(slot, JoinedStream::inspect) {
            Some(found @ (Inspection::LostNotice | Inspection::Still)) => {
                if found == Inspection::LostNotice {
                    self.stats.lost_notices.inc();
                    warn!("a stream slept with work to do: a notice got lost; repaired");
                } else {
                    self.stats.still_senders.inc();
                    debug!("a stream slept with work to do: its sender stands still");
                }
                self.guarded(slot, |stream| {
                    stream.notify_both();
                    Ok(())
                });
                self.activate(slot);
            }
            Some(Inspection::Refill) => {
                self.stats.refills.inc();
                self.activate(slot);
            }
            Some(Inspection::Quiet) => {
                let now = self.now;
                if let Some(stream) = self.stream(slot).filter(|stream| stream.next_inspection().is_some()) {
                    stream.back_off(now);
                }
            }
            None => {}
        }
    }
}

impl Engine for StreamEngine {
    type Command = Command;
    type Shared = Slots;

    const CLOCK_EVERY: u32 = 64;

    fn announces(command: &Command) -> bool {
        matches!(command, Command::Signal { .. })
    }

    fn run_command(&mut self, command: Command, now: Instant) {
        self.now = now;
        match command {
            Command::Join { slot, ends } => {
                let opener = ends[0].budget.clone();
                self.insert(slot, JoinedStream::new(ends, now), &opener);
                self.activate(slot);
            }
            Command::Resume { slot, stream } => {
                let Resumed { ends, left, marks } = *stream;
                let opener = ends.iter().flatten().next().map(|end| end.budget.clone());
                let opener = opener.unwrap_or_else(|| Arc::new(Budget::new(0)));
                self.insert(slot, JoinedStream::resumed(ends, left, now), &opener);
                self.guarded(slot, |stream| stream.restore_marks(marks));
                self.activate(slot);
            }
            Command::Tap { taps, answer } => {
                self.streams.iter_mut().flatten().for_each(|stream| stream.set_taps(&taps));
                self.taps = taps;
                drop(answer);
            }
            Command::Signal { slot, signals, .. } => self.signalled(slot, signals),
            Command::Leave { slot, side, answer } => {
                self.forget_doorbell(slot, side);
                if let Some(left) = self.guarded(slot, |stream| stream.leave(side)) {
                    self.stats.overflow_bytes.add(left.kept as u64);
                    self.stats.lost_bytes.add(left.lost as u64);
                }
                if self.stream(slot).is_some_and(|stream| stream.is_over()) {
                    self.remove(slot);
                } else {
                    self.activate(slot);
                }
                drop(answer);
            }
            Command::TurnAway { mut end } => end.port.end(End::Reset),
        }
    }
}

impl Rounds for StreamEngine {
    #[inline]
    fn clock(&mut self, now: Instant, polling: Polling) {
        self.now = now;
        self.polling = polling;
        self.housekeeping();
    }

    /// Turns every stream that is polled. True if bytes moved, or would have.
    #[inline]
    fn round(&mut self, _: Instant) -> bool {
        match self.polled[..] {
            [] => false,
            // Alone, it keeps no other one waiting.
            [slot] => self.turn(slot).0,
            _ => self.shared_round(),
        }
    }

    /// Unless who opened it has had their share of the round.
    #[inline]
    fn turn_now(&mut self, number: u64, now: Instant) -> bool {
        self.now = now;
        let Some(slot) = self.requests.with(|slots| slots.of(number)) else { return false };
        let Some(account) = self.stream(slot).map(|stream| stream.account) else { return false };
        self.activate(slot);
        if self.polled.len() == 1 {
            return self.turn(slot).0;
        }
        if self.meter.is_over(account) {
            self.stats.deferred.bump(1);
            return false;
        }
        let (moved, work) = self.turn(slot);
        self.meter.charge(account, work);
        moved
    }

    fn moved_bytes(&self) -> u64 {
        self.total
    }

    /// A notice of VMCI is four accesses over vfio-user, each of which wakes a thread of the VMM and one of
    /// ours.
    fn sleep_costs(&self) -> Duration {
        Duration::from_micros(300)
    }

    fn ports(&mut self) -> Ports {
        if !self.polled.is_empty() {
            let filling = if self.polling.contended { self.filling() } else { None };
            return filling.map_or(Ports::Polled, Ports::Filling);
        }
        let now = self.now;
        let limit = |stream: &JoinedStream| match stream.next_inspection() {
            _ if !stream.announces() => SILENT,
            Some(due) => due.saturating_duration_since(now),
            None => INSPECT,
        };
        Ports::Armed(self.streams.iter().flatten().map(limit).min())
    }

    /// Ends of streams that sleep. What others defer keeps no worker awake that is awake for them.
    fn undelivered(&self) -> bool {
        !self.deferring.is_empty()
    }

    fn flush_deferred(&mut self) {
        let mut deferring = std::mem::take(&mut self.deferring);
        deferring.retain(|&slot| {
            let defers = self.guarded(slot, JoinedStream::flush_deferred) == Some(false);
            if let Some(stream) = self.stream(slot) {
                stream.deferring = defers;
            }
            defers
        });
        self.deferring = deferring;
    }

    /// Streams are armed one by one, when they fall asleep.
    fn arm(&mut self) -> bool {
        !self.polled.is_empty()
    }

    fn wake_fds<'a>(&'a self, fds: &mut WakeFds<'a>) {
        self.doorbells.wake_fds(fds);
    }

    fn woken(&mut self, by: Woken) {
        if by.doorbell {
            self.now = Instant::now();
            self.answer_doorbells();
        }
    }

    fn count(&mut self, event: Event) {
        match event {
            Event::Sleep => self.stats.parks.inc(),
            Event::Panic => self.stats.panics.inc(),
            Event::Nap => {}
        }
    }
}
