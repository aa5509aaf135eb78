//! Talks to a lab's supervisor: simple requests, and commands with three streams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::plan::{Reply, Request};
use crate::proto::{Credit, Exec, Exit, Frame, FrameKind, MAX_DATA};

/// What a command in a guest printed, and how it ended.
#[derive(Clone, Debug, Default)]
pub struct Output {
    pub exit: Exit,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Output {
    pub fn success(&self) -> bool {
        self.exit.code == Some(0)
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// A connection to the supervisor of the lab in `dir`.
pub fn connect(dir: &Path) -> Result<UnixStream> {
    UnixStream::connect(dir.join("api.sock")).with_context(|| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        format!("lab {name} does not answer; vmlane lab list shows which run, vmlane lab up {name} starts it")
    })
}

/// Asks once.
pub fn ask(dir: &Path, request: &Request) -> Result<Reply> {
    let stream = connect(dir)?;
    ask_on(&stream, &mut BufReader::new(&stream), request)
}

fn ask_on(mut stream: &UnixStream, reader: &mut impl BufRead, request: &Request) -> Result<Reply> {
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).context("the lab's supervisor")?;
    let mut answer = String::new();
    if reader.read_line(&mut answer).context("the lab's supervisor")? == 0 {
        bail!("the lab's supervisor ended without an answer");
    }
    match serde_json::from_str(&answer)? {
        Reply::Error(text) => bail!("{text}"),
        reply => Ok(reply),
    }
}

/// A command that runs in a guest.
pub struct Session {
    out: Arc<Sender>,
    reader: BufReader<UnixStream>,
    credit: Arc<Credit>,
}

impl Session {
    pub fn start(dir: &Path, guest: &str, exec: Exec) -> Result<Self> {
        let stream = connect(dir)?;
        let mut reader = BufReader::with_capacity(64 * 1024, stream.try_clone()?);
        ask_on(&stream, &mut reader, &Request::Exec { guest: guest.to_owned(), exec })?;
        let out = Arc::new(Sender { stream, whole: Mutex::new(()) });
        Ok(Self { out, reader, credit: Arc::default() })
    }

    /// Something that can signal the command from another thread.
    pub fn signaller(&self) -> Signaller {
        Signaller(self.out.clone())
    }

    /// Sends all of `input` as standard input, from a thread of its own.
    pub fn feed(&self, mut input: impl Read + Send + 'static) {
        let (out, credit) = (self.out.clone(), self.credit.clone());
        std::thread::spawn(move || {
            let mut buffer = vec![0; MAX_DATA];
            while let Some(room) = credit.take(MAX_DATA) {
                let length = match input.read(&mut buffer[..room]) {
                    Ok(0) => break,
                    Ok(length) => length,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => 0,
                    Err(_) => break,
                };
                credit.give((room - length) as u32);
                let frame = Frame::new(FrameKind::Stdin, 0, &buffer[..length]);
                if length > 0 && out.send(&frame).is_err() {
                    return;
                }
            }
            let _ = out.send(&Frame::new(FrameKind::StdinEnd, 0, Vec::new()));
        });
    }

    /// Passes output on until the command has ended.
    pub fn finish(mut self, stdout: &mut dyn Write, stderr: &mut dyn Write) -> Result<Exit> {
        loop {
            let frame = Frame::read(&mut self.reader).context("the lab's supervisor")?;
            let frame = frame.context("the lab went down while the command ran")?;
            match frame.kind {
                FrameKind::Stdout | FrameKind::Stderr => {
                    let to: &mut dyn Write =
                        if frame.kind == FrameKind::Stdout { &mut *stdout } else { &mut *stderr };
                    to.write_all(&frame.data).context("cannot write the command's output")?;
                    to.flush().context("cannot write the command's output")?;
                    // The command may just have ended: then no one waits for credit.
                    let _ = self.out.send(&Frame::credit(0, frame.data.len()));
                }
                FrameKind::Credit => self.credit.give(frame.granted()),
                FrameKind::Exit => return Ok(frame.parse()?),
                FrameKind::Failed => bail!("{}", String::from_utf8_lossy(&frame.data)),
                _ => {}
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.credit.close();
        let _ = self.out.stream.shutdown(Shutdown::Both);
    }
}

/// Sends signals to a running command's process group.
#[derive(Clone)]
pub struct Signaller(Arc<Sender>);

impl Signaller {
    pub fn signal(&self, number: i32) {
        let _ = self.0.send(&Frame::new(FrameKind::Signal, 0, [number as u8]));
    }

    /// Leaves the session, which ends the command.
    pub fn hang_up(&self) {
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }
}

/// The sending half: two threads send, so a lock keeps their frames whole.
struct Sender {
    stream: UnixStream,
    whole: Mutex<()>,
}

impl Sender {
    fn send(&self, frame: &Frame) -> std::io::Result<()> {
        let _guard = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.stream).write_all(&frame.encode())
    }
}
