//! A connection to Open vSwitch's database: requests go out, answers and updates come in, and nothing waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

use crate::framing::Framing;

/// Bytes that may wait to be sent: the server reads no more.
const MOST_UNSENT: usize = 4 << 20;
/// Bytes that are read in one turn, so that a server that never stops talking does not keep the helper from
/// all else.
const MOST_READ: usize = 1 << 20;
/// After so long without a word the server is asked for one, and after twice as long the connection is ended.
const SILENCE: Duration = Duration::from_secs(5);
/// The name of the connection's monitor.
const MONITOR: &str = "vmlane";
/// The database.
const NAME: &str = "Open_vSwitch";

/// What the server has sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// Rows as they are now; the first of these has all.
    Rows(Value),
    /// What came of the request of this number.
    Answer { number: u64, result: Result<Value, String> },
}

/// See the module's text. Any error ends it: a new one begins with all rows.
#[derive(Debug)]
pub struct Database {
    socket: OwnedFd,
    framing: Framing,
    unsent: Vec<u8>,
    /// The last request's.
    number: u64,
    /// That of the request for all rows.
    monitor: u64,
    last_received: Instant,
    asked: Instant,
}

fn broken(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

impl Database {
    /// Connects, and asks for the rows of `tables`: each with the names of its columns.
    pub fn connect(path: &Path, tables: &[(&str, &[&str])]) -> io::Result<Database> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let now = Instant::now();
        let mut database = Database {
            socket,
            framing: Framing::default(),
            unsent: Vec::new(),
            number: 0,
            monitor: 0,
            last_received: now,
            asked: now,
        };
        let wanted: serde_json::Map<String, Value> = tables
            .iter()
            .map(|(table, columns)| ((*table).to_owned(), json!([{ "columns": columns }])))
            .collect();
        database.monitor = database.request("monitor", json!([NAME, MONITOR, wanted]))?;
        Ok(database)
    }

    /// Carries out operations, all or none. Returns the number that the answer will have.
    pub fn transact(&mut self, operations: Vec<Value>) -> io::Result<u64> {
        let mut parameters = vec![json!(NAME)];
        parameters.extend(operations);
        self.request("transact", parameters.into())
    }

    fn request(&mut self, method: &str, parameters: Value) -> io::Result<u64> {
        self.number += 1;
        let number = self.number;
        self.send(&json!({ "method": method, "params": parameters, "id": number }))?;
        Ok(number)
    }

    fn send(&mut self, message: &Value) -> io::Result<()> {
        self.unsent.extend(message.to_string().into_bytes());
        if self.unsent.len() > MOST_UNSENT {
            return Err(broken(format!("it has not read {MOST_UNSENT} bytes")));
        }
        self.flush()
    }

    /// Sends what waits, as far as there is room.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.socket, &self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Does anything wait to be sent?
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// What the server has sent since.
    pub fn receive(&mut self, now: Instant) -> io::Result<Vec<Received>> {
        self.flush()?;
        let mut bytes = [0; 64 << 10];
        let mut received = Vec::new();
        let mut read = 0;
        while read < MOST_READ {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok((len, _)) => {
                    read += len;
                    self.framing.push(bytes.get(..len).unwrap_or_default());
                    while let Some(message) = self.framing.message().map_err(broken)? {
                        self.last_received = now;
                        received.extend(self.understand(message)?);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.check_silence(now)?;
        Ok(received)
    }

    fn check_silence(&mut self, now: Instant) -> io::Result<()> {
        let silence = now.saturating_duration_since(self.last_received);
        if silence > 2 * SILENCE {
            return Err(broken(format!("it has sent nothing for {} s", silence.as_secs())));
        }
        if silence > SILENCE && now.saturating_duration_since(self.asked) > SILENCE {
            self.asked = now;
            self.send(&json!({ "method": "echo", "params": [], "id": "alive" }))?;
        }
        Ok(())
    }

    fn understand(&mut self, mut message: Value) -> io::Result<Option<Received>> {
        let id = message.get("id").cloned().unwrap_or_default();
        match message.get("method").and_then(Value::as_str) {
            Some("echo") => {
                let parameters = message.get_mut("params").map(Value::take).unwrap_or_default();
                self.send(&json!({ "result": parameters, "error": null, "id": id }))?;
                return Ok(None);
            }
            Some("update") => {
                let parameters = message.get_mut("params").and_then(Value::as_array_mut);
                let [name, rows] = parameters.map(Vec::as_mut_slice).unwrap_or_default() else {
                    return Err(broken("an update without rows"));
                };
                return Ok((name.as_str() == Some(MONITOR)).then(|| Received::Rows(rows.take())));
            }
            // Of locks and the like, which are not used.
            Some(_) => return Ok(None),
            None => {}
        }
        // To the question whether it is there.
        let Some(number) = id.as_u64() else { return Ok(None) };
        if number == 0 || number > self.number {
            return Err(broken(format!("it answers request {number}, which was not made")));
        }
        let error = message.get("error").filter(|error| !error.is_null()).map(short);
        let result = message.get_mut("result").map(Value::take).unwrap_or_default();
        if number == self.monitor {
            self.monitor = 0;
            return match error {
                Some(error) => Err(broken(format!("it shows no rows: {error}"))),
                None => Ok(Some(Received::Rows(result))),
            };
        }
        let result = match error {
            Some(error) => Err(error),
            None => outcome(result),
        };
        Ok(Some(Received::Answer { number, result }))
    }
}

/// What came of a transaction: the first operation that failed, or all results.
fn outcome(result: Value) -> Result<Value, String> {
    let operations = result.as_array().map(Vec::as_slice).unwrap_or_default();
    match operations.iter().find_map(|one| one.get("error").filter(|error| !error.is_null()).map(|_| one)) {
        Some(failed) => {
            let text = |key| failed.get(key).and_then(Value::as_str).unwrap_or_default();
            Err(format!("{}: {}", text("error"), text("details")).chars().take(300).collect())
        }
        None => Ok(result),
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(300).collect()
}

impl AsFd for Database {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
