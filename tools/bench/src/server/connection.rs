//! One client's connection, in the order of the diagram in `control`. An error ends the connection,
//! and with it every thread, socket and path of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Question, Shared};
use crate::address::Address;
use crate::auth::{self, Secret};
use crate::control::{ANSWER, Channel, Message};
use crate::cpu;
use crate::error::Error;
use crate::load;
use crate::outcome::Outcome;
use crate::report::TcpSummary;
use crate::session_group::{Cue, Session, SessionGroup, of_session};
use crate::spec::{Spec, Test};
use crate::transport::{BufferSizes, Buffers, Conn, DatagramConn, Listener, PeerHost};

/// For all data connections of a test to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How long after its planned end a client may still be busy.
const OVERTIME: Duration = Duration::from_secs(60);
/// For the client to start: it may wait for others that start with it.
const START: Duration = Duration::from_secs(120);
/// A wrong proof is answered after this long.
const WRONG: Duration = Duration::from_millis(500);
/// Between two questions of a client, and how many it may ask over one connection.
const NEXT: Duration = Duration::from_secs(60);
const QUESTIONS: usize = 256;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How often an idle listener checks whether the test is over.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn serve(channel: Channel, server_address: &Address, shared: &Shared) {
    if let Err(error) = answer(&channel, server_address, shared) {
        (shared.log)(&error.to_string());
        // A client knows of its own hang-up; anything else is sent to it, though it may not read any more.
        if !matches!(error, Error::Gone { .. } | Error::Version { .. }) {
            let _ = channel.send(&Message::Error { message: error.to_string() });
        }
    }
    channel.close();
}

fn answer(channel: &Channel, server_address: &Address, shared: &Shared) -> Result<(), Error> {
    let greeting = channel.recv_hello("greeting");
    let challenge = shared.secret.as_ref().map(|_| auth::challenge()).transpose()?;
    if matches!(greeting, Ok(_) | Err(Error::Version { .. })) {
        // A client of another version learns ours from it.
        channel.send(&Message::challenge(challenge.clone()))?;
    }
    greeting?;
    if let (Some(secret), Some(challenge)) = (&shared.secret, &challenge) {
        check_proof(channel, secret, challenge)?;
    }
    let spec = match channel.recv(ANSWER, "asking for a test")? {
        Message::Test(spec) => Arc::new(spec),
        Message::Ask { request } => return answer_questions(channel, shared, request),
        other => return Err(channel.unexpected(&other)),
    };
    spec.check(&shared.limits, "this server")?;
    let share = shared.quota.test(spec.sessions.into(), spec.memory());
    let _share = share.ok_or_else(|| {
        Error::Usage(
            "busy: the tests under way leave too little memory or too few sessions; ask for less or later"
                .into(),
        )
    })?;
    measure(channel, server_address, &spec)
}

