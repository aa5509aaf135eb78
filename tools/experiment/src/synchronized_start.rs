//! Commands in many guests that start at the same moment, and their outputs.
//!
//! `vmlane bench --barrier` connects first, then waits, prints its clock when asked, and starts at the time
//! that it is given: every client gets the same moment, each on its own clock. Its report has the time when
//! it started.
//!
//! Other tools are started by a shell script: it prints that it is ready, waits for a line, prints that it
//! continues, and executes the command. All scripts get that line at once; when each continued is measured by
//! this machine's clock. What the command does between its start and its first byte is not measured.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use vmlane_lab::client::Signaller;
use vmlane_lab::{Guest, Output};

const WAIT_SCRIPT: &str = r#"echo vmlane-ready; read -r word || exit 1; echo vmlane-goes; exec "$@""#;
/// How often a client's clock is asked for: the quickest answer counts.
const SAMPLES: usize = 8;
/// How long a client may take to print it.
const ANSWER: Duration = Duration::from_secs(10);
/// From the command to the moment that it gives; more for every client, because each has to receive it.
const LEAD: Duration = Duration::from_millis(50);
const MORE_LEAD: Duration = Duration::from_millis(5);
const BREATH: Duration = Duration::from_millis(50);
/// How often it is checked that the guests are still there.
const ROUND: Duration = Duration::from_secs(1);

/// How clients wait until all are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMethod {
    /// By the protocol of `vmlane bench --barrier`.
    Barrier,
    /// In a shell script that then executes the tool.
    Script,
}

/// Commands that wait for the start.
pub struct StartGroup {
    method: StartMethod,
    members: Vec<Member>,
    ends: Receiver<(usize, Result<Output>)>,
}

struct Member {
    name: String,
    signaller: Signaller,
    input: Sender<String>,
    words: Words,
}

/// What a group did.
pub struct Ends {
    pub outputs: Vec<Output>,
    pub starts: Starts,
}

/// What is known about when the members started.
pub enum Starts {
    /// Measured here: the time between the first start and the last.
    Measured(Duration),
    /// All were given the same moment: what each one's clock then shows (nanoseconds since 1970), and how far
    /// that may be off.
    Given { moments: Vec<u64>, uncertainty: Duration },
}

impl Starts {
    /// Milliseconds between the first and the last start, and how far that may be off; `started` is when the
    /// members report that they started, in nanoseconds since 1970. None if one did not.
    pub fn skew_ms(&self, started: &[Option<u64>]) -> Option<(f64, f64)> {
        match self {
            Starts::Measured(skew) => Some((skew.as_secs_f64() * 1e3, 0.0)),
            Starts::Given { moments, uncertainty } => {
                let late =
                    moments.iter().zip(started).map(|(given, at)| at.map(|at| at as f64 - *given as f64));
                let late: Vec<f64> = late.collect::<Option<_>>()?;
                let (first, last) =
                    (late.iter().copied().reduce(f64::min)?, late.iter().copied().reduce(f64::max)?);
                Some(((last - first) / 1e6, uncertainty.as_secs_f64() * 1e3))
            }
        }
    }
}

/// A member's clock: what it showed at a moment of ours.
#[derive(Clone, Copy)]
struct ClockSample {
    asked: Instant,
    took: Duration,
    /// Nanoseconds since 1970.
    shown: u64,
}

impl ClockSample {
    /// What the clock shows at `moment`; the answer was given half way, as far as can be known.
    fn at(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.asked + self.took / 2);
        self.shown.saturating_add(since.as_nanos() as u64)
    }
}

impl Member {
    /// The quickest of several samples of its clock.
    fn sample_clock(&self) -> Result<ClockSample> {
        let mut best: Option<ClockSample> = None;
        for number in 0..SAMPLES {
            let asked = Instant::now();
            let _ = self.input.send("clock\n".to_owned()); // a client that is gone does not answer
            let (line, at) = self
                .words
                .line(1 + number, ANSWER)
                .with_context(|| format!("guest {}: the client does not print its clock", self.name))?;
            let shown = line.strip_prefix("clock ").and_then(|text| text.parse().ok());
            let shown = shown.with_context(|| format!("guest {}: the client printed {line:?}", self.name))?;
            let took = at.duration_since(asked);
            if best.is_none_or(|best| took < best.took) {
                best = Some(ClockSample { asked, took, shown });
            }
        }
        best.context("no sample of a clock")
    }
}

