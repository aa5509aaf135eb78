//! The asking end: one call, one measurement.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::address::{Address, Family, IpVersion, Target};
use crate::auth::Secret;
use crate::control::{ANSWER, Channel, Message};
use crate::cpu::{self, Machine};
use crate::datagrams::Header;
use crate::error::Error;
use crate::load;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::report::{Local, Report, TcpSummary};
use crate::session_group::{Session, SessionGroup, of_session};
use crate::spec::{Limits, Spec, Test};
use crate::transport::{self, BufferSizes, Buffers, Conn, DatagramConn, Sent};

/// For the server to see the data connections that we know to be up.
const ARRIVAL: Duration = Duration::from_secs(15);
/// For the server's sessions to end after ours did: what is under way must still arrive.
const RESULT: Duration = Duration::from_secs(60);
/// Between two hellos of a session whose datagrams the server has not seen yet.
const HELLO: Duration = Duration::from_millis(100);

/// What a client needs beside the test itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shared with a server that asks for it.
    pub secret: Option<Secret>,
    /// Only addresses of this version of IP, where a name has several.
    pub ip: Option<IpVersion>,
    /// Nothing is waited for any longer than until then.
    pub until: Option<Instant>,
}

/// How often to report progress, and to whom.
pub type Every<'a> = (Duration, Box<dyn FnMut(&Progress) + 'a>);

/// What is called while a test runs.
#[derive(Default)]
pub struct Hooks<'a> {
    /// Both ends are ready: returns when the test may start.
    pub before_start: Option<Box<dyn FnMut() -> Result<(), Error> + 'a>>,
    /// Once after the warm-up, and then every so often.
    pub every: Option<Every<'a>>,
}

/// Runs the test against the server at `to` and returns what both ends saw.
pub fn run(to: &Target, spec: &Spec, options: &Options, hooks: &mut Hooks<'_>) -> Result<Report, Error> {
    let mut spec = complete(spec, to.control.family());
    spec.datagrams = to.datagrams;
    let spec = Arc::new(spec);
    spec.check(&Limits::default(), "vmlane bench")?;
    let buffers = Buffers { size: spec.local_buffer, maximum: spec.local_buffer.max(spec.remote_buffer) };
    let control = match options.ip {
        Some(version) => transport::only(&to.control, version)?,
        None => to.control.clone(),
    };

    let channel = greet(&control, options, &Message::Test((*spec).clone()))?;
    let Ready { port, ports, token } = match channel.recv(ANSWER, "preparing the test")? {
        Message::Ready { port, ports, token } => Ready { port, ports, token },
        other => return Err(channel.unexpected(&other)),
    };
    let assembled = if spec.datagrams {
        assemble_datagrams(&channel, (&control, options.until), &spec, buffers, &ports, token)?
    } else {
        let data = transport::announced(&control, port);
        assemble(&data, &spec, buffers, options.until)?
    };
    let (send_buffer, recv_buffer) = match channel.recv(ARRIVAL, "accepting the data connections")? {
        Message::Accepted { send_buffer, recv_buffer } => (send_buffer, recv_buffer),
        other => return Err(channel.unexpected(&other)),
    };
    if let Some(before_start) = &mut hooks.before_start {
        before_start()?;
    }
    channel.send(&Message::Start)?;
    match channel.recv(ANSWER, "starting")? {
        Message::Started => {}
        other => return Err(channel.unexpected(&other)),
    }
    let Assembled { group, conns, sizes } = assembled;
    let started_at = SystemTime::now();
    let start = group.go();
    let (opened, early, intervals) = observe(&group, start, &spec, hooks);
    let sessions = group.join();
    let closed = early.unwrap_or_else(cpu::sample);
    let tcp = TcpSummary::of(conns.iter().filter_map(|conn| conn.tcp_state()));

    let (sessions, mut remote) = finish(&channel, sessions)?;
    remote.send_buffer = remote.send_buffer.or(Some(send_buffer));
    remote.recv_buffer = remote.recv_buffer.or(Some(recv_buffer));
    let machine: Option<Machine> = cpu::between(opened, closed);
    let since = started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let started_at_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let local = Local { sessions, machine, tcp, sizes, intervals, started_at_ns };
    Report::new(to, &spec, &local, &remote)
}

/// The answer of a server to a question about its machine, and the addresses of the connection it came over.
#[derive(Debug)]
pub struct Reply {
    pub answer: serde_json::Value,
    pub here: Option<IpAddr>,
    pub there: Option<IpAddr>,
}

/// Asks a server of `vmlane bench server --doctor` something about its machine.
pub fn ask(
    to: &Address,
    options: &Options,
    request: &serde_json::Value,
    timeout: Duration,
) -> Result<Reply, Error> {
    Questions::new(to, options).ask(request, timeout)
}

/// Asks one question after another over the same connection.
pub struct Questions<'a> {
    to: &'a Address,
    options: &'a Options,
    channel: Option<Channel>,
}

