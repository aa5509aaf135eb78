//! Whole messages off a stream socket, with their descriptors.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use vmlane_wire::vhost_user::{HEADER, Header, MAX_FDS, MAX_PAYLOAD};
use zerocopy::FromBytes;

/// A stream that cannot be followed any further.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("a header that is no request of version 1")]
    Header,
    #[error("a payload of {0} bytes; at most {MAX_PAYLOAD} are accepted")]
    Long(usize),
    #[error("end of stream inside a message")]
    Cut,
    #[error("socket: {0}")]
    Socket(#[from] Errno),
}

/// A complete message.
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// Descriptors closed because there were too many.
    pub surplus: u64,
}

/// Reads the next message; None: the peer closed between two.
pub fn receive(socket: impl AsFd) -> Result<Option<Message>, StreamError> {
    let (mut fds, mut surplus) = (Vec::new(), 0);
    let mut bytes = [0; HEADER];
    match fill(&socket, &mut bytes, &mut fds, &mut surplus)? {
        0 => return Ok(None),
        HEADER => {}
        _ => return Err(StreamError::Cut),
    }
    let header = Header::read_from_bytes(&bytes).map_err(|_| StreamError::Header)?;
    if !header.is_request() {
        return Err(StreamError::Header);
    }
    let size = header.size.get() as usize;
    if size > MAX_PAYLOAD {
        return Err(StreamError::Long(size));
    }
    let mut payload = vec![0; size];
    if fill(&socket, &mut payload, &mut fds, &mut surplus)? != size {
        return Err(StreamError::Cut);
    }
    Ok(Some(Message { header, payload, fds, surplus }))
}

/// Reads until `to` is full or the stream ends. Returns the bytes read.
#[expect(clippy::indexing_slicing, reason = "what is there is less than what is wanted")]
fn fill(
    socket: &impl AsFd,
    to: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    surplus: &mut u64,
) -> Result<usize, StreamError> {
    let mut have = 0;
    while have < to.len() {
        // One byte at a time, each with descriptors, must not pile them up.
        let keep = |fd| if fds.len() < MAX_FDS { fds.push(fd) } else { *surplus += 1 };
        match crate::fds::receive(socket, &mut to[have..], RecvFlags::empty(), keep) {
            Ok(0) | Err(Errno::CONNRESET) => break,
            got => have += got?,
        }
    }
    Ok(have)
}