/// One question after another, until the client hangs up.
fn answer_questions(channel: &Channel, shared: &Shared, request: serde_json::Value) -> Result<(), Error> {
    let mut request = request;
    for _ in 0..QUESTIONS {
        answer_one(channel, shared, &request)?;
        request = match channel.recv(NEXT, "asking the next question") {
            Ok(Message::Ask { request }) => request,
            Ok(other) => return Err(channel.unexpected(&other)),
            Err(Error::Gone { .. }) => break,
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

fn answer_one(channel: &Channel, shared: &Shared, request: &serde_json::Value) -> Result<(), Error> {
    let examiner = shared.examiner.as_ref().ok_or_else(|| {
        Error::Usage(
            "it answers no questions about its machine: start it as vmlane bench server --doctor".to_owned(),
        )
    })?;
    let (here, there) = channel.conn().ip_addresses();
    let answer = examiner(&Question { request, here, there }).map_err(Error::Usage)?;
    channel.send(&Message::Answer { answer })
}

fn check_proof(channel: &Channel, secret: &Secret, challenge: &str) -> Result<(), Error> {
    match channel.recv(ANSWER, "proving that it knows the secret")? {
        Message::Proof { proof } if secret.accepts(challenge, &proof) => Ok(()),
        Message::Proof { .. } => {
            std::thread::sleep(WRONG); // who guesses shall have time
            Err(Error::Usage("that is not the secret of this server (--secret-file)".into()))
        }
        other => Err(channel.unexpected(&other)),
    }
}

fn measure(channel: &Channel, server_address: &Address, spec: &Arc<Spec>) -> Result<(), Error> {
    let from = channel.conn().peer_host().map_err(Error::io("asking who the client is"))?;
    let buffers = Buffers { size: spec.remote_buffer, maximum: spec.local_buffer.max(spec.remote_buffer) };
    if spec.datagrams {
        let (group, sizes) = datagram_group(channel, server_address, spec, from, buffers)?;
        return perform(channel, spec, group, &Mutex::new(sizes), &[]);
    }
    let address = channel.conn().data_address(server_address, spec.data_port.unwrap_or(0))?;
    let listener = Listener::bind(&address, buffers)?;
    listener.set_timeout(POLL_INTERVAL).map_err(Error::io("preparing the data listener"))?;
    channel.send(&Message::Ready { port: listener.number(), ports: Vec::new(), token: 0 })?;

    let seen = Arc::new(Mutex::new(None));
    let mut all = Vec::new();
    let group = if spec.test == Test::Crr {
        accepting_group(spec, listener, from, seen.clone())?
    } else {
        let conns = gather(channel, &listener, spec, from)?;
        drop(listener); // no further connection is expected
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = of_session(&conns, 0)?.buffers().ok();
        all.clone_from(&conns);
        stream_group(spec, conns)?
    };
    perform(channel, spec, group, &seen, &all)
}

/// From sessions that wait to the result.
fn perform(
    channel: &Channel,
    spec: &Spec,
    group: SessionGroup,
    seen: &Mutex<Option<BufferSizes>>,
    conns: &[Arc<Conn>],
) -> Result<(), Error> {
    let sizes = current(seen).unwrap_or(BufferSizes { send: 0, recv: 0 });
    channel.send(&Message::Accepted { send_buffer: sizes.send, recv_buffer: sizes.recv })?;
    match channel.recv(START, "getting ready to start")? {
        Message::Start => {}
        other => return Err(channel.unexpected(&other)),
    }
    group.go();
    channel.send(&Message::Started)?;
    let mut outcome = watch(channel, spec, group, seen)?;
    outcome.tcp = TcpSummary::of(conns.iter().filter_map(|conn| conn.tcp_state()));
    channel.send(&Message::Result(outcome))
}

/// From the start signal to the result.
fn watch(
    channel: &Channel,
    spec: &Spec,
    group: SessionGroup,
    seen: &Mutex<Option<BufferSizes>>,
) -> Result<Outcome, Error> {
    channel.wait(spec.warmup())?;
    let opened = cpu::sample();
    let early = if spec.cooldown > 0.0 {
        channel.wait(spec.length())?;
        Some(cpu::sample())
    } else {
        None
    };
    let left = spec.warmup() + spec.length() + spec.cooldown() + OVERTIME;
    match channel.recv(left, "measuring")? {
        Message::Finish => {}
        other => return Err(channel.unexpected(&other)),
    }
    // A server of crr or datagrams is idle from here on and notices at its next poll; a stream may still be
    // arriving.
    let unbounded = spec.test == Test::Crr || spec.datagrams;
    let early = early.or_else(|| unbounded.then(cpu::sample));
    if unbounded {
        group.stop();
    }
    let sessions = group.join()?;
    let closed = early.unwrap_or_else(cpu::sample);
    let sizes = current(seen);
    Ok(Outcome {
        tallies: sessions.iter().map(|session| session.tally).collect(),
        machine: cpu::between(opened, closed),
        tcp: None,
        datagrams: sessions.iter().filter_map(|session| session.datagrams).collect(),
        send_buffer: sizes.map(|sizes| sizes.send),
        recv_buffer: sizes.map(|sizes| sizes.recv),
    })
}

fn current(seen: &Mutex<Option<BufferSizes>>) -> Option<BufferSizes> {
    *seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the client's data connections, and refuses all others.
fn gather(
    channel: &Channel,
    listener: &Listener,
    spec: &Spec,
    from: PeerHost,
) -> Result<Vec<Arc<Conn>>, Error> {
    let until = Instant::now() + ARRIVAL;
    let mut conns = Vec::new();
    while conns.len() < spec.sessions as usize {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Usage(format!(
                "only {} of {} data connections arrived within {} s: is {} reachable, or would -P with a port that is help?",
                conns.len(),
                spec.sessions,
                ARRIVAL.as_secs(),
                listener.address()
            )));
        }
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(channel.conn(), PollFlags::IN)];
        let asking = Error::io("listening to the client");
        let early = channel.conn().is_readable(false).map_err(asking)?;
        match poll(&mut fds, Some(if early { &AT_ONCE } else { &timeout })) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting for data connections")(error.into())),
        }
        // A client that speaks now is giving up, or gone.
        let polled = !fds[1].revents().is_empty();
        if early || channel.conn().is_readable(polled).map_err(Error::io("listening to the client"))? {
            let message = channel.recv(ANSWER, "connecting its sessions")?;
            return Err(channel.unexpected(&message));
        }
        if !fds[0].revents().is_empty() {
            match listener.accept() {
                Ok(conn) if conn.peer_host().ok() == Some(from) => {
                    prepare(&conn, spec)?;
                    conns.push(Arc::new(conn));
                }
                Ok(_) => {}
                Err(error) if crate::transport::is_timeout(&error) => {}
                Err(error) => return Err(Error::io("accepting a data connection")(error)),
            }
        }
    }
    Ok(conns)
}

