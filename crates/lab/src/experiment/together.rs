//! Commands in many guests that start together, and what becomes of them.
//!
//! Each is started behind a gate: a shell that says that it is ready, waits for a word, says that it goes on,
//! and becomes the command. All gates open at once. The second word's arrival is seen on this machine's clock,
//! so the skew needs no clocks that agree.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::Signaller;
use crate::{Guest, Output};

const GATE: &str = r#"echo vmlane-ready >&2; read -r word || exit 1; echo vmlane-goes >&2; exec "$@""#;
const READY: &str = "vmlane-ready\n";
const GOES: &str = "vmlane-goes\n";
const BREATH: Duration = Duration::from_millis(50);
/// How often somebody looks whether the guests are still there.
const ROUND: Duration = Duration::from_secs(1);

/// Commands that wait behind their gates.
pub struct Team {
    gates: Vec<Sender<()>>,
    members: Vec<Member>,
    ends: Receiver<(usize, Result<Output>)>,
}

struct Member {
    name: String,
    signaller: Signaller,
    marks: Marks,
}

/// What a team did.
pub struct Ends {
    pub outputs: Vec<Output>,
    pub skew: Duration,
}

impl Team {
    /// Starts every command and waits until all are ready.
    pub fn gather(
        commands: Vec<(Guest, Vec<String>)>,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<Team> {
        let (sender, ends) = mpsc::channel();
        let mut team = Team { gates: Vec::new(), members: Vec::new(), ends };
        for (number, (guest, argv)) in commands.into_iter().enumerate() {
            let words = ["bash", "-c", GATE, "gate"].map(str::to_owned).into_iter().chain(argv);
            let session = guest.session(words).with_context(|| format!("guest {}", guest.name()))?;
            let (gate, open) = mpsc::channel();
            session.feed(Gate { open, sent: false });
            let marks = Marks::default();
            let member = Member {
                name: guest.name().to_owned(),
                signaller: session.signaller(),
                marks: marks.clone(),
            };
            team.members.push(member);
            team.gates.push(gate);
            let sender = sender.clone();
            std::thread::spawn(move || {
                let (mut output, mut marks) = (Output::default(), marks);
                let exit = session.finish(&mut output.stdout, &mut marks);
                output.stderr = marks.text().into_bytes();
                // Nobody listens after the deadline.
                let _ = sender.send((number, exit.map(|exit| Output { exit, ..output })));
            });
        }
        let deadline = Instant::now() + patience;
        while let Some(late) = team.members.iter().find(|member| member.marks.ready().is_none()) {
            if let Ok((number, end)) = team.ends.try_recv() {
                let name = &team.members[number].name;
                let said = end.map(|output| output.stderr()).unwrap_or_else(|error| format!("{error:#}"));
                bail!("guest {name}: the client ended before it started: {}", said.trim());
            }
            if stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            if Instant::now() > deadline {
                bail!("guest {} did not start its client in {:.0} s", late.name, patience.as_secs_f64());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(team)
    }

    /// Opens all gates and waits for every command's end. `alive` is asked now and then; what it says ends
    /// the wait.
    pub fn go(
        self,
        patience: Duration,
        stop: &AtomicBool,
        alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Ends> {
        for gate in &self.gates {
            let _ = gate.send(());
        }
        let deadline = Instant::now() + patience;
        let mut outputs: Vec<Option<Output>> = vec![None; self.members.len()];
        let mut looked = Instant::now();
        while outputs.iter().any(Option::is_none) {
            match self.ends.recv_timeout(BREATH) {
                Ok((number, Ok(output))) => outputs[number] = Some(output),
                Ok((number, Err(error))) => {
                    return Err(error.context(format!("guest {}", self.members[number].name)));
                }
                Err(RecvTimeoutError::Disconnected) => bail!("a client's session ended without a word"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            if looked.elapsed() > ROUND {
                looked = Instant::now();
                alive()?;
            }
            if Instant::now() > deadline {
                bail!("no result in {:.0} s", patience.as_secs_f64());
            }
        }
        let starts: Vec<Instant> = self.members.iter().filter_map(|member| member.marks.goes()).collect();
        let (first, last) = (starts.iter().min(), starts.iter().max());
        let skew = first.zip(last).map_or(Duration::ZERO, |(first, last)| last.duration_since(*first));
        Ok(Ends { outputs: outputs.into_iter().flatten().collect(), skew })
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for member in &self.members {
            member.signaller.hang_up();
        }
    }
}

/// Standard input that ends with one word, once somebody gives the sign.
struct Gate {
    open: Receiver<()>,
    sent: bool,
}

impl Read for Gate {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.sent || self.open.recv().is_err() || buffer.len() < 3 {
            return Ok(0);
        }
        self.sent = true;
        buffer[..3].copy_from_slice(b"go\n");
        Ok(3)
    }
}

/// Standard error, and when the gate's two words came.
#[derive(Clone, Default)]
struct Marks(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    text: Vec<u8>,
    ready: Option<Instant>,
    goes: Option<Instant>,
}

impl Marks {
    fn seen<T>(&self, of: impl FnOnce(&mut Seen) -> T) -> T {
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ready(&self) -> Option<Instant> {
        self.seen(|seen| seen.ready)
    }

    fn goes(&self) -> Option<Instant> {
        self.seen(|seen| seen.goes)
    }

    fn text(&self) -> String {
        let text = self.seen(|seen| String::from_utf8_lossy(&seen.text).into_owned());
        text.replace(READY, "").replace(GOES, "")
    }
}

impl Write for Marks {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.seen(|seen| {
            // A client that shouts does not make this process grow.
            if seen.text.len() < 1 << 20 {
                seen.text.extend(data);
            }
            let now = Instant::now();
            for (word, at) in [(READY, &mut seen.ready), (GOES, &mut seen.goes)] {
                if at.is_none() && seen.text.windows(word.len()).any(|part| part == word.as_bytes()) {
                    *at = Some(now);
                }
            }
        });
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_pieces_and_taken_out() {
        let mut marks = Marks::default();
        marks.write_all(b"vmlane-re").unwrap();
        assert!(marks.ready().is_none());
        marks.write_all(b"ady\nvmlane-goes\nno route\n").unwrap();
        assert!(marks.ready().is_some() && marks.goes().is_some());
        assert_eq!(marks.text(), "no route\n");
    }

    #[test]
    fn a_gate_gives_one_word_and_nothing_when_forgotten() {
        let (gate, open) = mpsc::channel();
        gate.send(()).unwrap();
        let mut text = String::new();
        Gate { open, sent: false }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "go\n");
        let (gate, open) = mpsc::channel();
        drop(gate);
        assert_eq!(Gate { open, sent: false }.read(&mut [0; 8]).unwrap(), 0);
    }
}
