//! Turning a VMM away in words it understands.
//!
//! QEMU 11.1 aborts when its first message finds the socket closed; an error answer makes it report
//! "device busy" and exit cleanly.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;

use super::inbox::Inbox;
use super::reply::Reply;
use crate::kept::MessageFile;

/// How long a VMM may take to send something after connecting.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Answers the first message with "busy", if one comes soon, and closes the connection.
pub(crate) fn refuse(stream: UnixStream) {
    // Failing is fine at every step: the connection is closed in any case.
    if stream.set_nonblocking(false).is_err() || stream.set_read_timeout(Some(TIMEOUT)).is_err() {
        return;
    }
    let (mut inbox, Ok(mut message_file)) = (Inbox::new(), MessageFile::create()) else { return };
    if inbox.receive(&mut message_file, &stream, true, usize::MAX).is_err() {
        return;
    }
    if let Ok(Some(message)) = inbox.next(&message_file)
        && !message.header.no_reply()
    {
        let mut reply = Reply::new();
        reply.finish_error(&message.header, Errno::BUSY);
        let _ = reply.send_plain(&stream);
    }
}