fn prepare(conn: &Conn, spec: &Spec) -> Result<(), Error> {
    conn.set_timeout(load::IDLE).map_err(Error::io("preparing a data connection"))?;
    if spec.nodelay {
        conn.set_nodelay().map_err(Error::io("setting nodelay (-D)"))?;
    }
    Ok(())
}

fn stream_group(spec: &Arc<Spec>, conns: Vec<Arc<Conn>>) -> Result<SessionGroup, Error> {
    let theirs = conns.clone();
    SessionGroup::assemble(spec, conns, move |session, cue| {
        let conn = of_session(&theirs, session)?;
        let (doing, done) = match cue.spec.test {
            Test::Stream => ("receiving", load::receive(conn, cue)),
            Test::Maerts => ("sending", load::send(conn, cue)),
            Test::Bidir => ("sending and receiving", load::both(conn, cue)),
            Test::Rr | Test::Crr => ("answering", load::answer(conn, cue)),
        };
        done.map_err(|cause| {
            conn.hang_up(); // the client must not wait for what will not come
            Error::Data { session, doing, cause: load::explain(cause) }
        })
    })
}

/// A socket a session for datagrams; they wait for the client's hellos.
fn datagram_group(
    channel: &Channel,
    server_address: &Address,
    spec: &Arc<Spec>,
    from: PeerHost,
    buffers: Buffers,
) -> Result<(SessionGroup, Option<BufferSizes>), Error> {
    if matches!(server_address, Address::Unix(_)) {
        return Err(Error::Usage("datagrams go over UDP or vsock: use udp: or vsock-dgram:".into()));
    }
    let token = u32::from_le_bytes(auth::random::<4>()?);
    let (mut conns, mut ports) = (Vec::new(), Vec::new());
    for session in 0..spec.sessions {
        let port = spec.data_port.map_or(0, |port| port.saturating_add(session));
        let address = channel.conn().data_address(server_address, port)?;
        let (conn, port) = DatagramConn::bind(&address, buffers, token)?;
        conns.push(Arc::new(conn));
        ports.push(port);
    }
    if spec.dont_fragment {
        let set = conns.iter().try_for_each(|conn| conn.set_dont_fragment());
        set.map_err(Error::io("setting the don't-fragment bit"))?;
    }
    let sizes = of_session(&conns, 0)?.buffers().ok();
    channel.send(&Message::Ready { port: 0, ports, token })?;
    let until = Instant::now() + ARRIVAL;
    for (met, conn) in conns.iter().enumerate() {
        if !conn.wait_for_hello(from, until).map_err(Error::io("waiting for the client's datagrams"))? {
            return Err(Error::Usage(format!(
                "the datagrams of only {met} of {} sessions arrived within {} s: is the way open, or would -P with \
                 a port that is help?",
                spec.sessions,
                ARRIVAL.as_secs()
            )));
        }
    }
    let group = SessionGroup::assemble(spec, Vec::new(), move |session, cue| {
        let conn = of_session(&conns, session)?;
        let (doing, done) = match cue.spec.test {
            Test::Maerts => ("sending datagrams", load::send_datagrams(conn, cue)),
            Test::Bidir => ("sending and receiving datagrams", load::both_datagrams(conn, cue)),
            Test::Rr => ("answering datagrams", load::answer_datagrams(conn, cue)),
            _ => ("receiving datagrams", load::receive_datagrams(conn, cue)),
        };
        done.map_err(|cause| Error::Data { session, doing, cause: load::explain(cause) })
    })?;
    Ok((group, sizes))
}

fn accepting_group(
    spec: &Arc<Spec>,
    listener: Listener,
    from: PeerHost,
    seen: Arc<Mutex<Option<BufferSizes>>>,
) -> Result<SessionGroup, Error> {
    let note = move |sizes| *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(sizes);
    SessionGroup::assemble(spec, Vec::new(), move |session, cue: &Cue| -> Result<Session, Error> {
        load::accept_and_answer(&listener, from, &note, cue).map_err(Error::data(session, "accepting"))
    })
}
