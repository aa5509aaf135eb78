//! The supervisor's socket: one JSON line is the request, one the answer; an exec continues in frames.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Event;
use super::link::Link;
use crate::plan::{Plan, Reply, Request};
use crate::proto::{Frame, FrameKind};
use crate::qmp;

/// What every connection may use.
pub struct Shared {
    pub plan: Plan,
    pub links: HashMap<String, Arc<Link>>,
    pub events: Sender<Event>,
}

/// Accepts for ever, a thread per connection.
pub fn serve(listener: UnixListener, shared: Arc<Shared>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = shared.clone();
            std::thread::spawn(move || {
                if let Err(error) = connection(&stream, &shared) {
                    let _ = answer(&stream, &Reply::Error(format!("{error:#}")));
                }
            });
        }
    });
}

fn connection(stream: &UnixStream, shared: &Shared) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(());
    }
    let request: Request = serde_json::from_str(&line).context("not a request of this version")?;
    let timeout = Duration::from_secs(shared.plan.spec.boot_seconds);
    match request {
        Request::Exec { guest, exec } => {
            let link = shared.link(&guest)?;
            let session = link.open(timeout)?;
            let _ = session.out.send(Frame::json(FrameKind::Exec, session.id, &exec).encode());
            answer(stream, &Reply::Done)?;
            let id = session.id;
            relay(stream, reader, session);
            link.close(id);
            Ok(())
        }
        Request::WaitUp { guest } => {
            shared.link(&guest)?.wait_up(timeout)?;
            answer(stream, &Reply::Done)
        }
        Request::Reboot { guest, hard } => {
            let link = shared.link(&guest)?;
            if hard && !shared.is_qemu(&guest) {
                // It has no reset button: another one takes its place.
                shared.ask_main(Request::Kill { guest: guest.clone() })?;
                shared.ask_main(Request::Start { guest: guest.clone(), network: false })?;
            } else {
                link.reboot(!hard)?;
                if hard {
                    qmp::execute(&shared.plan.qmp(&guest), "system_reset", None)?;
                }
            }
            link.wait_up(timeout)?;
            answer(stream, &Reply::Done)
        }
        for_main => {
            if let Request::Kill { guest } | Request::Start { guest, .. } = &for_main {
                shared.link(guest)?;
            }
            answer(stream, &shared.main(for_main)?)
        }
    }
}

impl Shared {
    /// What the main thread answers.
    fn main(&self, request: Request) -> Result<Reply> {
        let (sender, reply) = mpsc::channel();
        self.events.send(Event::Request(request, sender)).context("the lab is going down")?;
        reply.recv().context("the lab is going down")
    }

    fn ask_main(&self, request: Request) -> Result<()> {
        match self.main(request)? {
            Reply::Error(why) => bail!(why),
            _ => Ok(()),
        }
    }

    fn is_qemu(&self, guest: &str) -> bool {
        self.plan.spec.guests().iter().any(|spec| spec.name == guest && spec.machine.is_qemu())
    }

    fn link(&self, guest: &str) -> Result<&Arc<Link>> {
        let Some(link) = self.links.get(guest) else {
            let names: Vec<String> = self.plan.spec.guests().into_iter().map(|g| g.name).collect();
            bail!("lab {} has no guest {guest:?}; it has {}", self.plan.spec.name, names.join(", "));
        };
        Ok(link)
    }
}

fn answer(mut stream: &UnixStream, reply: &Reply) -> Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    Ok(stream.write_all(line.as_bytes())?)
}

/// Frames both ways until the command has ended or the client is gone.
fn relay(mut client: &UnixStream, mut reader: BufReader<UnixStream>, session: super::link::Session) {
    let (id, out) = (session.id, session.out.clone());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(Some(mut frame)) = Frame::read(&mut reader) {
                frame.session = id;
                if out.send(frame.encode()).is_err() {
                    break;
                }
            }
            // After the end of a session the agent does not know its number, and ignores this.
            let _ = out.send(Frame::new(FrameKind::Close, id, Vec::new()).encode());
        });
        for frame in &session.frames {
            let last = matches!(frame.kind, FrameKind::Exit | FrameKind::Failed);
            if client.write_all(&frame.encode()).is_err() || last {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both); // ends the thread above
    });
}
