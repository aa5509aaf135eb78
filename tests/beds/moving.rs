//! A guest's QEMU, and another one for the same guest on another host, to which it moves.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{Process, TIMEOUT, eventually, wait_until};

/// A QEMU, controlled through its QMP socket.
pub struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    pub fn connect(path: &Path) -> Qmp {
        let stream = eventually("QEMU's socket answers", || UnixStream::connect(path).ok());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        lines.read_line(&mut String::new()).unwrap();
        let mut qmp = Qmp { stream, lines };
        qmp.call("qmp_capabilities", json!({}));
        qmp
    }

    /// The result of a command that QEMU may not refuse.
    pub fn call(&mut self, command: &str, arguments: Value) -> Value {
        self.ask(command, arguments).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The result, or QEMU's error.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let request = json!({"execute": command, "arguments": arguments});
        self.stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "{command}: QEMU has ended");
            let answer: Value = serde_json::from_str(&line).unwrap();
            if let Some(error) = answer.get("error") {
                return Err(error["desc"].to_string());
            }
            if let Some(result) = answer.get("return") {
                return Ok(result.clone());
            }
        }
    }

    /// Moves the guest to the QEMU at `there`, which waits for it at `incoming`; it may stand still for
    /// `downtime` milliseconds. What QEMU reports of the migration.
    pub fn migrate(&mut self, there: &mut Qmp, incoming: &Path, downtime: u64) -> Value {
        let limits = json!({"max-bandwidth": 1_000_000_000, "downtime-limit": downtime});
        self.call("migrate-set-parameters", limits);
        self.call("migrate", json!({"uri": format!("unix:{}", incoming.display())}));
        let mut state = Value::Null;
        wait_until("the guest has moved", || {
            state = self.call("query-migrate", json!({}));
            assert_ne!(state["status"], "failed", "{state}");
            state["status"] == "completed"
        });
        wait_until("the guest runs in the other QEMU", || {
            there.call("query-status", json!({}))["status"] == "running"
        });
        state
    }
}

/// The value of `key=` in a comma list.
fn value(word: &str, key: &str) -> PathBuf {
    let found = word.split(',').find_map(|part| part.strip_prefix(key));
    found.unwrap_or_else(|| panic!("{key} in {word}")).into()
}

/// A guest's QEMU: how it was started.
#[derive(Clone)]
pub struct Qemu {
    pub exe: PathBuf,
    /// Its arguments.
    pub words: Vec<String>,
    pub qmp: PathBuf,
    pub console: PathBuf,
}

impl Qemu {
    /// As a lab has started it.
    pub fn of_lab(lab: &str, guest: &str) -> Qemu {
        let name = format!("{lab}-{guest}");
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(line) = fs::read_to_string(entry.path().join("cmdline")) else { continue };
            let words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
            if !words.contains(&name) {
                continue;
            }
            let Ok(exe) = fs::read_link(entry.path().join("exe")) else { continue };
            let qmp = words.iter().find(|word| word.starts_with("unix:")).expect("a QMP socket");
            let console = words.iter().find(|word| word.contains("id=console")).expect("a console");
            let (qmp, console) = (value(qmp, "unix:"), value(console, "path="));
            return Qemu { exe, words: words[1..].to_vec(), qmp, console };
        }
        panic!("no QEMU of {name}");
    }

    /// Another one that waits for the guest, with the first `count` of the same arguments but for its own
    /// sockets (`to` and an ending) and what `moves` replaces, and then `further` ones.
    pub fn twin(&self, count: usize, moves: &[(String, String)], further: &[String], to: &Path) -> Twin {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let place = |what: &str| to.with_extension(what);
        let (qmp, console, incoming) = (place("qmp"), place("console"), place("in"));
        let own = [(text(&self.qmp), text(&qmp)), (text(&self.console), text(&console))];
        let moved = |word: &String| {
            let moves = moves.iter().chain(&own);
            moves.fold(word.clone(), |word, (from, to)| word.replace(from, to))
        };
        let mut words: Vec<String> = self.words[..count].iter().map(moved).collect();
        words.extend_from_slice(further);
        // The agent's port, which is no longer used.
        let (agent, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(&self.exe)
            .args(&words)
            .args(["-incoming", &format!("unix:{}", text(&incoming))])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stderr(File::create(place("log")).unwrap())
            .spawn()
            .unwrap();
        let qemu = Qemu { exe: self.exe.clone(), words, qmp, console };
        Twin { qemu, incoming, process: Process(child), _agent: agent }
    }
}

/// See [`Qemu::twin`].
pub struct Twin {
    pub qemu: Qemu,
    pub incoming: PathBuf,
    pub process: Process,
    _agent: UnixStream,
}

/// A guest that moves from daemon to daemon.
pub struct Machine {
    qemu: Qemu,
    /// Of the daemon that serves its devices.
    run: PathBuf,
    /// The lab has its own.
    twin: Option<Twin>,
}

impl Machine {
    /// As a lab has started it, whose daemon has its sockets in `run`.
    pub fn of_lab(lab: &str, guest: &str, run: &Path) -> Machine {
        Machine { qemu: Qemu::of_lab(lab, guest), run: run.into(), twin: None }
    }

    /// Moves the guest to another QEMU, whose devices the daemon at `run` serves; its sockets are `to` and an
    /// ending. Returns it, and how long the guest stood still, in milliseconds. The first QEMU ends.
    pub fn move_to(self, run: &Path, to: &Path) -> (Machine, u64) {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let twin = self.qemu.twin(self.qemu.words.len(), &[(text(&self.run), text(run))], &[], to);
        let (mut here, mut there) = (Qmp::connect(&self.qemu.qmp), Qmp::connect(&twin.qemu.qmp));
        let state = here.migrate(&mut there, &twin.incoming, 300);
        here.call("quit", json!({}));
        if let Some(mut twin) = self.twin {
            twin.process.0.wait().unwrap();
        }
        let moved = Machine { qemu: twin.qemu.clone(), run: run.into(), twin: Some(twin) };
        (moved, state["downtime"].as_u64().unwrap())
    }
}
