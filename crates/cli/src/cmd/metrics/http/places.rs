//! Who is connected, and who makes room when all places are taken.
//!
//! The users of loopback addresses are not known here. A client that wants an answer sends its request at
//! once and reads the answer at once, so one that does neither keeps no one else out.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Bytes of a request, without a body.
    pub request: usize,
    /// From accepting a connection until its end.
    pub time: Duration,
    /// How long a client may take to fetch an answer while others wait for its place.
    pub answer: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 16,
            request: 8 << 10,
            time: Duration::from_secs(10),
            answer: Duration::from_secs(1),
        }
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its request has not arrived in whole.
    Asking,
    Answering,
    Sending {
        since: Instant,
    },
}

struct Connection {
    stream: Arc<TcpStream>,
    phase: Phase,
}

impl Connection {
    fn may_be_ended(&self, bounds: Bounds) -> bool {
        match self.phase {
            Phase::Asking => rustix::io::ioctl_fionread(&*self.stream).is_ok_and(|unread| unread == 0),
            Phase::Answering => false,
            Phase::Sending { since } => since.elapsed() > bounds.answer,
        }
    }
}

#[derive(Default)]
struct Table {
    last: u64,
    /// In the order in which they came.
    open: BTreeMap<u64, Connection>,
}

/// All connections.
#[derive(Default)]
pub struct Places(Mutex<Table>);

/// The place of one; free again when dropped.
pub struct ClientPlace {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// A place for one more connection. If all are taken, the oldest one that waits for its client ends for
    /// it; `None`: there is none of these.
    pub fn take(self: &Arc<Self>, stream: &Arc<TcpStream>, bounds: Bounds) -> Option<ClientPlace> {
        let mut table = self.0.lock();
        if table.open.len() >= bounds.connections {
            let mut open = table.open.iter();
            let number = open.find(|(_, one)| one.may_be_ended(bounds)).map(|(number, _)| *number)?;
            let ended = table.open.remove(&number)?;
            let _ = ended.stream.shutdown(Shutdown::Both);
        }
        table.last += 1;
        let number = table.last;
        table.open.insert(number, Connection { stream: stream.clone(), phase: Phase::Asking });
        Some(ClientPlace { places: self.clone(), number })
    }
}

impl ClientPlace {
    pub fn enter(&self, phase: Phase) {
        if let Some(connection) = self.places.0.lock().open.get_mut(&self.number) {
            connection.phase = phase;
        }
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.places.0.lock().open.remove(&self.number);
    }
}
