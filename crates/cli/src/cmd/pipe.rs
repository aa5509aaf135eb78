//! What `connect` and `listen` share: standard input and output on one end, a stream on the other.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often a peer that sends no more is looked at, while there is input for it.
const LOOK: Duration = Duration::from_millis(100);

/// Copies both ways until both have ended, or the peer is gone.
pub fn pipe(stream: &UnixStream) -> io::Result<()> {
    let up = stream.try_clone()?;
    let feeding = std::thread::spawn(move || {
        let copied = io::copy(&mut io::stdin().lock(), &mut &up);
        let _ = up.shutdown(Shutdown::Write);
        copied
    });
    io::copy(&mut &*stream, &mut io::stdout().lock())?;
    while !feeding.is_finished() {
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        let mut fds = [PollFd::new(stream, PollFlags::empty())];
        // Nobody is there to take the rest.
        if poll(&mut fds, Some(&look)).is_ok_and(|count| count > 0) {
            return Ok(());
        }
    }
    match feeding.join() {
        Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
