//! The frames between a client, the supervisor and the agent in a guest.
//!
//! The same frames travel over the guest's virtio-serial port, where sessions are multiplexed, and
//! over the supervisor's socket, one session a connection. Data flows by credit, end to end: a
//! sender starts with [`WINDOW`] bytes and may send more when the receiver has consumed some. So
//! nothing between them holds more than a window per session and direction, and no process that relays
//! ever has to wait for a slow session.
//!
//! A serial port has no connections: a guest may reset in the middle of a frame. The side that starts
//! anew sends [`opening`]: a frame's length of zeros, which ends any frame the other side may be in
//! and cannot be taken for a header, then a preamble to search for, then a first frame.

use std::io::{self, Read};
use std::sync::{Condvar, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::spec::Nic;

pub const MAX_DATA: usize = 32 * 1024;
pub const WINDOW: u32 = 1 << 20;

/// The name of the virtio-serial port.
pub const PORT: &str = "vmlane.agent";

/// Where there is no such port, this word of the kernel's command line names a serial line.
pub const PORT_WORD: &str = "vmlane.port=";

/// The bytes under way to an agent on a serial line. Linux' line discipline holds 4096, and User Mode Linux
/// never gets data again from a line that it once throttled because 128 were left (arch/um/drivers/line.c:
/// nothing puts the descriptor back). What was meant for an agent before this one may be there as well.
pub const LINE_WINDOW: u32 = 1536;

/// An agent on a serial line acknowledges this many bytes that it has read from it.
pub const LINE_TAKEN: u32 = 512;

const MAGIC: u16 = 0x4c56;
const HEADER: usize = 12;
/// Its first byte occurs once, so the search for it needs no backtracking.
const PREAMBLE: &[u8; 16] = b"\xe5vmlane lab sync";

/// What a frame is. The number is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Agent, first: [`Hello`].
    Hello = 1,
    /// Supervisor, first: [`Setup`].
    Setup = 2,
    /// Agent: the guest is set up; [`Up`].
    Up = 3,
    /// Client: start a command; [`Exec`].
    Exec = 4,
    Stdin = 5,
    StdinEnd = 6,
    Stdout = 7,
    Stderr = 8,
    /// The receiver of data consumed so many bytes: a little-endian u32.
    Credit = 9,
    /// Client: send the command's process group a signal: one byte.
    Signal = 10,
    /// The client is gone.
    Close = 11,
    /// Agent, last of a session: [`Exit`].
    Exit = 12,
    /// The session is over for a reason that is not the command's: text.
    Failed = 13,
    /// Supervisor: restart the guest.
    Reboot = 14,
    /// Agent on a serial line: it took so many bytes from there: a little-endian u32.
    Taken = 15,
}

impl FrameKind {
    fn of(number: u8) -> Option<Self> {
        use FrameKind::*;
        let all = [
            Hello, Setup, Up, Exec, Stdin, StdinEnd, Stdout, Stderr, Credit, Signal, Close, Exit, Failed,
            Reboot, Taken,
        ];
        all.into_iter().find(|k| *k as u8 == number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub session: u32,
    pub data: Vec<u8>,
}

/// The agent introduces itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Hello {
    /// Distinguishes this start of the agent from the one before.
    pub nonce: u64,
    pub release: String,
}

/// What the guest should become.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Setup {
    pub nonce: u64,
    pub hostname: String,
    pub nics: Vec<Nic>,
    /// Names and addresses of all guests, for `/etc/hosts`.
    pub hosts: Vec<(String, String)>,
    pub vmci: bool,
}

/// The guest's report when it is set up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Up {
    pub release: String,
    /// Seconds since its kernel started.
    pub uptime: f64,
    /// What did not work; the guest can still be asked why.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exec {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: Vec<(String, String)>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Exit {
    /// The number a shell would show.
    pub fn shell_code(self) -> i32 {
        self.code.unwrap_or_else(|| 128 + self.signal.unwrap_or(0))
    }
}

impl Frame {
    pub fn new(kind: FrameKind, session: u32, data: impl Into<Vec<u8>>) -> Self {
        Self { kind, session, data: data.into() }
    }

    pub fn json(kind: FrameKind, session: u32, value: &impl Serialize) -> Self {
        // The types above are plain data: they always serialize.
        Self::new(kind, session, serde_json::to_vec(value).unwrap_or_default())
    }

    pub fn credit(session: u32, bytes: usize) -> Self {
        Self::new(FrameKind::Credit, session, (bytes as u32).to_le_bytes())
    }