impl<'a> Questions<'a> {
    pub fn new(to: &'a Address, options: &'a Options) -> Questions<'a> {
        Questions { to, options, channel: None }
    }

    /// The same question as [`ask`]. After an error, the next one makes a connection of its own.
    pub fn ask(&mut self, request: &serde_json::Value, timeout: Duration) -> Result<Reply, Error> {
        let question = Message::Ask { request: request.clone() };
        if let Some(channel) = self.channel.take() {
            match channel.send(&question).and_then(|()| self.receive_reply(channel, timeout)) {
                // A server of before hangs up after an answer.
                Err(Error::Gone { .. }) => {}
                other => return other,
            }
        }
        let control = match self.options.ip {
            Some(version) => transport::only(self.to, version)?,
            None => self.to.clone(),
        };
        let channel = greet(&control, self.options, &question)?;
        self.receive_reply(channel, timeout)
    }

    fn receive_reply(&mut self, channel: Channel, timeout: Duration) -> Result<Reply, Error> {
        match channel.recv(timeout, "examining its machine")? {
            Message::Answer { answer } => {
                let (here, there) = channel.conn().ip_addresses();
                self.channel = Some(channel);
                Ok(Reply { answer, here, there })
            }
            other => Err(channel.unexpected(&other)),
        }
    }
}