impl StartGroup {
    /// Starts every command and waits until all are ready.
    pub fn gather(
        method: StartMethod,
        commands: Vec<(Guest, Vec<String>)>,
        timeout: Duration,
        stop: &AtomicBool,
    ) -> Result<StartGroup> {
        let (sender, ends) = mpsc::channel();
        let mut group = StartGroup { method, members: Vec::new(), ends };
        for (number, (guest, argv)) in commands.into_iter().enumerate() {
            let script = ["bash", "-c", WAIT_SCRIPT, "wait"].map(str::to_owned).into_iter();
            let words: Vec<String> = match method {
                StartMethod::Barrier => argv.into_iter().chain(["--barrier".to_owned()]).collect(),
                StartMethod::Script => script.chain(argv).collect(),
            };
            let session = guest.session(words).with_context(|| format!("guest {}", guest.name()))?;
            let (input, lines) = mpsc::channel();
            session.feed(Input { lines, rest: Vec::new() });
            let words = Words::default();
            let member = Member {
                name: guest.name().to_owned(),
                signaller: session.signaller(),
                input,
                words: words.clone(),
            };
            group.members.push(member);
            let sender = sender.clone();
            std::thread::spawn(move || {
                let (mut output, mut words) = (Output::default(), words);
                let exit = session.finish(&mut words, &mut output.stderr);
                output.stdout = words.output();
                // The result is not used after the deadline.
                let _ = sender.send((number, exit.map(|exit| Output { exit, ..output })));
            });
        }
        group.wait_until_ready(timeout, stop)?;
        Ok(group)
    }

    fn wait_until_ready(&self, timeout: Duration, stop: &AtomicBool) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while let Some(late) = self.members.iter().find(|member| member.words.count() == 0) {
            if let Ok((number, end)) = self.ends.try_recv() {
                let name = &self.members[number].name;
                let cause = end.map(|output| output.stderr()).unwrap_or_else(|error| format!("{error:#}"));
                bail!("guest {name}: the client ended before it started: {}", cause.trim());
            }
            if stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            if Instant::now() > deadline {
                bail!("guest {} did not start its client in {:.0} s", late.name, timeout.as_secs_f64());
            }
            late.words.line(0, Duration::from_millis(5));
        }
        Ok(())
    }

    /// Starts all; for a barrier, returns the moment that was given.
    fn start(&self) -> Result<Option<(Vec<u64>, Duration)>> {
        let samples = match self.method {
            StartMethod::Script => None,
            StartMethod::Barrier => {
                Some(self.members.iter().map(Member::sample_clock).collect::<Result<Vec<ClockSample>>>()?)
            }
        };
        let moment = Instant::now() + LEAD + MORE_LEAD * self.members.len() as u32;
        let moments: Option<Vec<u64>> =
            samples.as_ref().map(|samples| samples.iter().map(|sample| sample.at(moment)).collect());
        for (number, member) in self.members.iter().enumerate() {
            let word = match &moments {
                Some(moments) => {
                    member.words.end();
                    format!("go {}\n", moments[number])
                }
                None => "go\n".to_owned(),
            };
            let _ = member.input.send(word);
        }
        let uncertainty = samples.and_then(|samples| samples.iter().map(|sample| sample.took / 2).max());
        Ok(moments.zip(uncertainty))
    }

    /// Lets all go and waits for every command's end. `alive` is called now and then; its error ends the
    /// wait.
    pub fn go(
        self,
        timeout: Duration,
        stop: &AtomicBool,
        alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Ends> {
        let given = self.start()?;
        let deadline = Instant::now() + timeout;
        let mut outputs: Vec<Option<Output>> = vec![None; self.members.len()];
        let mut checked = Instant::now();
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
            if checked.elapsed() > ROUND {
                checked = Instant::now();
                alive()?;
            }
            if Instant::now() > deadline {
                bail!("no result in {:.0} s", timeout.as_secs_f64());
            }
        }
        let starts = match given {
            Some((moments, uncertainty)) => Starts::Given { moments, uncertainty },
            None => Starts::Measured(self.measured_skew()),
        };
        Ok(Ends { outputs: outputs.into_iter().flatten().collect(), starts })
    }

    /// Between the first script's start of its tool and the last's.
    fn measured_skew(&self) -> Duration {
        let starts = self.members.iter().filter_map(|member| member.words.line(1, Duration::ZERO));
        let starts: Vec<Instant> = starts.map(|(_, at)| at).collect();
        let (first, last) = (starts.iter().min(), starts.iter().max());
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last.duration_since(*first))
    }
}