    pub fn taken(bytes: u32) -> Self {
        Self::new(FrameKind::Taken, 0, bytes.to_le_bytes())
    }

    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> io::Result<T> {
        serde_json::from_slice(&self.data).map_err(io::Error::other)
    }

    /// The bytes that a credit frame grants or a line's frame reports.
    pub fn granted(&self) -> u32 {
        self.data.as_slice().try_into().map_or(0, u32::from_le_bytes)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.data.len());
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend([self.kind as u8, 0]);
        bytes.extend(self.session.to_le_bytes());
        bytes.extend((self.data.len() as u32).to_le_bytes());
        bytes.extend(&self.data);
        bytes
    }

    /// Reads one frame; `None` at a clean end. `InvalidData` when there is no frame here.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        match from.read(&mut header[..1])? {
            0 => return Ok(None),
            _ => from.read_exact(&mut header[1..])?,
        }
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let (session, length) = (u32_at(4), u32_at(8) as usize);
        let kind = FrameKind::of(header[2]).filter(|_| header[..2] == MAGIC.to_le_bytes());
        let Some(kind) = kind.filter(|_| length <= MAX_DATA) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a frame"));
        };
        let mut data = vec![0; length];
        from.read_exact(&mut data)?;
        Ok(Some(Self { kind, session, data }))
    }
}

/// What a side that starts anew sends first.
pub fn opening(first: &Frame) -> Vec<u8> {
    // A frame cut inside its header takes the most; one more header of zeros must remain after it.
    let mut bytes = vec![0; 2 * HEADER + MAX_DATA];
    bytes.extend(PREAMBLE);
    bytes.extend(first.encode());
    bytes
}

/// Reads up to the end of the next preamble; false at the end of input.
pub fn hunt(from: &mut impl Read) -> io::Result<bool> {
    let mut matched = 0;
    let mut byte = [0];
    while matched < PREAMBLE.len() {
        if from.read(&mut byte)? == 0 {
            return Ok(false);
        }
        matched =
            if byte[0] == PREAMBLE[matched] { matched + 1 } else { usize::from(byte[0] == PREAMBLE[0]) };
    }
    Ok(true)
}

/// The bytes that a sender may still send.
pub struct Credit {
    left: Mutex<Option<u32>>,
    most: u32,
    more: Condvar,
}

impl Default for Credit {
    fn default() -> Self {
        Self::of(WINDOW)
    }
}

impl Credit {
    pub fn of(most: u32) -> Self {
        Self { left: Mutex::new(Some(most)), most, more: Condvar::new() }
    }

    /// Waits until something may be sent and takes up to `most` of it; `None` when it is over.
    pub fn take(&self, most: usize) -> Option<usize> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *left {
                None => return None,
                Some(0) => left = self.more.wait(left).unwrap_or_else(PoisonError::into_inner),
                Some(n) => {
                    let taken = n.min(most as u32);
                    *left = Some(n - taken);
                    return Some(taken as usize);
                }
            }
        }
    }

    pub fn give(&self, bytes: u32) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.map(|n| n.saturating_add(bytes).min(self.most));
        self.more.notify_all();
    }

    /// Ends all waiting: nothing more will be sent.
    pub fn close(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let frame = Frame::new(FrameKind::Stdout, 7, b"hello".to_vec());
        let bytes = frame.encode();
        assert_eq!(Frame::read(&mut &bytes[..]).unwrap(), Some(frame));
        assert_eq!(Frame::read(&mut &[][..]).unwrap(), None);
        assert!(Frame::read(&mut &[0; 64][..]).is_err());
    }

    #[test]
    fn a_restart_inside_a_frame_is_found() {
        let cut = Frame::new(FrameKind::Stdout, 1, vec![1; MAX_DATA]).encode();
        for keep in [1, 11, 12, 500, cut.len()] {
            let mut bytes = cut[..keep].to_vec();
            bytes.extend(opening(&Frame::new(FrameKind::Hello, 0, b"x".to_vec())));
            let mut from = &bytes[..];
            while Frame::read(&mut from).is_ok() {}
            assert!(hunt(&mut from).unwrap(), "cut after {keep}");
            assert_eq!(Frame::read(&mut from).unwrap().unwrap().kind, FrameKind::Hello);
        }
    }

    #[test]
    fn credit_is_taken_and_given_back() {
        let credit = Credit::default();
        assert_eq!(credit.take(10), Some(10));
        assert_eq!(credit.take(usize::MAX >> 33), Some(WINDOW as usize - 10));
        credit.give(5);
        assert_eq!(credit.take(100), Some(5));
        credit.close();
        assert_eq!(credit.take(1), None);
    }
}
