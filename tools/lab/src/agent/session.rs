//! One command in a guest: its process, and the threads that carry its three streams.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::output::send;
use crate::proto::{Credit, Exec, Exit, Frame, FrameKind, MAX_DATA};

/// The running sessions by number.
pub type Sessions = Arc<Mutex<HashMap<u32, Session>>>;

/// What the reader of the port needs of a session.
pub struct Session {
    group: Option<Pid>,
    stdin: Option<Sender<Vec<u8>>>,
    credit: Arc<Credit>,
}

impl Session {
    /// Handles a frame without ever waiting.
    pub fn handle(&mut self, frame: Frame) {
        match frame.kind {
            FrameKind::Stdin => {
                if let Some(stdin) = &self.stdin {
                    let _ = stdin.send(frame.data); // its thread ends when the command closed stdin
                }
            }
            FrameKind::StdinEnd => self.stdin = None,
            FrameKind::Credit => self.credit.give(frame.granted()),
            FrameKind::Signal => self.signal(frame.data.first().copied().unwrap_or(15)),
            FrameKind::Close => self.close(),
            _ => {}
        }
    }

    fn signal(&self, number: u8) {
        let signal = Signal::from_named_raw(i32::from(number)).unwrap_or(Signal::TERM);
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    /// The client is gone: the command gets a signal that it can handle, then SIGKILL.
    fn close(&mut self) {
        self.stdin = None;
        self.credit.close();
        let Some(group) = self.group.take() else { return };
        thread::spawn(move || {
            let _ = kill_process_group(group, Signal::TERM);
            thread::sleep(Duration::from_secs(2));
            let _ = kill_process_group(group, Signal::KILL);
        });
    }
}

/// Starts the command of an exec frame; failures travel back as a shell would report them.
pub fn start(frame: &Frame, out: &Sender<Vec<u8>>, sessions: &Sessions) {
    let id = frame.session;
    let started = frame.parse::<Exec>().and_then(|exec| spawn(&exec));
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            let text = format!("vmlane: cannot run it in the guest: {error}\n");
            send(out, Frame::new(FrameKind::Stderr, id, text.into_bytes()).encode());
            let exit = Exit { code: Some(code), signal: None };
            send(out, Frame::json(FrameKind::Exit, id, &exit).encode());
            return;
        }
    };
    let credit = Arc::new(Credit::default());
    let (stdin, from_client) = mpsc::channel();
    if let Some(pipe) = child.stdin.take() {
        let out = out.clone();
        thread::spawn(move || feed(id, pipe, &from_client, &out));
    }
    let group = Pid::from_raw(child.id() as i32);
    let session = Session { group, stdin: Some(stdin), credit: credit.clone() };
    sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(id, session);
    let (out, sessions) = (out.clone(), sessions.clone());
    thread::spawn(move || finish(id, child, &credit, &out, &sessions));
}

fn spawn(exec: &Exec) -> std::io::Result<Child> {
    let Some((program, args)) = exec.argv.split_first() else {
        return Err(std::io::Error::other("no command"));
    };
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir("/root")
        .env("TERM", "dumb")
        .envs(exec.env.iter().map(|(k, v)| (k, v)))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn()
}

/// Client to command. Data is consumed, and so credited, even when the command reads no more.
fn feed(id: u32, pipe: ChildStdin, from_client: &Receiver<Vec<u8>>, out: &Sender<Vec<u8>>) {
    let mut pipe = Some(pipe);
    for data in from_client {
        if let Some(open) = &mut pipe
            && open.write_all(&data).is_err()
        {
            pipe = None;
        }
        send(out, Frame::credit(id, data.len()).encode());
    }
}

/// Waits for the command, lets its output run dry, reports how it ended.
fn finish(id: u32, mut child: Child, credit: &Credit, out: &Sender<Vec<u8>>, sessions: &Sessions) {
    // This pipe carries one event: when the writer is gone, the command has ended.
    let (ended, alive) = match std::io::pipe() {
        Ok(pipe) => pipe,
        Err(error) => {
            send(out, Frame::new(FrameKind::Failed, id, error.to_string().into_bytes()).encode());
            let _ = child.kill();
            let _ = child.wait();
            sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            return;
        }
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let status = thread::scope(|scope| {
        if let Some(pipe) = stdout {
            scope.spawn(|| drain(id, FrameKind::Stdout, pipe, &ended, credit, out));
        }
        if let Some(pipe) = stderr {
            scope.spawn(|| drain(id, FrameKind::Stderr, pipe, &ended, credit, out));
        }
        let status = child.wait();
        drop(alive);
        status
    });
    let exit = status.map(|s| Exit { code: s.code(), signal: s.signal() }).unwrap_or_default();
    sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    send(out, Frame::json(FrameKind::Exit, id, &exit).encode());
}

/// Command to client, until the pipe closes, or until the command has ended and the pipe is empty:
/// a daemon that it left behind may hold the pipe open for ever.
fn drain<P: Read + AsFd>(
    id: u32,
    kind: FrameKind,
    mut pipe: P,
    ended: &impl AsFd,
    credit: &Credit,
    out: &Sender<Vec<u8>>,
) {
    let mut buffer = vec![0; MAX_DATA];
    loop {
        let mut fds = [PollFd::new(&pipe, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            continue; // interrupted
        }
        if fds[0].revents().is_empty() {
            return;
        }
        let Some(room) = credit.take(MAX_DATA) else { return };
        match pipe.read(&mut buffer[..room]) {
            Ok(0) | Err(_) => {
                credit.give(room as u32);
                return;
            }
            Ok(length) => {
                credit.give((room - length) as u32);
                send(out, Frame::new(kind, id, &buffer[..length]).encode());
            }
        }
    }
}