struct Ready {
    port: u32,
    ports: Vec<u32>,
    token: u32,
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

/// Greets the server, proves what is to be proven, and sends the `first` message.
fn greet(to: &Address, options: &Options, first: &Message) -> Result<Channel, Error> {
    let conn = Conn::connect_control(to, options.until)?;
    let channel = Channel::new(conn, to.to_string()).until(options.until);
    match &options.secret {
        Some(_) => channel.send(&Message::hello())?,
        None => channel.send_all(&[&Message::hello(), first])?,
    }
    let challenge = match channel.recv_hello("greeting") {
        // A peer that is silent or hangs up at a greeting is hardly a bench server.
        Err(Error::Gone { peer, .. }) => {
            return Err(Error::WrongPeer { peer, why: "it hung up at our greeting".into() });
        }
        other => other?,
    };
    match (challenge, &options.secret) {
        (Some(challenge), Some(secret)) => {
            channel.send_all(&[&Message::Proof { proof: secret.prove(&challenge)? }, first])?;
        }
        (Some(_), None) => {
            return Err(Error::Usage(format!(
                "{to} serves only those who know its secret: give --secret-file"
            )));
        }
        // A server that asks for no secret serves every client.
        (None, Some(_)) => channel.send(first)?,
        (None, None) => {}
    }
    Ok(channel)
}

/// The sessions, connected and waiting for the start; with the buffers of the first.
struct Assembled {
    group: SessionGroup,
    /// Stream connections, to be asked afterwards how they fared.
    conns: Vec<Arc<Conn>>,
    sizes: BufferSizes,
}

fn assemble(
    data: &Address,
    spec: &Arc<Spec>,
    buffers: Buffers,
    until: Option<Instant>,
) -> Result<Assembled, Error> {
    if spec.test == Test::Crr {
        // One connection ahead of the test shows the buffers that all of them will have; the server's
        // end drops it as one that asks nothing.
        let sizes = Conn::connect(data, buffers)?.buffers().map_err(Error::io("reading the buffer sizes"))?;
        let data = data.clone();
        let work = move |session, cue: &_| load::connect_and_ask(session, &data, buffers, cue);
        return Ok(Assembled {
            group: SessionGroup::assemble(spec, Vec::new(), work)?,
            conns: Vec::new(),
            sizes,
        });
    }
    let mut conns = Vec::new();
    for session in 0..spec.sessions as usize {
        let conn = Conn::connect_until(data, buffers, until)?;
        conn.set_timeout(load::IDLE).map_err(Error::data(session, "preparing the connection"))?;
        if spec.nodelay {
            conn.set_nodelay().map_err(Error::data(session, "setting nodelay (-D)"))?;
        }
        conns.push(Arc::new(conn));
    }
    let sizes = of_session(&conns, 0)?.buffers().map_err(Error::io("reading the buffer sizes"))?;
    let theirs = conns.clone();
    let group = SessionGroup::assemble(spec, conns.clone(), move |session, cue| {
        let conn = of_session(&theirs, session)?;
        let (doing, done) = match cue.spec.test {
            Test::Stream => ("sending", load::send(conn, cue)),
            Test::Maerts => ("receiving", load::receive(conn, cue)),
            Test::Bidir => ("sending and receiving", load::both(conn, cue)),
            Test::Rr | Test::Crr => ("asking", load::ask(conn, cue)),
        };
        done.map_err(|cause| {
            conn.hang_up(); // the server must not wait for what will not come
            Error::Data { session, doing, cause: load::explain(cause) }
        })
    })?;
    Ok(Assembled { group, conns, sizes })
}

/// The same for datagrams: each session sends a hello until the server has seen all of them.
fn assemble_datagrams(
    channel: &Channel,
    (control, last): (&Address, Option<Instant>),
    spec: &Arc<Spec>,
    buffers: Buffers,
    ports: &[u32],
    token: u32,
) -> Result<Assembled, Error> {
    if ports.len() != spec.sessions as usize {
        return Err(Error::WrongPeer {
            peer: control.to_string(),
            why: format!("it has {} ports for {} sessions", ports.len(), spec.sessions),
        });
    }
    let connect = |&port: &u32| {
        DatagramConn::connect(&transport::announced(control, port), buffers, token).map(Arc::new)
    };
    let conns = ports.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    if spec.dont_fragment {
        let set = conns.iter().try_for_each(|conn| conn.set_dont_fragment());
        set.map_err(Error::io("setting the don't-fragment bit"))?;
    }
    let sizes = of_session(&conns, 0)?.buffers().map_err(Error::io("reading the buffer sizes"))?;
    let hello = Header::hello(token).to_bytes();
    let arrived = Instant::now() + ARRIVAL;
    let until = last.map_or(arrived, |last| last.min(arrived));
    while Instant::now() < until {
        for (session, conn) in conns.iter().enumerate() {
            match conn.send(&hello) {
                Ok(Sent::Yes | Sent::Refused) => {}
                Err(cause) => return Err(Error::Data { session, doing: "sending hellos", cause }),
            }
        }
        if channel.wait(HELLO)? {
            break;
        }
    }
    let group = SessionGroup::assemble(spec, Vec::new(), move |session, cue| {
        let conn = of_session(&conns, session)?;
        let (doing, done) = match cue.spec.test {
            Test::Maerts => ("receiving datagrams", load::receive_datagrams(conn, cue)),
            Test::Rr => ("asking by datagrams", load::ask_datagrams(conn, cue)),
            Test::Bidir => ("sending and receiving datagrams", load::both_datagrams(conn, cue)),
            _ => ("sending datagrams", load::send_datagrams(conn, cue)),
        };
        done.map_err(|cause| Error::Data { session, doing, cause: load::explain(cause) })
    })?;
    Ok(Assembled { group, conns: Vec::new(), sizes })
}

type CpuSample = Option<cpu::Sample>;

/// Observes until the window closes: the machine's CPUs when it opened, those when it closed if senders go on
/// after it, and what moved meanwhile.
fn observe(
    group: &SessionGroup,
    start: Instant,
    spec: &Spec,
    hooks: &mut Hooks<'_>,
) -> (CpuSample, Option<CpuSample>, Vec<Progress>) {
    let opens = start + spec.warmup();
    let ends = opens + spec.length();
    let mut intervals = Vec::new();
    let mut last = (start, (0, 0));
    let mut note_progress = |now: Instant, hooks: &mut Hooks<'_>| {
        let Some((_, callback)) = &mut hooks.every else { return };
        let sum = group.progress();
        let (then, before) = std::mem::replace(&mut last, (now, sum));
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let at = |moment: Instant| {
            moment.saturating_duration_since(opens).as_secs_f64()
                - opens.saturating_duration_since(moment).as_secs_f64()
        };
        let (bytes, transactions) = (sum.0 - before.0, sum.1 - before.1);
        let progress = Progress {
            from: at(then),
            to: at(now),
            bytes,
            transactions,
            throughput_bps: bytes as f64 * 8.0 / seconds,
            transactions_per_second: transactions as f64 / seconds,
        };
        callback(&progress);
        intervals.push(progress);
    };
    sleep_until(group, opens);
    let opened = cpu::sample();
    note_progress(Instant::now(), hooks);
    let every = hooks.every.as_ref().map(|(every, _)| *every);
    let mut next = opens;
    while let Some(every) = every.filter(|_| next < ends && !group.is_done()) {
        next = (next + every).min(ends);
        sleep_until(group, next);
        note_progress(Instant::now(), hooks);
    }
    let early = (spec.cooldown > 0.0).then(|| {
        sleep_until(group, ends);
        cpu::sample()
    });
    (opened, early, intervals)
}

/// Sleeps, but no longer than any session still works.
fn sleep_until(group: &SessionGroup, until: Instant) {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || group.is_done() {
            return;
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// Notifies the server that our sessions are done, and gets what its own saw. When ours failed, it is asked
/// anyway: a broken pipe here may have its reason there.
fn finish(
    channel: &Channel,
    sessions: Result<Vec<Session>, Error>,
) -> Result<(Vec<Session>, Outcome), Error> {
    let timeout = if sessions.is_ok() { RESULT } else { ANSWER };
    let answer = channel.send(&Message::Finish).and_then(|()| channel.recv(timeout, "reporting its side"));
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
