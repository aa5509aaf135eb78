//! How clients on several machines start at one moment although their clocks disagree: words on a client's
//! standard input and output.
//!
//! | line | the client |
//! |---|---|
//! | (nothing yet) | prints `ready` once both of its ends are |
//! | `clock` | prints `clock N`: its clock, in nanoseconds since 1970 |
//! | `go N` | starts when its clock shows N |
//! | any other line, such as `go` | starts at once |
//!
//! A client that asks for the clock a few times and keeps the quickest answer knows the clocks' difference to
//! half of that answer's time, and can then name the same moment to every client.

use std::io::{BufRead, Write};
use std::time::{Duration, SystemTime};

use crate::error::Error;

/// More than any word that makes sense.
const LINE: u64 = 64;

/// Prints `ready`, answers, and returns when the test shall start.
///
/// # Errors
/// The input ended, or named no moment after `go`; the output cannot be written.
pub fn wait(input: &mut impl BufRead, output: &mut impl Write) -> Result<(), Error> {
    print(output, "ready")?;
    loop {
        let mut line = String::new();
        let read = std::io::Read::take(&mut *input, LINE).read_line(&mut line);
        read.map_err(Error::io("reading standard input (--barrier)"))?;
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] if line.is_empty() => {
                return Err(Error::Usage("--barrier: standard input ended before a line to start".into()));
            }
            ["clock"] => print(output, &format!("clock {}", clock().as_nanos()))?,
            ["go", at] => {
                let Ok(at) = at.parse() else {
                    return Err(Error::Usage(format!("--barrier: go {at}: use nanoseconds since 1970")));
                };
                until(at);
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}

/// Sleeps until this machine's clock shows `at`, in nanoseconds since 1970.
fn until(at: u64) {
    std::thread::sleep(Duration::from_nanos(at).saturating_sub(clock()));
}

fn clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn print(output: &mut impl Write, word: &str) -> Result<(), Error> {
    let done = writeln!(output, "{word}").and_then(|()| output.flush());
    done.map_err(Error::io("writing to standard output"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(words: &str) -> (Result<(), Error>, String) {
        let mut output = Vec::new();
        let result = wait(&mut words.as_bytes(), &mut output);
        (result, String::from_utf8(output).unwrap())
    }

    #[test]
    fn the_clock_is_answered_until_go() {
        let before = clock().as_nanos();
        let (result, printed) = run_with("clock\nclock\ngo\nclock\n");
        result.unwrap();
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "ready"));
        let clocks: Vec<u128> = lines[1..].iter().map(|line| line[6..].parse().unwrap()).collect();
        assert!(before <= clocks[0] && clocks[0] <= clocks[1] && clocks[1] <= clock().as_nanos());
    }

    #[test]
    fn a_moment_is_waited_for() {
        let at = clock() + Duration::from_millis(30);
        run_with(&format!("go {}\n", at.as_nanos())).0.unwrap();
        assert!(clock() >= at);
        run_with("go 5").0.unwrap(); // long past
    }

    #[test]
    fn an_end_or_no_moment_is_an_error_and_any_line_is_a_start() {
        for (words, part) in [("", "ended before"), ("clock\n", "ended before"), ("go now\n", "go now")] {
            let error = run_with(words).0.unwrap_err().to_string();
            assert!(error.contains(part), "{words:?}: {error}");
        }
        for words in ["\n", "start\n", &"x".repeat(1 << 20)] {
            run_with(words).0.unwrap();
        }
    }
}
