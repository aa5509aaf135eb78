//! The control connection: length-prefixed JSON (u32 little-endian, then that many bytes).
//!
//! ```text
//! client                                server
//! Hello                          -->
//!                                <--    Hello { challenge }
//! Proof                          -->                          only if there was a challenge
//! Test(spec)                     -->
//!                                <--    Ready { port }        a listener for this test only; for datagrams a
//!                                                             port a session, and a token
//! (data connections, or hellos as datagrams until Accepted; none for crr)
//!                                <--    Accepted { buffers }  all of them arrived
//! Start                          -->
//!                                <--    Started               both ends let their sessions go
//! Finish                         -->                          the client's sessions are done
//!                                <--    Result                what the server's sessions saw
//! ```
//! Instead of a test, a client may ask about the server's machine: `Ask`, then `Answer`, as often as it
//! likes. A client that knows no secret sends `Hello` and what follows at once, which saves a round trip. The
//! server may answer anything with `Error` and close. A peer that is silent for longer than the step allows
//! is given up; nothing a peer sends makes the other end allocate more than `MAX_MESSAGE`.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

use crate::auth::Secret;
use crate::error::Error;
use crate::outcome::Outcome;
use crate::spec::{Limits, Spec};
use crate::transport::{Conn, is_timeout};

/// Raised whenever an older peer would misunderstand.
pub const PROTOCOL: u32 = 2;
const MAGIC: &str = "vmlane-bench";
pub const MAX_MESSAGE: usize = 256 << 10;
/// For steps at which the peer has nothing to do but answer.
pub const ANSWER: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    Hello {
        magic: String,
        protocol: u32,
        /// The server wants to see that the client knows the shared secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        challenge: Option<String>,
    },
    /// HMAC-SHA-256 of the challenge under the secret, in hexadecimal digits.
    Proof {
        proof: String,
    },
    Test(Spec),
    /// About the server's machine, as the program that answers there reports it.
    Ask {
        request: serde_json::Value,
    },
    Answer {
        answer: serde_json::Value,
    },
    Ready {
        port: u32,
        #[serde(default)]
        ports: Vec<u32>,
        #[serde(default)]
        token: u32,
    },
    Accepted {
        send_buffer: u64,
        recv_buffer: u64,
    },
    Start,
    Started,
    Finish,
    Result(Outcome),
    Error {
        message: String,
    },
}

impl Message {
    pub fn hello() -> Message {
        Message::challenge(None)
    }

    /// A server's greeting that asks for proof.
    pub fn challenge(challenge: Option<String>) -> Message {
        Message::Hello { magic: MAGIC.to_owned(), protocol: PROTOCOL, challenge }
    }

    /// Its type, as it is sent.
    fn name(&self) -> String {
        let json = serde_json::to_value(self).unwrap_or_default();
        json.get("type").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    }
}

pub struct Channel {
    conn: Conn,
    peer: String,
    /// No step is waited for longer than until then.
    until: Option<Instant>,
}

impl Channel {
    pub fn new(conn: Conn, peer: String) -> Channel {
        // Small messages follow each other. One that waits is late, and no more than that.
        let _ = conn.set_nodelay();
        Channel { conn, peer, until: None }
    }

    pub fn until(self, until: Option<Instant>) -> Channel {
        Channel { until, ..self }
    }

    pub fn conn(&self) -> &Conn {
        &self.conn
    }

    pub fn send(&self, message: &Message) -> Result<(), Error> {
        self.send_all(&[message])
    }

    /// Several at once, for a peer that reads them one after another.
    pub fn send_all(&self, messages: &[&Message]) -> Result<(), Error> {
        let mut frame = Vec::new();
        for message in messages {
            let body = serde_json::to_vec(message)
                .map_err(|error| Error::Io { doing: "writing a control message", cause: error.into() })?;
            if body.len() > MAX_MESSAGE {
                let why = format!("a message of {} bytes; {MAX_MESSAGE} are the most", body.len());
                return Err(Error::Io { doing: "writing a control message", cause: io::Error::other(why) });
            }
            frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
            frame.extend_from_slice(&body);
        }
        let doing = "sending a control message";
        self.conn.set_timeout(ANSWER).map_err(Error::io(doing))?;
        self.conn.write_all(&frame).map_err(|cause| self.failure(cause, ANSWER, doing))
    }

    /// The next message; the peer's `Error` becomes ours. `timeout` covers the message as a whole, so
    /// a peer that sends a byte a second gains nothing.
    pub fn recv(&self, timeout: Duration, doing: &'static str) -> Result<Message, Error> {
        let now = Instant::now();
        let until = self.until.map_or(now + timeout, |until| until.min(now + timeout));
        let timeout = until.saturating_duration_since(now);
        let mut prefix = [0; 4];
        self.fill(&mut prefix, until, timeout, doing)?;
        let length = length(prefix).map_err(|why| self.wrong(why))?;
        let mut body = vec![0; length];
        self.fill(&mut body, until, timeout, doing)?;
        match parse(&body).map_err(|why| self.wrong(why))? {
            Message::Error { message } => {
                Err(Error::Refused { peer: self.peer.clone(), message: printable(&message) })
            }
            message => Ok(message),
        }
    }

