//! Lines with a limit: how requests and answers are cut out of a socket.
//!
//! A peer may send slowly, send too much or not send at all; each of these ends in an error after a
//! known time and a known number of bytes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The peer closed its end between two lines.
    #[error("the connection was closed")]
    Closed,
    #[error("the connection was closed in the middle of a line")]
    Cut,
    #[error("a line is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("no complete line arrived within {} s", .after.as_secs_f64())]
    TimedOut { after: Duration },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How messages of a connection end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// With a newline.
    Line,
    /// With a zero byte, as in Varlink.
    Varlink,
}

/// Reads lines from a socket.
#[derive(Debug)]
pub struct LineReader {
    stream: UnixStream,
    limit: usize,
    buffer: Vec<u8>,
    framing: Option<Framing>,
}

impl LineReader {
    /// No line may have more than `limit` bytes.
    pub fn new(stream: UnixStream, limit: usize) -> LineReader {
        LineReader { stream, limit, buffer: Vec::new(), framing: None }
    }

    /// The framing of the connection, once a message has ended: a zero byte before any newline makes it Varlink's.
    pub fn framing(&self) -> Option<Framing> {
        self.framing
    }

    /// The next message without its end, complete within `timeout`. The first one decides how those after it end.
    pub fn next_message(&mut self, timeout: Duration) -> Result<(Vec<u8>, Framing), LineError> {
        let ends: &[u8] = match self.framing {
            None => b"\n\0",
            Some(Framing::Line) => b"\n",
            Some(Framing::Varlink) => b"\0",
        };
        let (message, end) = self.until(ends, timeout)?;
        let framing = if end == 0 { Framing::Varlink } else { Framing::Line };
        self.framing = Some(framing);
        Ok((message, framing))
    }

    /// The next line without its newline, complete within `timeout`, however it trickles in.
    pub fn next(&mut self, timeout: Duration) -> Result<Vec<u8>, LineError> {
        self.until(b"\n", timeout).map(|(line, _)| line)
    }

    /// All up to one of `ends`, and which one it was.
    fn until(&mut self, ends: &[u8], timeout: Duration) -> Result<(Vec<u8>, u8), LineError> {
        let deadline = Instant::now() + timeout;
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer.iter().skip(searched).position(|byte| ends.contains(byte)) {
                let mut line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                let end = line.pop().unwrap_or_default();
                return Ok((line, end));
            }
            searched = self.buffer.len();
            if searched >= self.limit {
                return Err(LineError::TooLong { limit: self.limit });
            }
            self.fill(deadline, timeout)?;
        }
    }

    fn fill(&mut self, deadline: Instant, timeout: Duration) -> Result<(), LineError> {
        let mut chunk = [0; 4096];
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LineError::TimedOut { after: timeout });
        }
        self.stream.set_read_timeout(Some(left))?;
        let room = self.limit - self.buffer.len();
        match (&self.stream).take(room as u64).read(&mut chunk) {
            Ok(0) if self.buffer.is_empty() => Err(LineError::Closed),
            Ok(0) => Err(LineError::Cut),
            Ok(count) => {
                self.buffer.extend(chunk.iter().take(count));
                Ok(())
            }
            Err(error) if is_timeout(&error) => Err(LineError::TimedOut { after: timeout }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes all of `bytes` within `timeout`.
pub fn write(mut stream: &UnixStream, mut bytes: &[u8], timeout: Duration) -> Result<(), LineError> {
    let deadline = Instant::now() + timeout;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LineError::TimedOut { after: timeout });
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(LineError::Closed),
            Ok(count) => bytes = bytes.get(count..).ok_or(LineError::Closed)?,
            Err(error) if is_timeout(&error) => return Err(LineError::TimedOut { after: timeout }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until a time-out that is expected, and one that is not.
    const SOON: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(60);

    fn pair(limit: usize) -> (UnixStream, LineReader) {
        let (near, far) = UnixStream::pair().unwrap();
        (near, LineReader::new(far, limit))
    }

    #[test]
    fn lines_are_cut_at_newlines_wherever_the_reads_end() {
        let (mut near, mut reader) = pair(100);
        near.write_all(b"one\ntwo\nth").unwrap();
        assert_eq!(reader.next(LATE).unwrap(), b"one");
        assert_eq!(reader.next(LATE).unwrap(), b"two");
        near.write_all(b"ree\n").unwrap();
        assert_eq!(reader.next(LATE).unwrap(), b"three");
        near.write_all(b"cut").unwrap();
        drop(near);
        assert!(matches!(reader.next(LATE), Err(LineError::Cut)));
    }

    #[test]
    fn the_first_message_decides_how_the_others_end() {
        let (mut near, mut reader) = pair(100);
        assert_eq!(reader.framing(), None);
        near.write_all(b"{}\0{\n}\0").unwrap();
        assert_eq!(reader.next_message(LATE).unwrap(), (b"{}".to_vec(), Framing::Varlink));
        assert_eq!(reader.next_message(LATE).unwrap(), (b"{\n}".to_vec(), Framing::Varlink));
        assert_eq!(reader.framing(), Some(Framing::Varlink));
        let (mut near, mut reader) = pair(100);
        near.write_all(b"{}\n\0\n").unwrap();
        assert_eq!(reader.next_message(LATE).unwrap(), (b"{}".to_vec(), Framing::Line));
        assert_eq!(reader.next_message(LATE).unwrap(), (b"\0".to_vec(), Framing::Line));
    }

    #[test]
    fn a_line_may_have_exactly_the_limit() {
        let (mut near, mut reader) = pair(5);
        near.write_all(b"1234\n12345\n").unwrap();
        assert_eq!(reader.next(LATE).unwrap(), b"1234");
        assert!(matches!(reader.next(LATE), Err(LineError::TooLong { limit: 5 })));
    }

    #[test]
    fn a_trickle_does_not_move_the_deadline() {
        // A deadline that moved would end with a line too long.
        let (mut near, mut reader) = pair(1000);
        let trickle = std::thread::spawn(move || {
            while near.write_all(b"x").is_ok() {
                std::thread::sleep(SOON / 5);
            }
        });
        assert!(matches!(reader.next(SOON), Err(LineError::TimedOut { .. })));
        drop(reader);
        trickle.join().unwrap();
    }

    #[test]
    fn a_peer_that_does_not_read_ends_the_write() {
        let (near, _reader) = pair(100);
        let bytes = vec![0; 8 << 20];
        assert!(matches!(write(&near, &bytes, SOON), Err(LineError::TimedOut { .. })));
    }
}
