//! The guardian: a process of its own that makes a proof's changes and takes them back, whatever becomes of
//! the doctor.
//!
//! The doctor changes nothing itself. It starts the guardian (this program, `vmlane doctor --guard`) and
//! orders it over a pipe what to change and what to take back, a line of JSON each; the guardian answers each
//! with a line. When the pipe ends, because the doctor is done, was interrupted or killed, or has crashed,
//! the guardian takes back what is still changed. So it does if the doctor sends nothing for [`TIMEOUT`], for
//! example because it was stopped, or its terminal hangs in the very connection that a change has cut. It has
//! a session of its own: a Ctrl-C at the terminal does not reach it. Should the guardian be killed, the
//! doctor takes everything back from the record; should both be killed, `vmlane doctor --undo` does.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use super::undo::{Changes, Undone};
use crate::change::Change;

/// How long changes stay without a word from the doctor, which is longer than any of its measurements.
pub const TIMEOUT: Duration = Duration::from_secs(90);
/// How often the guardian checks the time.
const TICK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Bytes of a line between the two.
const LONGEST: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    Apply(Vec<Change>),
    Undo,
}

/// How taking changes back went, or why an order was not carried out.
type Answer = Result<Undone, String>;

/// The guardian's own part: runs until the pipe at standard input ends. Whether everything was put back.
pub fn guard(directory: &Path) -> bool {
    // Its parent's terminal is not its own. Fails only for a leader of processes, which is no child of a
    // doctor.
    let _ = rustix::process::setsid();
    let ended = Arc::new(AtomicBool::new(false));
    // What ends all processes, such as a machine that shuts down, ends the proof.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGTERM, ended.clone());
    let mut changes = match Changes::begin(directory) {
        Ok(changes) => changes,
        Err(error) => {
            send(&Err(error));
            return false;
        }
    };
    send(&Ok(Undone::default()));
    let (mut orders, mut received) = (Vec::new(), Instant::now());
    while let Some(line) = next_line(&mut orders, &ended, received) {
        received = Instant::now();
        let answer = match serde_json::from_str(&line) {
            Ok(Order::Apply(list)) => {
                let applied = list.iter().try_for_each(|change| changes.apply(change));
                applied.map(|()| Undone::default()).inspect_err(|_| drop(changes.undo()))
            }
            Ok(Order::Undo) => Ok(changes.undo()),
            Err(error) => Err(error.to_string()),
        };
        send(&answer);
    }
    let undone = changes.undo();
    // After a proof that came to its end, there is nothing to put back here.
    if undone.restored > 0 {
        eprintln!("vmlane: the proof was cut short; {} settings were put back", undone.restored);
    }
    undone.left.iter().chain(&undone.failed).for_each(|line| eprintln!("vmlane: {line}"));
    undone.failed.is_empty()
}

/// To the doctor. If it is gone, the pipe's other half shows it.
fn send(answer: &Answer) {
    let line = serde_json::to_string(answer).unwrap_or_default() + "\n";
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}

/// The next line; none when the doctor is gone or silent, or the guardian shall end.
fn next_line(read: &mut Vec<u8>, ended: &AtomicBool, received: Instant) -> Option<String> {
    let stdin = std::io::stdin();
    loop {
        if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = read.drain(..=end).collect();
            return Some(String::from_utf8_lossy(&line).into_owned());
        }
        if ended.load(Ordering::Relaxed) || received.elapsed() > TIMEOUT || read.len() as u64 > LONGEST {
            return None;
        }
        let mut waiting = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut waiting, Some(&TICK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return None,
        }
        let mut bytes = [0; 4096];
        match rustix::io::read(&stdin, &mut bytes) {
            Ok(0) => return None,
            Ok(count) => read.extend(bytes.iter().take(count)),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// The doctor's half.
pub struct Guardian {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    is_gone: bool,
}

impl Guardian {
    /// # Errors
    /// Why there can be no proof: another one runs, an earlier one left something, the record cannot be
    /// written.
    pub fn start() -> Result<Guardian, String> {
        let failed = |error: std::io::Error| format!("the guardian process cannot be started: {error}");
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["doctor", "--guard"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.ok_or("the guardian process has no output")?);
        let mut guardian = Guardian { child, orders, answers, is_gone: false };
        guardian.receive()?;
        Ok(guardian)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended, by itself or by somebody's hand.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Makes all of these changes, or none.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), String> {
        self.ask(&Order::Apply(changes.to_vec())).map(drop)
    }

    /// Takes back what was changed.
    pub fn undo(&mut self) -> Result<Undone, String> {
        self.ask(&Order::Undo)
    }

    /// Ends the guardian, which takes back what is left.
    pub fn end(mut self) -> Result<bool, String> {
        drop(self.orders.take());
        self.child.wait().map(|status| status.success()).map_err(|error| error.to_string())
    }

    fn ask(&mut self, order: &Order) -> Answer {
        let line = serde_json::to_string(order).map_err(|error| error.to_string())? + "\n";
        // Should it be gone, there is no answer either.
        let _ = self.orders.as_mut().map(|pipe| pipe.write_all(line.as_bytes()));
        self.receive()
    }

    fn receive(&mut self) -> Answer {
        let mut line = String::new();
        let read = self.answers.by_ref().take(LONGEST).read_line(&mut line);
        if read.is_err() || !line.ends_with('\n') {
            drop(self.orders.take());
            let _ = self.child.wait(); // so that its lock is free
            self.is_gone = true;
            return Err(GONE.to_owned());
        }
        serde_json::from_str::<Answer>(&line).map_err(|error| format!("the guardian process: {error}"))?
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

pub const GONE: &str = "the guardian process is gone";