    /// Checks the other side's greeting. Returns its challenge, if it has one.
    pub fn recv_hello(&self, doing: &'static str) -> Result<Option<String>, Error> {
        match self.recv(ANSWER, doing)? {
            Message::Hello { magic, protocol: PROTOCOL, challenge } if magic == MAGIC => Ok(challenge),
            Message::Hello { magic, protocol, .. } if magic == MAGIC => {
                Err(Error::Version { peer: self.peer.clone(), ours: PROTOCOL, theirs: protocol })
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Whether the peer sends something, or hangs up, within `timeout`. Nothing is read.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        let until = Instant::now().checked_add(timeout);
        let failed = |cause| Error::Io { doing: "waiting for the peer", cause };
        loop {
            if self.conn.is_readable(false).map_err(failed)? {
                return Ok(true);
            }
            let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            let mut fds = [PollFd::new(&self.conn, PollFlags::IN)];
            let ready = retry_on_intr(|| poll(&mut fds, Some(&timeout)));
            if ready.map_err(|cause| failed(cause.into()))? == 0 {
                return Ok(false);
            }
            if self.conn.is_readable(true).map_err(failed)? {
                return Ok(true);
            }
        }
    }

    /// Closes so that what was sent last still arrives: closing a TCP socket with unread bytes
    /// would reset the connection and take our words with it.
    pub fn close(self) {
        let until = Instant::now() + Duration::from_secs(1);
        let _ = self.conn.finish_sending();
        let mut scrap = [0; 4096];
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(10));
            if self.conn.set_timeout(left).is_err() || !matches!(self.conn.read(&mut scrap), Ok(1..)) {
                break;
            }
        }
    }

    pub fn unexpected(&self, message: &Message) -> Error {
        self.wrong(format!("it sent \"{}\" out of turn", message.name()))
    }

    fn wrong(&self, why: String) -> Error {
        Error::WrongPeer { peer: self.peer.clone(), why }
    }

    fn fill(
        &self,
        mut buffer: &mut [u8],
        until: Instant,
        timeout: Duration,
        doing: &'static str,
    ) -> Result<(), Error> {
        while !buffer.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failure(io::ErrorKind::TimedOut.into(), timeout, doing));
            }
            // A zero time-out would mean "for ever", and the kernel counts in jiffies.
            self.conn.set_timeout(left.max(Duration::from_millis(10))).map_err(Error::io(doing))?;
            match self.conn.read(buffer).map_err(|cause| self.failure(cause, timeout, doing))? {
                0 => return Err(Error::Gone { peer: self.peer.clone(), doing }),
                count => {
                    let rest = std::mem::take(&mut buffer).get_mut(count..);
                    buffer = rest.ok_or_else(|| self.wrong("it sent more than was read".into()))?;
                }
            }
        }
        Ok(())
    }

    fn failure(&self, cause: io::Error, timeout: Duration, doing: &'static str) -> Error {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
        let peer = self.peer.clone();
        match cause.kind() {
            _ if is_timeout(&cause) => Error::Silent { peer, waited: timeout, doing },
            BrokenPipe | ConnectionReset | NotConnected => Error::Gone { peer, doing },
            _ => Error::Io { doing, cause },
        }
    }
}

/// The length of the body that a prefix announces.
fn length(prefix: [u8; 4]) -> Result<usize, String> {
    let length = u32::from_le_bytes(prefix) as usize;
    if length > MAX_MESSAGE { Err("its first bytes are no message length".into()) } else { Ok(length) }
}

fn parse(body: &[u8]) -> Result<Message, String> {
    serde_json::from_slice(body).map_err(|error| format!("unreadable message: {error}"))
}

/// Reads bytes as a peer's message and does with it what the other end would: for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let Some((prefix, rest)) = bytes.split_first_chunk() else { return };
    let Ok(length) = length(*prefix) else { return };
    let Some(Ok(message)) = rest.get(..length).map(parse) else { return };
    match message {
        Message::Test(spec) => {
            let limits = Limits::default();
            if spec.check(&limits, "this server").is_ok() {
                assert!(u64::from(spec.sessions) <= limits.sessions);
                let _ = (spec.memory(), spec.warmup() + spec.length() + spec.cooldown());
            }
        }
        Message::Result(outcome) => crate::report::of_anything(&outcome),
        Message::Error { message } => assert!(printable(&message).chars().count() <= 500),
        Message::Proof { proof } => {
            assert!(!Secret::of(b"the fuzzer's secret").accepts("00", &proof), "a forged proof");
        }
        _ => {}
    }
}

/// A peer's text ends up on a terminal: no control characters, and not too long.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Test;

    #[test]
    fn messages_keep_their_shape_on_the_wire() {
        let json = serde_json::to_string(&Message::hello()).unwrap();
        assert_eq!(json, r#"{"type":"hello","magic":"vmlane-bench","protocol":2}"#);
        let json = serde_json::to_string(&Message::Test(Spec::new(Test::Maerts))).unwrap();
        assert!(json.starts_with(r#"{"type":"test","test":"maerts","#), "{json}");
        assert!(
            matches!(serde_json::from_str(&json).unwrap(), Message::Test(spec) if spec.test == Test::Maerts)
        );
    }

    #[test]
    fn text_of_a_peer_is_made_printable() {
        assert_eq!(printable("a\u{1b}[31mb\nc"), "a[31mbc");
        assert_eq!(printable(&"x".repeat(9999)).len(), 500);
    }
}