impl Drop for StartGroup {
    fn drop(&mut self) {
        for member in &self.members {
            member.signaller.hang_up();
        }
    }
}

/// Standard input that is written as the run proceeds, and ends when its writer does.
struct Input {
    lines: Receiver<String>,
    rest: Vec<u8>,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let Ok(word) = self.lines.recv() else { return Ok(0) };
            self.rest = word.into_bytes();
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest[..length]);
        self.rest.drain(..length);
        Ok(length)
    }
}

/// Standard output: lines, and when each came; then, after the last word of a start, the tool's own output.
#[derive(Clone, Default)]
struct Words(Arc<(Mutex<Received>, Condvar)>);

#[derive(Default)]
struct Received {
    lines: Vec<(String, Instant)>,
    started: bool,
    /// A line that has not ended; once started, the tool's output.
    text: Vec<u8>,
}

/// A client that prints without end does not make this process grow.
const MOST: usize = 64 << 20;

impl Words {
    fn received<T>(&self, of: impl FnOnce(&mut Received) -> T) -> T {
        of(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self) -> usize {
        self.received(|received| received.lines.len())
    }

    /// The line of a number, waited for.
    fn line(&self, number: usize, timeout: Duration) -> Option<(String, Instant)> {
        let (received, came) = &*self.0;
        let received = received.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = |received: &mut Received| received.lines.len() <= number;
        let (received, _) =
            came.wait_timeout_while(received, timeout, missing).unwrap_or_else(PoisonError::into_inner);
        received.lines.get(number).cloned()
    }

    /// All that comes from now on is output.
    fn end(&self) {
        self.received(|received| received.started = true);
    }

    fn output(&self) -> Vec<u8> {
        self.received(|received| std::mem::take(&mut received.text))
    }
}

impl Write for Words {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let now = Instant::now();
        self.received(|received| {
            if received.text.len() < MOST {
                received.text.extend(data);
            }
            while !received.started
                && let Some(end) = received.text.iter().position(|byte| *byte == b'\n')
            {
                let line: Vec<u8> = received.text.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                received.started = line == "vmlane-goes";
                received.lines.push((line, now));
            }
        });
        self.0.1.notify_all();
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
    fn words_are_found_in_pieces_and_output_is_what_follows() {
        let mut words = Words::default();
        words.write_all(b"vmlane-re").unwrap();
        assert_eq!(words.count(), 0);
        words.write_all(b"ady\nvmlane-goes\n{\"a\":").unwrap();
        words.write_all(b"1}\n").unwrap();
        assert_eq!(words.line(0, Duration::ZERO).unwrap().0, "vmlane-ready");
        assert_eq!((words.count(), words.output()), (2, b"{\"a\":1}\n".to_vec()));
        let mut words = Words::default();
        words.write_all(b"ready\nclock 5\n").unwrap();
        words.end();
        words.write_all(b"{\n}\n").unwrap();
        assert_eq!((words.count(), words.output()), (2, b"{\n}\n".to_vec()));
        assert!(words.line(2, Duration::ZERO).is_none());
    }

    #[test]
    fn input_is_what_was_sent_and_then_ends() {
        let (input, lines) = mpsc::channel();
        input.send("clock\n".to_owned()).unwrap();
        input.send("go\n".to_owned()).unwrap();
        drop(input);
        let mut text = String::new();
        Input { lines, rest: Vec::new() }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "clock\ngo\n");
    }

    #[test]
    fn skew_is_between_the_first_and_the_last() {
        let given =
            Starts::Given { moments: vec![1_000_000, 9_000_000], uncertainty: Duration::from_micros(300) };
        // One was 2 ms late, the other 5 ms, each by its own clock.
        let (skew, uncertainty) = given.skew_ms(&[Some(3_000_000), Some(14_000_000)]).unwrap();
        assert!((skew - 3.0).abs() < 1e-9 && (uncertainty - 0.3).abs() < 1e-9);
        assert_eq!(given.skew_ms(&[Some(3_000_000), None]), None);
        let asked = Instant::now();
        let sample = ClockSample { asked, took: Duration::from_millis(2), shown: 7_000_000 };
        assert_eq!(sample.at(asked + Duration::from_millis(11)), 17_000_000);
    }
}
