//! The agent's end of one guest: relays frames between its serial port and the sessions.

use std::collections::HashMap;
use std::io::{BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::proto::{self, Credit, Frame, FrameKind, Hello, LINE_WINDOW, Setup, Up};

/// Where a guest is.
#[derive(Clone, Debug)]
pub enum Phase {
    Off { why: String },
    Booting,
    Up(Up),
}

/// Shared by the guest's reader and by every session.
pub struct Link {
    guest: String,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    /// Counts the QEMUs of this guest: a late thread of an old one changes nothing.
    run: u64,
    started: Instant,
    boot_seconds: Option<f64>,
    out: Option<Sender<Vec<u8>>>,
    sessions: HashMap<u32, Sender<Frame>>,
    next: u32,
}

/// One open session: what to send with and what comes back.
pub struct Session {
    pub id: u32,
    pub out: Sender<Vec<u8>>,
    pub frames: Receiver<Frame>,
}

impl Link {
    pub fn new(guest: &str) -> Arc<Self> {
        let state = State {
            phase: Phase::Off { why: "it was not started yet".into() },
            run: 0,
            started: Instant::now(),
            boot_seconds: None,
            out: None,
            sessions: HashMap::new(),
            next: 1,
        };
        Arc::new(Self { guest: guest.to_owned(), state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn phase(&self) -> (Phase, Option<f64>) {
        let state = self.state();
        (state.phase.clone(), state.boot_seconds)
    }

    /// A new QEMU begins: serves its port from threads of its own; `line`: its other end is a serial
    /// line. `on_up` is called whenever the guest has come up.
    pub fn attach(
        self: &Arc<Self>,
        port: UnixStream,
        line: bool,
        setup: Setup,
        on_up: impl Fn() + Send + 'static,
    ) -> Result<()> {
        let (out, bytes) = mpsc::channel();
        let window = line.then(|| Arc::new(Credit::of(LINE_WINDOW)));
        start_writer(port.try_clone()?, bytes, window.clone());
        let run = {
            let mut state = self.state();
            state.run += 1;
            state.started = Instant::now();
            state.boot_seconds = None;
            state.phase = Phase::Booting;
            state.out = Some(out);
            state.run
        };
        let link = self.clone();
        std::thread::spawn(move || {
            link.relay(run, port, window.as_deref(), setup, &on_up);
            window.iter().for_each(|window| window.close());
            link.off(run, "its QEMU ended");
        });
        Ok(())
    }

    /// The guest is no more, unless a newer run of it is.
    fn off(&self, run: u64, why: &str) {
        let mut state = self.state();
        if state.run == run && !matches!(state.phase, Phase::Off { .. }) {
            self.end_sessions(&mut state, why);
            state.out = None;
            state.phase = Phase::Off { why: why.to_owned() };
            self.changed.notify_all();
        }
    }

    /// Records why the guest is off; also right before it is killed, so that no new command starts in it.
    pub fn set_off(&self, why: &str) {
        let mut state = self.state();
        self.end_sessions(&mut state, why);
        state.out = None;
        state.phase = Phase::Off { why: why.to_owned() };
        self.changed.notify_all();
    }

    fn end_sessions(&self, state: &mut State, why: &str) {
        for (id, session) in state.sessions.drain() {
            let text = format!("guest {}: {why}", self.guest);
            let _ = session.send(Frame::new(FrameKind::Failed, id, text.into_bytes()));
        }
    }

    fn relay(&self, run: u64, port: UnixStream, window: Option<&Credit>, mut setup: Setup, on_up: &dyn Fn()) {
        let mut port = BufReader::with_capacity(64 * 1024, port);
        loop {
            match Frame::read(&mut port) {
                Ok(Some(frame)) if frame.kind == FrameKind::Up => {
                    if self.came_up(run, frame.parse().unwrap_or_default()) {
                        on_up();
                    }
                }
                Ok(Some(frame)) if frame.kind == FrameKind::Taken => {
                    window.iter().for_each(|window| window.give(frame.granted()));
                }
                Ok(Some(frame)) => self.deliver(run, frame),
                Err(e) if e.kind() == ErrorKind::InvalidData => {
                    // Not a frame: a guest that starts anew sends an opening.
                    if !matches!(proto::hunt(&mut port), Ok(true)) {
                        return;
                    }
                    if let Ok(Some(frame)) = Frame::read(&mut port)
                        && let Ok(hello) = frame.parse::<Hello>()
                    {
                        // What was in flight when the guest restarted is lost, or the new agent takes it.
                        window.iter().for_each(|window| window.give(LINE_WINDOW));
                        setup.nonce = hello.nonce;
                        self.restarted(run, &setup);
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn came_up(&self, run: u64, up: Up) -> bool {
        let mut state = self.state();
        let current = state.run == run && matches!(state.phase, Phase::Booting);
        if current {
            state.boot_seconds = Some(state.started.elapsed().as_secs_f64());
            state.phase = Phase::Up(up);
            self.changed.notify_all();
        }
        current
    }

    fn restarted(&self, run: u64, setup: &Setup) {
        let mut state = self.state();
        if state.run != run || matches!(state.phase, Phase::Off { .. }) {
            return;
        }
        self.end_sessions(&mut state, "it restarted");
        state.phase = Phase::Booting;
        if let Some(out) = &state.out {
            let _ = out.send(proto::opening(&Frame::json(FrameKind::Setup, 0, setup)));
        }
    }

    fn deliver(&self, run: u64, frame: Frame) {
        let mut state = self.state();
        if state.run != run {
            return;
        }
        let id = frame.session;
        let last = matches!(frame.kind, FrameKind::Exit | FrameKind::Failed);
        if let Some(session) = state.sessions.get(&id) {
            let _ = session.send(frame); // its client may be gone already
        }
        if last {
            state.sessions.remove(&id);
        }
    }

    /// Waits until the guest answers.
    pub fn wait_up(&self, timeout: Duration) -> Result<()> {
        self.when_up(timeout).map(drop)
    }

    fn when_up(&self, timeout: Duration) -> Result<MutexGuard<'_, State>> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        loop {
            match &state.phase {
                Phase::Up(_) => return Ok(state),
                Phase::Off { why } => bail!("guest {} is off: {why}", self.guest),
                Phase::Booting => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "guest {} did not answer in {} s: see its console with vmlane lab logs",
                    self.guest,
                    timeout.as_secs()
                );
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn open(&self, timeout: Duration) -> Result<Session> {
        let mut state = self.when_up(timeout)?;
        let Some(out) = state.out.clone() else { bail!("guest {} is off", self.guest) };
        let id = state.next;
        state.next = state.next.wrapping_add(1).max(1);
        let (sender, frames) = mpsc::channel();
        state.sessions.insert(id, sender);
        Ok(Session { id, out, frames })
    }

    pub fn close(&self, id: u32) {
        self.state().sessions.remove(&id);
    }

    /// From now on the guest counts as booting; `ask` asks its agent for it.
    pub fn reboot(&self, ask: bool) -> Result<()> {
        let mut state = self.state();
        let Some(out) = state.out.clone() else { bail!("guest {} is off", self.guest) };
        if ask && !matches!(state.phase, Phase::Up(_)) {
            bail!("guest {} is still booting; a hard reboot works at any time", self.guest);
        }
        self.end_sessions(&mut state, "it was restarted on request");
        state.started = Instant::now();
        state.phase = Phase::Booting;
        if ask {
            let _ = out.send(Frame::new(FrameKind::Reboot, 0, Vec::new()).encode());
        }
        Ok(())
    }
}

fn start_writer(mut port: UnixStream, bytes: Receiver<Vec<u8>>, window: Option<Arc<Credit>>) {
    std::thread::spawn(move || {
        for frame in bytes {
            if write(&mut port, &frame, window.as_deref()).is_err() {
                return; // the reader sees the same end and reports it
            }
        }
    });
}

fn write(port: &mut UnixStream, mut frame: &[u8], window: Option<&Credit>) -> std::io::Result<()> {
    let Some(window) = window else { return port.write_all(frame) };
    while !frame.is_empty() {
        let part = window.take(frame.len()).ok_or(ErrorKind::BrokenPipe)?;
        port.write_all(&frame[..part])?;
        frame = &frame[part..];
    }
    Ok(())
}
