//! QEMU's guest agent: what a VM tells of itself over the socket that its VMM's command line names.
//!
//! The guest is hostile: an answer is bounded in size and time, and its texts are cut and escaped before they are kept. Only
//! questions are sent, none that changes the guest.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};
use vmlane_access::Peer;

use crate::text::{printable, tame};

/// For all answers together. An agent that another program talks to does not answer at all.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer.
const LONGEST: usize = 1 << 18;
/// Cards, and addresses of one, that are kept.
const MOST: usize = 64;
/// In front of the answer to a synchronization: what came before it belongs to an earlier question.
const MARK: u8 = 0xff;

/// What an agent said.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Told {
    /// "Debian GNU/Linux 12 (bookworm), kernel 6.1.0".
    pub system: Option<String>,
    pub cards: Vec<Card>,
}

/// A card as the guest sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Card {
    pub name: String,
    /// In lower case.
    pub mac: String,
    pub addresses: Vec<String>,
}

/// Asks the agent behind this socket of a QEMU, which must itself listen there: its command line may name any socket.
pub fn ask(socket: &str, qemu: u32) -> Result<Told, String> {
    let failed = |error: std::io::Error| format!("QEMU's guest agent at {}: {error}", printable(socket));
    if !socket.starts_with('/') {
        return Err(failed(odd(&format!(
            "no whole path in the command line of process {qemu}: it was not asked"
        ))));
    }
    let stream = connect(socket).map_err(failed)?;
    let peer = Peer::of(&stream).map_err(failed)?;
    if u32::try_from(peer.pid) != Ok(qemu) {
        let listens = format!("process {} of user {} listens there", peer.pid, peer.uid);
        return Err(failed(odd(&format!(
            "{listens}, and not the VM's QEMU, process {qemu}: it was not asked"
        ))));
    }
    let mut agent = Agent { stream, until: Instant::now() + PATIENCE, rest: Vec::new() };
    agent.synchronize().map_err(failed)?;
    let cards = agent.call("guest-network-get-interfaces").map_err(failed)?;
    // Agents before 2.10 do not know it.
    let system = agent.call("guest-get-osinfo").ok().and_then(|told| system(&told));
    Ok(Told { system, cards: cards.as_array().into_iter().flatten().take(MOST).filter_map(card).collect() })
}

/// Where others wait to be accepted, a connect that may block would wait with them.
fn connect(path: &str) -> std::io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(OwnedFd::from(socket).into())
}

struct Agent {
    stream: UnixStream,
    until: Instant,
    /// Received behind the last answer.
    rest: Vec<u8>,
}

impl Agent {
    fn synchronize(&mut self) -> std::io::Result<()> {
        let id = std::process::id();
        let request = json!({ "execute": "guest-sync-delimited", "arguments": { "id": id } });
        self.send(&[MARK], &request)?;
        self.line(MARK)?;
        let answer = self.line(b'\n')?;
        let told: Option<Value> = serde_json::from_slice(&answer).ok();
        let is_ours =
            told.is_some_and(|told| told.get("return").and_then(Value::as_u64) == Some(u64::from(id)));
        is_ours.then_some(()).ok_or_else(|| odd("another answer than the one that was asked for"))
    }

    fn call(&mut self, command: &str) -> std::io::Result<Value> {
        self.send(&[], &json!({ "execute": command }))?;
        let answer = self.line(b'\n')?;
        let mut told: Value = serde_json::from_slice(&answer).map_err(|error| odd(&error.to_string()))?;
        match told.get_mut("return") {
            Some(told) => Ok(tame(told.take())),
            None => {
                let why = told.pointer("/error/desc").and_then(Value::as_str);
                let why = why.unwrap_or("neither an answer nor an error");
                Err(odd(&printable(why)))
            }
        }
    }

    fn send(&mut self, mark: &[u8], request: &Value) -> std::io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(&[mark, request.to_string().as_bytes(), b"\n"].concat())
    }

    /// The bytes before the next `end`.
    fn line(&mut self, end: u8) -> std::io::Result<Vec<u8>> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.rest.iter().skip(seen).position(|byte| *byte == end) {
                let mut line: Vec<u8> = self.rest.drain(..=seen + at).collect();
                line.pop();
                return Ok(line);
            }
            seen = self.rest.len();
            if seen > LONGEST {
                return Err(odd(&format!("an answer of more than {LONGEST} bytes")));
            }
            self.stream.set_read_timeout(Some(self.left()?))?;
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.rest.extend(piece.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(silence()),
                Err(error) => return Err(error),
            }
        }
    }

    fn left(&self) -> std::io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left).ok_or_else(silence)
    }
}

fn odd(why: &str) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, why)
}

fn silence() -> std::io::Error {
    let why = format!(
        "no answer within {} s; none runs in the guest, or another program talks to it",
        PATIENCE.as_secs()
    );
    std::io::Error::new(ErrorKind::TimedOut, why)
}

