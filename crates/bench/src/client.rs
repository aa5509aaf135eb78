//! The asking end: one call, one measurement.

use std::sync::Arc;
use std::time::Duration;

use crate::address::{Address, Family};
use crate::control::{ANSWER, Channel, Message, Outcome};
use crate::cpu;
use crate::error::Error;
use crate::load;
use crate::report::{Local, Report};
use crate::spec::{Limits, Spec, Test};
use crate::team::{Session, Team};
use crate::transport::{self, BufferSizes, Buffers, Conn};

/// For the server to see the data connections that we know to be up.
const ARRIVAL: Duration = Duration::from_secs(15);
/// For the server's sessions to end after ours did: what is under way must still arrive.
const RESULT: Duration = Duration::from_secs(60);

/// Runs the test against the server at `to` and returns what both ends saw.
pub fn run(to: &Address, spec: &Spec) -> Result<Report, Error> {
    let spec = Arc::new(complete(spec, to.family()));
    spec.check(&Limits::default(), "vmlane bench")?;
    let buffers = Buffers { size: spec.local_buffer, maximum: spec.local_buffer.max(spec.remote_buffer) };

    let channel = greet(to)?;
    channel.send(&Message::Test((*spec).clone()))?;
    let port = match channel.recv(ANSWER, "preparing the test")? {
        Message::Ready { port } => port,
        other => return Err(channel.unexpected(&other)),
    };
    let data = transport::announced(to, port);
    let (team, sizes) = assemble(&data, &spec, buffers)?;
    let (send_buffer, recv_buffer) = match channel.recv(ARRIVAL, "accepting the data connections")? {
        Message::Accepted { send_buffer, recv_buffer } => (send_buffer, recv_buffer),
        other => return Err(channel.unexpected(&other)),
    };
    channel.send(&Message::Start)?;
    match channel.recv(ANSWER, "starting")? {
        Message::Started => {}
        other => return Err(channel.unexpected(&other)),
    }
    team.go();
    std::thread::sleep(spec.warmup());
    let opened = cpu::sample();
    let sessions = team.join();
    let closed = cpu::sample();

    let (sessions, mut remote) = finish(&channel, sessions)?;
    remote.send_buffer = remote.send_buffer.or(Some(send_buffer));
    remote.recv_buffer = remote.recv_buffer.or(Some(recv_buffer));
    let local = Local { sessions, machine_cpus: cpu::cpus_busy(opened, closed), sizes };
    Report::new(to, &spec, &local, &remote)
}

/// VMCI has one buffer size for both ends of a connection: a size given for one counts for both.
fn complete(spec: &Spec, family: Family) -> Spec {
    let mut spec = spec.clone();
    if family == Family::Vsock {
        spec.local_buffer = spec.local_buffer.or(spec.remote_buffer);
        spec.remote_buffer = spec.remote_buffer.or(spec.local_buffer);
    }
    spec
}

fn greet(to: &Address) -> Result<Channel, Error> {
    let conn = Conn::connect(to, Buffers::default())?;
    let channel = Channel::new(conn, to.to_string());
    channel.send(&Message::hello())?;
    match channel.recv_hello("greeting") {
        // A peer that says nothing or hangs up at a greeting is hardly a bench server.
        Err(Error::Gone { peer, .. }) => {
            Err(Error::WrongPeer { peer, why: "it hung up at our greeting".into() })
        }
        other => other.map(|()| channel),
    }
}

/// The sessions, connected and waiting for the start; with the buffers of the first.
fn assemble(data: &Address, spec: &Arc<Spec>, buffers: Buffers) -> Result<(Team, BufferSizes), Error> {
    if spec.test == Test::Crr {
        // One connection ahead of the test tells the buffers that all of them will have; the server's
        // end drops it as one that asks nothing.
        let sizes = Conn::connect(data, buffers)?.buffers().map_err(Error::io("reading the buffer sizes"))?;
        let data = data.clone();
        let work = move |session, cue: &_| load::connect_and_ask(session, &data, buffers, cue);
        return Ok((Team::assemble(spec, Vec::new(), work)?, sizes));
    }
    let mut conns = Vec::new();
    for session in 0..spec.sessions as usize {
        let conn = Conn::connect(data, buffers)?;
        conn.set_patience(load::IDLE).map_err(Error::data(session, "preparing the connection"))?;
        if spec.nodelay {
            conn.set_nodelay().map_err(Error::data(session, "setting nodelay (-D)"))?;
        }
        conns.push(Arc::new(conn));
    }
    let sizes = conns[0].buffers().map_err(Error::io("reading the buffer sizes"))?;
    let theirs = conns.clone();
    let team = Team::assemble(spec, conns, move |session, cue| {
        let conn = &theirs[session];
        let (doing, done) = match cue.spec.test {
            Test::Stream => ("sending", load::send(conn, cue)),
            Test::Maerts => ("receiving", load::receive(conn, cue)),
            Test::Rr | Test::Crr => ("asking", load::ask(conn, cue)),
        };
        done.map_err(|cause| {
            conn.hang_up(); // the server must not wait for what will not come
            Error::Data { session, doing, cause: load::explain(cause) }
        })
    })?;
    Ok((team, sizes))
}

/// Tells the server that our sessions are done, and learns what its own saw. When ours failed, it is asked
/// all the same: a broken pipe here may have its reason there.
fn finish(
    channel: &Channel,
    sessions: Result<Vec<Session>, Error>,
) -> Result<(Vec<Session>, Outcome), Error> {
    let patience = if sessions.is_ok() { RESULT } else { ANSWER };
    let answer = channel.send(&Message::Finish).and_then(|()| channel.recv(patience, "reporting its side"));
    match (sessions, answer) {
        (Ok(sessions), Ok(Message::Result(outcome))) => Ok((sessions, outcome)),
        (Ok(_), Ok(other)) => Err(channel.unexpected(&other)),
        (Ok(_), Err(error)) => Err(error),
        (Err(ours), Err(theirs @ Error::Refused { .. })) => {
            Err(Error::Both { ours: Box::new(ours), theirs: Box::new(theirs) })
        }
        (Err(ours), _) => Err(ours),
    }
}
