//! The threads of one test: a session each, all let go at the same moment, all gone when it is dropped.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::datagrams::Datagrams;
use crate::error::Error;
use crate::meter::{Live, Meter, Tally};
use crate::spec::Spec;
use crate::transport::Conn;

/// What one session returns.
#[derive(Clone, Debug, Default)]
pub struct Session {
    pub tally: Tally,
    /// What became of its datagrams.
    pub datagrams: Option<Datagrams>,
    /// Round trips in nanoseconds, from the end that asked.
    pub round_trips: Option<Histogram<u64>>,
}

/// What a session knows once it may begin.
pub struct Cue {
    pub start: Instant,
    pub spec: Arc<Spec>,
    live: Arc<Live>,
    stop: Arc<AtomicBool>,
    phase: Arc<AtomicU8>,
}

/// Borders that a test passes: the window opens, it closes, senders stop. From the last on, or without a
/// thread that advances the phase, sessions read the clock themselves.
const LAST_PHASE: u8 = 3;

/// Which border a session saw last; it begins with none.
pub struct Seen(Option<u8>);

/// A session still at work this long after its time is given up: a peer may send a byte now and then
/// for ever.
const GRACE: Duration = Duration::from_secs(60);

impl Cue {
    pub fn opens(&self) -> Instant {
        self.start + self.spec.warmup()
    }

    pub fn ends(&self) -> Instant {
        self.opens() + self.spec.length()
    }

    /// When senders stop.
    pub fn finishes(&self) -> Instant {
        self.ends() + self.spec.cooldown()
    }

    pub fn nothing_seen(&self) -> Seen {
        Seen(None)
    }

    /// Notes the phase in `seen`. True: a border was passed since the last call, so the clock must be read.
    /// Reading it for every message would cost an emulated guest more than to send it.
    #[inline]
    pub fn check_phase(&self, seen: &mut Seen) -> bool {
        let phase = self.phase.load(Ordering::Relaxed);
        if seen.0 == Some(phase) && phase < LAST_PHASE {
            return false;
        }
        seen.0 = Some(phase);
        true
    }

    /// Whether an error on a connection only means that one of the ends gave it up when the time was over:
    /// the other end's clock started at about the same time.
    pub fn was_abandoned(&self) -> bool {
        self.spec.abandon && Instant::now() >= self.opens()
    }

    pub fn is_overdue(&self, now: Instant) -> bool {
        now > self.finishes() + GRACE
    }

    /// A meter for the calling thread. Without a cool-down the window reaches to the session's end, so that
    /// bytes under way when the sender stops are paid for with the time they take.
    pub fn meter(&self) -> Meter {
        let closes = (self.spec.cooldown > 0.0).then(|| self.ends());
        Meter::new(self.opens(), closes, self.live.clone())
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Closed until the start time is known, or until it is certain that there will be none.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Clone, Copy, Default)]
enum GateState {
    #[default]
    Closed,
    Open(Instant),
    Abandoned,
}

impl Gate {
    fn set(&self, state: GateState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.moved.notify_all();
    }

