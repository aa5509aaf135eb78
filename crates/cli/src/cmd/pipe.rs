//! What `connect` and `listen` share: standard input and output on one end, a stream on the other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often a peer that sends no more is checked, while there is input for it.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Copies to the end. By splice(), as `io::copy` does it, the kernel would hold the lock of a pipe while it
/// waits for the socket, and keep the pipe's reader from what is there (ssh with this as its proxy command).
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => to.write_all(&buffer[..len])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Copies both ways until both have ended, or the peer is gone.
pub fn pipe(stream: &UnixStream) -> io::Result<()> {
    // Not Rust's own: that keeps back what does not end a line.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let up = stream.try_clone()?;
    let feeding = std::thread::spawn(move || {
        let copied = copy(&input, &up);
        let _ = up.shutdown(Shutdown::Write);
        copied
    });
    copy(stream, &output)?;
    while !feeding.is_finished() {
        let interval = Timespec { tv_sec: 0, tv_nsec: CHECK_INTERVAL.subsec_nanos().into() };
        let mut fds = [PollFd::new(stream, PollFlags::empty())];
        // No reader is left for the rest.
        if poll(&mut fds, Some(&interval)).is_ok_and(|count| count > 0) {
            return Ok(());
        }
    }
    match feeding.join() {
        Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