fn system(told: &Value) -> Option<String> {
    let text = |key: &str| told.get(key)?.as_str().filter(|text| !text.is_empty());
    let kernel = text("kernel-release").map(|kernel| format!("kernel {kernel}"));
    let parts: Vec<String> = text("pretty-name").map(str::to_owned).into_iter().chain(kernel).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The loopback has an address of zeros, or none.
fn card(told: &Value) -> Option<Card> {
    let mac = told.get("hardware-address")?.as_str()?.to_ascii_lowercase();
    let addresses = told.get("ip-addresses").and_then(Value::as_array).into_iter().flatten().take(MOST);
    let addresses = addresses.filter_map(|address| address.get("ip-address")?.as_str());
    let addresses = addresses.map(str::to_owned).collect();
    let name = told.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    (mac != "00:00:00:00:00:00").then_some(Card { name, mac, addresses })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// An agent that answers each line with what `answer` makes of its command.
    fn agent(answer: impl Fn(&Value) -> Vec<u8> + Send + 'static) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qga.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut byte = [0];
            while stream.read_exact(&mut byte).is_ok() {
                match byte[0] {
                    MARK => seen.clear(),
                    b'\n' => {
                        let request = serde_json::from_slice(&seen).unwrap();
                        seen.clear();
                        if stream.write_all(&answer(&request)).is_err() {
                            return;
                        }
                    }
                    byte => seen.push(byte),
                }
            }
        });
        (dir, path.to_str().unwrap().to_owned())
    }

    /// As QEMU's own answers, with what an earlier question left in front.
    fn proper(request: &Value) -> Vec<u8> {
        let told = match request["execute"].as_str().unwrap() {
            "guest-sync-delimited" => {
                let told = json!({ "return": request["arguments"]["id"] });
                return [b"{\"return\": {}}\n".as_slice(), &[MARK], told.to_string().as_bytes(), b"\n"]
                    .concat();
            }
            "guest-network-get-interfaces" => json!([
                { "name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": [{ "ip-address": "127.0.0.1" }] },
                { "name": "ens3", "hardware-address": "02:00:00:00:00:0A",
                  "ip-addresses": [{ "ip-address": "10.0.0.1", "prefix": 24, "ip-address-type": "ipv4" }] },
                { "name": "tun\u{1b}[2J" },
            ]),
            _ => json!({ "pretty-name": "Debian\u{7}", "kernel-release": "6.1.0" }),
        };
        format!("{}\n", json!({ "return": told })).into_bytes()
    }

    #[test]
    fn an_agent_tells_of_cards_and_system() {
        let (_dir, socket) = agent(proper);
        let card = Card {
            name: "ens3".to_owned(),
            mac: "02:00:00:00:00:0a".to_owned(),
            addresses: vec!["10.0.0.1".to_owned()],
        };
        let system = Some("Debian\\u{7}, kernel 6.1.0".to_owned());
        assert_eq!(ask(&socket, std::process::id()), Ok(Told { system, cards: vec![card] }));
    }

    #[test]
    fn answers_without_end_sense_or_time_are_errors() {
        type Answer = fn(&Value) -> Vec<u8>;
        fn after_synchronizing(request: &Value, answer: Vec<u8>) -> Vec<u8> {
            if request["execute"] == "guest-sync-delimited" { proper(request) } else { answer }
        }
        let cases: [(Answer, &str); 5] = [
            (|_| vec![b'x'; 2 * LONGEST], "more than"),
            (|_| Vec::new(), "no answer within"),
            (|_| [&[MARK], b"{\"return\": 0}\n".as_slice()].concat(), "another answer"),
            (
                |request| {
                    let refusal = json!({ "error": { "desc": "not\u{1b}[2J allowed" } });
                    after_synchronizing(request, format!("{refusal}\n").into_bytes())
                },
                "not\\u{1b}[2J allowed",
            ),
            (
                |request| after_synchronizing(request, format!("{}\n", "[".repeat(100_000)).into_bytes()),
                "recursion",
            ),
        ];
        for (answer, says) in cases {
            let (_dir, socket) = agent(answer);
            let why = ask(&socket, std::process::id()).unwrap_err();
            assert!(why.contains(says) && !why.contains('\u{1b}'), "{says}: {why}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("busy.sock");
        let busy = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        busy.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        busy.listen(0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let own = std::process::id();
        assert!(ask(path.to_str().unwrap(), own).unwrap_err().contains("busy.sock"));
        assert!(ask("/nowhere/qga.sock", own).unwrap_err().contains("/nowhere/qga.sock"));
    }

    /// What a command line names may be anyone's.
    #[test]
    fn a_socket_at_which_another_process_listens_is_not_asked() {
        let (asked, seen) = std::sync::mpsc::channel();
        let (_dir, socket) = agent(move |request| {
            let _ = asked.send(request.clone());
            proper(request)
        });
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let why = ask(&socket, parent.cast_unsigned()).unwrap_err();
        let listens = format!("process {} of user", std::process::id());
        assert!(why.contains(&listens) && why.contains("it was not asked"), "{why}");
        assert!(seen.recv().is_err(), "no word was sent");
        // It would be another file below each directory where a doctor is started.
        assert!(ask("qga.sock", std::process::id()).unwrap_err().contains("no whole path"));
    }
}