    fn wait(&self) -> Option<Instant> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *state {
                GateState::Open(start) => return Some(start),
                GateState::Abandoned => return None,
                GateState::Closed => state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A session's connection.
pub fn of_session<T>(conns: &[Arc<T>], session: usize) -> Result<&T, Error> {
    let none = || Error::data(session, "finding the connection")(std::io::ErrorKind::NotFound.into());
    conns.get(session).map(|conn| &**conn).ok_or_else(none)
}

pub struct SessionGroup {
    gate: Arc<Gate>,
    stop: Arc<AtomicBool>,
    conns: Vec<Arc<Conn>>,
    live: Vec<Arc<Live>>,
    threads: Vec<JoinHandle<Result<Session, Error>>>,
    spec: Arc<Spec>,
    phase: Arc<AtomicU8>,
    clock: Mutex<Option<JoinHandle<()>>>,
}

impl SessionGroup {
    /// One thread a session; `conns` are theirs (none for crr), kept so that they can be hung up, and so that
    /// no session's thread closes them: it has a table of files of its own.
    pub fn assemble(
        spec: &Arc<Spec>,
        conns: Vec<Arc<Conn>>,
        work: impl Fn(usize, &Cue) -> Result<Session, Error> + Send + Sync + 'static,
    ) -> Result<SessionGroup, Error> {
        let work = Arc::new(work);
        let live: Vec<Arc<Live>> = (0..spec.sessions).map(|_| Arc::default()).collect();
        let mut group = SessionGroup {
            gate: Arc::default(),
            stop: Arc::default(),
            conns,
            live: live.clone(),
            threads: Vec::new(),
            spec: spec.clone(),
            phase: Arc::default(),
            clock: Mutex::default(),
        };
        for (session, live) in live.into_iter().enumerate() {
            let (work, gate, stop, spec) =
                (work.clone(), group.gate.clone(), group.stop.clone(), spec.clone());
            let phase = group.phase.clone();
            let conn = group.conns.get(session).cloned();
            let body = move || {
                if let Some(conn) = conn {
                    conn.is_all_of_this_thread();
                }
                match gate.wait() {
                    Some(start) => work(session, &Cue { start, spec, live, stop, phase }),
                    None => Ok(Session::default()),
                }
            };
            let thread = std::thread::Builder::new()
                .name(format!("session {session}"))
                .spawn(body)
                .map_err(Error::io("starting a session's thread"))?;
            group.threads.push(thread);
        }
        Ok(group)
    }

    /// Lets them go; when that was.
    pub fn go(&self) -> Instant {
        let start = Instant::now();
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = self.advance_phases(start);
        self.gate.set(GateState::Open(start));
        start
    }

    /// A thread that advances the phase at each border and then ends. Without one, every check is of the
    /// clock.
    fn advance_phases(&self, start: Instant) -> Option<JoinHandle<()>> {
        let opens = start + self.spec.warmup();
        let ends = opens + self.spec.length();
        let borders = [opens, ends, ends + self.spec.cooldown()];
        let (phase, stop) = (self.phase.clone(), self.stop.clone());
        let abandoned = if self.spec.abandon { self.conns.clone() } else { Vec::new() };
        let turn = move || {
            for border in borders {
                while !stop.load(Ordering::Relaxed) {
                    let left = border.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    std::thread::park_timeout(left);
                }
                phase.fetch_add(1, Ordering::Relaxed);
            }
            abandoned.iter().for_each(|conn| conn.hang_up());
        };
        let clock = std::thread::Builder::new().name("clock".into()).spawn(turn);
        if clock.is_err() {
            self.phase.store(LAST_PHASE, Ordering::Relaxed);
        }
        clock.ok()
    }

    /// Lets the clock's thread go; not before the sessions are home.
    fn dismiss_clock(&self) {
        self.stop();
        if let Some(clock) = self.clock.lock().unwrap_or_else(PoisonError::into_inner).take() {
            clock.thread().unpark();
            let _ = clock.join(); // it has no result
        }
    }

    /// Bytes and transactions of all sessions so far.
    pub fn progress(&self) -> (u64, u64) {
        let sum = |(bytes, count): (u64, u64), live: &Arc<Live>| {
            let now = live.read();
            (bytes.saturating_add(now.0), count.saturating_add(now.1))
        };
        self.live.iter().fold((0, 0), sum)
    }

    /// Whether all sessions have ended.
    pub fn is_done(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Asks sessions that have no end of their own to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// All sessions, or the first failure in session order.
    pub fn join(mut self) -> Result<Vec<Session>, Error> {
        let results: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        let results = results.into_iter().map(|joined| {
            joined.unwrap_or_else(|_| {
                Err(Error::Io {
                    doing: "running a session",
                    cause: std::io::Error::other("its thread panicked"),
                })
            })
        });
        results.collect()
    }
}

impl Drop for SessionGroup {
    fn drop(&mut self) {
        self.gate.set(GateState::Abandoned);
        self.stop();
        self.conns.iter().for_each(|conn| conn.hang_up());
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its result is no longer needed
        }
        self.dismiss_clock();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::address::Address;
    use crate::spec::Test;
    use crate::transport::{Buffers, Listener};

    fn spec(sessions: u32) -> Arc<Spec> {
        Arc::new(Spec { sessions, ..Spec::new(Test::Rr) })
    }

    #[test]
    fn all_start_at_one_moment() {
        let group = SessionGroup::assemble(&spec(4), Vec::new(), |session, cue| {
            let tally = Tally {
                bytes: session as u64,
                seconds: cue.start.elapsed().as_secs_f64(),
                ..Tally::default()
            };
            Ok(Session { tally, ..Session::default() })
        })
        .unwrap();
        group.go();
        let bytes: Vec<u64> = group.join().unwrap().iter().map(|session| session.tally.bytes).collect();
        assert_eq!(bytes, [0, 1, 2, 3]);
    }

    #[test]
    fn a_session_has_its_connection_alone_and_others_close_what_they_have() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("socket"));
        let listener = Listener::bind(&address, Buffers::default()).unwrap();
        let ours = Arc::new(Conn::connect(&address, Buffers::default()).unwrap());
        let theirs = listener.accept().unwrap();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let (sees, seen) = std::sync::mpsc::channel();
        let (goes_on, go_on) = std::sync::mpsc::channel::<()>();
        let (conn, go_on) = (ours.clone(), Mutex::new(go_on));
        let group = SessionGroup::assemble(&spec(1), vec![ours], move |_, _| {
            // The directory is one more.
            sees.send(std::fs::read_dir("/proc/thread-self/fd").unwrap().count()).unwrap();
            conn.write_all(b"here").unwrap();
            let _ = go_on.lock().unwrap().recv();
            Ok(Session::default())
        })
        .unwrap();
        group.go();
        let files = seen.recv().unwrap();
        assert!(files <= 3 + 1 + 1, "{files}");
        let mut bytes = [0; 4];
        assert!(theirs.read_full(&mut bytes).unwrap() && &bytes == b"here");
        // What is closed while the session is at work is closed.
        drop(near);
        assert_eq!((&far).read(&mut bytes).unwrap(), 0);
        drop(goes_on);
        group.join().unwrap();
        assert!(!theirs.read_full(&mut bytes).unwrap(), "closed once the session is home");
    }

    #[test]
    fn a_team_that_never_started_is_dismissed() {
        let group = SessionGroup::assemble(&spec(3), Vec::new(), |_, _| panic!("it was started")).unwrap();
        drop(group);
    }

    #[test]
    fn a_panic_is_one_sessions_failure() {
        let group = SessionGroup::assemble(&spec(2), Vec::new(), |_, _| panic!("on purpose")).unwrap();
        group.go();
        assert!(group.join().unwrap_err().to_string().contains("panicked"));
    }
}
