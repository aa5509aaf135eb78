//! The system's own tools. They decode what each kernel's interfaces hold, for its queueing disciplines,
//! filters, routes and rules; nothing of what they are called with comes from the other end.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// Bytes of output that are read.
const MOST: usize = 1 << 18;
/// For all of a tool's work.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Where tools are that are not in every user's path.
const PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin";

/// What the tool prints, up to [`MOST`] bytes. The error names the tool: it is not there, took too long, or
/// failed and printed nothing.
pub fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let child = Command::new(program)
        .args(args)
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program}: {error}"),
    })?;
    let until = Instant::now() + TIMEOUT;
    let text = read(&mut child, until).map_err(|error| format!("{program}: {error}"));
    let status = end(&mut child, until);
    match text {
        Ok(text) if text.is_empty() && status.is_some_and(|status| !status.success()) => {
            Err(format!("{program} {} failed", args.join(" ")))
        }
        text => text,
    }
}

/// Its status, if it ended by itself.
fn end(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    while Instant::now() < until {
        if let Some(status) = child.try_wait().ok().flatten() {
            return Some(status);
        }
        // It has closed its output, or prints without end.
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill(); // one that has ended cannot be killed, and need not be
    let _ = child.wait();
    None
}

fn read(child: &mut Child, until: Instant) -> std::io::Result<String> {
    let mut stdout = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let mut bytes = Vec::new();
    while bytes.len() < MOST {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        if retry_on_intr(|| poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&left)))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let mut part = [0; 4096];
        let read = stdout.read(&mut part)?;
        if read == 0 {
            break;
        }
        bytes.extend(part.iter().take(read));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_prints_without_end_or_hangs_is_ended() {
        assert_eq!(output("echo", &["one"]).as_deref(), Ok("one\n"));
        assert_eq!(output("false", &["--x"]).unwrap_err(), "false --x failed");
        assert_eq!(output("no-such-tool", &[]).unwrap_err(), "no-such-tool is not installed");
        let endless = output("sh", &["-c", "while :; do echo; done"]).unwrap();
        assert!((MOST..MOST + 4096).contains(&endless.len()), "{}", endless.len());
        assert_eq!(output("sleep", &["60"]).unwrap_err(), "sleep: timed out");
    }
}
