//! A unix socket that VMMs connect to, and the thread that serves them one after the other; or one where a
//! VMM listens, and that is connected to again and again.
//!
//! One device, one VMM at a time: a second one is turned away while the first is served. A VMM that
//! was killed and started again may connect before the end of its previous process has been noticed, so
//! turning away waits a moment first. The device lives in the serving thread, across sessions.
//!
//! Root, the daemon's own user and the VM's owner may connect. Other processes that get to the socket (its
//! access control list is out of date, or was changed) are not served: their connection is closed, and
//! nothing else changes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use vmlane_access::{Owner, Peer, Trust};
use vmlane_device::pci::PciDevice;
use vmlane_device::virtio::vhost::VhostDevice;
use vmlane_port::role::{self, Role};
use vmlane_state::Scope;

use crate::handle::SessionHandle;
use crate::irq::IrqSet;
use crate::stats::SessionStats;
use crate::vfio_user::{self, Prepared, refuse};
use crate::vhost_user::{self, RingLines};
use vmlane_port::LogLimit;

/// Why a socket cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("{path}: exists and is not a socket")]
    NotSocket { path: PathBuf },
    #[error("{path}: another process serves this socket")]
    InUse { path: PathBuf },
    #[error("{path}: {what}: {source}")]
    Host { path: PathBuf, what: &'static str, source: io::Error },
}

/// A socket that is bound and listening; only its owner may connect.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Binds `path`, creating its directory and replacing a socket that is no longer served.
    pub fn bind(path: impl Into<PathBuf>) -> Result<Listener, ListenError> {
        let path = path.into();
        let host = |what| {
            let path = path.clone();
            move |source: io::Error| ListenError::Host { path, what, source }
        };
        make_directory(&path)?;
        remove_stale(&path)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|error| host("creating a socket")(error.into()))?;
        let address =
            SocketAddrUnix::new(&path).map_err(|error| host("using it as an address")(error.into()))?;
        rustix::net::bind(&socket, &address).map_err(|error| host("binding")(error.into()))?;
        // Before listening: until then no process can connect, whatever the umask was.
        rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR)
            .map_err(|error| host("setting its mode")(error.into()))?;
        rustix::net::listen(&socket, 4).map_err(|error| host("listening")(error.into()))?;
        Ok(Listener { socket, path })
    }

    /// Uses the socket that a previous daemon bound to `path`; `None` if it no longer exists.
    pub fn adopt(path: impl Into<PathBuf>, socket: OwnedFd) -> Option<Listener> {
        let path = path.into();
        let address = rustix::net::getsockname(&socket).ok()?;
        let address = SocketAddrUnix::try_from(address).ok()?;
        let bound = address.path_bytes()? == path.as_os_str().as_encoded_bytes();
        (bound
            && rustix::net::sockopt::socket_acceptconn(&socket).ok()?
            && std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.file_type().is_socket()))
        .then_some(Listener { socket, path })
    }

    /// The socket, to be held for the next daemon.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Serves `device` to each VMM that connects, on two threads named after `name`.
    pub fn serve(
        self,
        name: &str,
        device: Box<dyn PciDevice>,
        irqs: Arc<IrqSet>,
        stats: Arc<SessionStats>,
    ) -> io::Result<Server> {
        self.serve_on(name, device, irqs, stats, Scope::none(), None)
    }

    /// The same with what the next daemon needs held in `scope`. `prepared`, a previous daemon's VMM, is
    /// served first, once [`Server::go`] was called.
    pub fn serve_on(
        self,
        name: &str,
        device: Box<dyn PciDevice>,
        irqs: Arc<IrqSet>,
        stats: Arc<SessionStats>,
        scope: Scope,
        prepared: Option<Prepared>,
    ) -> io::Result<Server> {
        let served = PciServed { device, irqs, stats: stats.clone(), scope, prepared };
        let Listener { socket, path } = self;
        serve_any(Entrance::Listen(Arc::new(socket)), path, name, "vfu", Box::new(served), stats)
    }
}

/// A socket where the VMM listens, to be connected to whenever it does.
#[derive(Debug)]
pub struct Caller {
    path: PathBuf,
}

impl Caller {
    /// Makes the directory, for the VMM to bind `path` in.
    pub fn new(path: impl Into<PathBuf>) -> Result<Caller, ListenError> {
        let path = path.into();
        make_directory(&path)?;
        Ok(Caller { path })
    }
}

/// Either end of a vhost-user socket.
#[derive(Debug)]
pub enum VhostEnd {
    Listens(Listener),
    Calls(Caller),
}

impl VhostEnd {
    /// Serves `device`; `lines` are those that it was made with.
    pub fn serve(
        self,
        name: &str,
        device: Box<dyn VhostDevice>,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
    ) -> io::Result<Server> {
        self.serve_on(name, device, lines, stats, Scope::none(), None)
    }

    /// The same with what the next daemon needs held in `scope`. `prepared`, a previous daemon's front end
    /// that `device` has taken over, is served first, once [`Server::go`] was called.
    pub fn serve_on(
        self,
        name: &str,
        device: Box<dyn VhostDevice>,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
        scope: Scope,
        prepared: Option<vhost_user::Prepared>,
    ) -> io::Result<Server> {
        let served = Box::new(VhostServed { device, lines, stats: stats.clone(), scope, prepared });
        let (entrance, path) = match self {
            VhostEnd::Listens(Listener { socket, path }) => (Entrance::Listen(Arc::new(socket)), path),
            VhostEnd::Calls(Caller { path }) => (Entrance::Call, path),
        };
        serve_any(entrance, path, name, "vhu", served, stats)
    }
}

/// How VMMs come.
enum Entrance {
    Listen(Arc<OwnedFd>),
    Call,
}

fn serve_any(
    entrance: Entrance,
    path: PathBuf,
    name: &str,
    kind: &str,
    served: Box<dyn Served>,
    stats: Arc<SessionStats>,
) -> io::Result<Server> {
    let refuse = served.refusal();
    let held = served.is_prepared();
    let waiting = held.then_some(Arrival::Prepared);
    let state = Mutex::new(AcceptorState { waiting, held, ..AcceptorState::default() });
    let acceptor = Arc::new(Acceptor {
        name: name.to_owned(),
        user: rustix::process::geteuid().as_raw(),
        owner: Mutex::new(None),
        state,
        changed: Condvar::new(),
        stats,
        refuse,
        turned_away: Mutex::new(None),
    });
    let serving = {
        let acceptor = acceptor.clone();
        spawn(kind, name, Role::Session, move || acceptor.serve(served))?
    };
    let (letting_in, socket): (Box<dyn FnOnce() + Send>, _) = match entrance {
        Entrance::Listen(socket) => {
            let (acceptor, shared) = (acceptor.clone(), socket.clone());
            (Box::new(move || acceptor.accept(&shared)), Some(socket))
        }
        Entrance::Call => {
            let (acceptor, path) = (acceptor.clone(), path.clone());
            (Box::new(move || acceptor.call(&path)), None)
        }
    };
    let mut server = Server { acceptor, socket, path, threads: vec![serving] };
    server.threads.push(spawn("acc", name, Role::Acceptor, letting_in)?);
    Ok(server)
}

/// What an acceptor serves: a device and its protocol.
trait Served: Send {
    /// A session with the VMM that has connected, and how to run it to its end; the result has why it ended.
    fn open(&mut self, arrival: Arrival) -> io::Result<(SessionHandle, Run<'_>)>;

    /// Is there a VMM of a previous daemon?
    fn is_prepared(&self) -> bool;

    /// How a second VMM is turned away.
    fn refusal(&self) -> fn(UnixStream);
}

type Run<'s> = Box<dyn FnOnce() -> String + 's>;

struct PciServed {
    device: Box<dyn PciDevice>,
    irqs: Arc<IrqSet>,
    stats: Arc<SessionStats>,
    scope: Scope,
    prepared: Option<Prepared>,
}

impl Served for PciServed {
    fn open(&mut self, arrival: Arrival) -> io::Result<(SessionHandle, Run<'_>)> {
        let (device, irqs, stats) = (self.device.as_mut(), self.irqs.clone(), self.stats.clone());
        let session = match (arrival, self.prepared.take()) {
            (Arrival::Prepared, Some(prepared)) => vfio_user::Session::resume(prepared, device, irqs, stats),
            (Arrival::New(stream), _) => vfio_user::Session::new(stream, device, irqs, stats, &self.scope)?,
            (Arrival::Prepared, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok((session.handle(), Box::new(|| session.run().to_string())))
    }

    fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    fn refusal(&self) -> fn(UnixStream) {
        refuse
    }
}

struct VhostServed {
    device: Box<dyn VhostDevice>,
    lines: Arc<RingLines>,
    stats: Arc<SessionStats>,
    scope: Scope,
    prepared: Option<vhost_user::Prepared>,
}

impl Served for VhostServed {
    fn open(&mut self, arrival: Arrival) -> io::Result<(SessionHandle, Run<'_>)> {
        let (device, lines, stats) = (self.device.as_mut(), self.lines.clone(), self.stats.clone());
        let session = match (arrival, self.prepared.take()) {
            (Arrival::Prepared, Some(prepared)) => {
                vhost_user::Session::resume(prepared, device, lines, stats)
            }
            (Arrival::New(stream), _) => vhost_user::Session::new(stream, device, lines, stats, &self.scope)?,
            (Arrival::Prepared, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok((session.handle(), Box::new(|| session.run().to_string())))
    }

    fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// A front end takes a closed connection for one to be tried again.
    fn refusal(&self) -> fn(UnixStream) {
        drop
    }
}

/// A device on offer. Dropping it stops the session, ends the threads and removes the socket.
pub struct Server {
    acceptor: Arc<Acceptor>,
    /// None where the VMM listens: the name is its own then, too.
    socket: Option<Arc<OwnedFd>>,
    path: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// A previous daemon's VMM may be served now.
    pub fn go(&self) {
        self.acceptor.state.lock().held = false;
        self.acceptor.changed.notify_all();
    }

    /// Ends the threads as they are and leaves everything to the next daemon.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Serves a connection that was accepted elsewhere. Gives it back if a VMM is being served.
    pub fn adopt(&self, stream: UnixStream) -> Result<(), UnixStream> {
        self.acceptor.offer(stream)
    }

    /// From now on processes of `owner` may connect, too, and those of the owner before no more. Sessions
    /// stay.
    pub fn set_owner(&self, owner: Option<Owner>) {
        *self.acceptor.owner.lock() = owner;
    }

    /// True while a VMM is connected.
    pub fn connected(&self) -> bool {
        self.acceptor.state.lock().connected()
    }

    /// The process that was turned away within the last minute because another one is connected as the VMM.
    pub fn turned_away(&self) -> Option<u32> {
        let last = *self.acceptor.turned_away.lock();
        let (_, pid) = last.filter(|(at, _)| at.elapsed() < Acceptor::REMEMBERED)?;
        (self.connected() && pid != 0).then_some(pid)
    }

    /// The process of the VMM that is connected. See [`SessionHandle::peer_pid`].
    pub fn peer_pid(&self) -> Option<u32> {
        let session = self.acceptor.state.lock().session.clone();
        session.as_ref().and_then(SessionHandle::peer_pid)
    }

    /// Ends the session if its VMM has cut its guest's memory short. See [`SessionHandle::check_memory`].
    pub fn check_memory(&self) {
        let session = self.acceptor.state.lock().session.clone();
        session.iter().for_each(SessionHandle::check_memory);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Same as dropping it.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.acceptor.close();
        if let Some(socket) = &self.socket {
            // Wakes the accepting thread; the error of a socket already shut down means the same.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
            // No VMM can connect any more, so the name is of no use; it may have been removed already.
            let _ = std::fs::remove_file(&self.path);
        }
        let deadline = Instant::now() + Acceptor::GRACE;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // A thread that panicked has been reported by the panic hook.
                let _ = thread.join();
            } else {
                // It waits for a file of its VMM, perhaps for ever.
                tracing::error!(device = self.acceptor.name, "a thread does not end and is left behind");
            }
        }
    }
}

/// Where connections wait for the serving thread.
struct Acceptor {
    name: String,
    /// The daemon's own.
    user: u32,
    owner: Mutex<Option<Owner>>,
    state: Mutex<AcceptorState>,
    changed: Condvar,
    stats: Arc<SessionStats>,
    refuse: fn(UnixStream),
    /// When a second VMM was turned away last, and which process it was.
    turned_away: Mutex<Option<(Instant, u32)>>,
}

/// What is to be served next.
enum Arrival {
    New(UnixStream),
    /// A previous daemon's VMM.
    Prepared,
}

#[derive(Default)]
struct AcceptorState {
    waiting: Option<Arrival>,
    /// The waiting connection has to wait for other devices.
    held: bool,
    /// A session is being opened, without this lock: what was left by a previous daemon may take time.
    opening: bool,
    session: Option<SessionHandle>,
    closed: bool,
}

impl AcceptorState {
    fn busy(&self) -> bool {
        !self.closed && (self.waiting.is_some() || self.connected())
    }

    fn connected(&self) -> bool {
        self.opening || self.session.is_some()
    }
}

impl Acceptor {
    /// How long a new connection waits for the end of the previous one.
    const GRACE: Duration = Duration::from_secs(5);
    /// How long it is known that a VMM was turned away. One that tries again and again waits much less
    /// between two tries.
    const REMEMBERED: Duration = Duration::from_secs(60);
    /// How soon a VMM that could not be reached is tried again.
    const AGAIN: Duration = Duration::from_millis(200);

    fn offer(&self, stream: UnixStream) -> Result<(), UnixStream> {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.busy(), Acceptor::GRACE);
        if state.closed || state.busy() {
            return Err(stream);
        }
        state.waiting = Some(Arrival::New(stream));
        self.changed.notify_all();
        Ok(())
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting = None;
        if let Some(session) = &state.session {
            session.stop();
        }
        self.changed.notify_all();
    }

    /// May the process that has connected be served? If not: which one it is.
    fn admit(&self, stream: &OwnedFd) -> Result<(), String> {
        let peer = Peer::of(stream).map_err(|error| format!("a process whose user is unknown ({error})"))?;
        let owner = *self.owner.lock();
        if peer.uid == 0 || peer.uid == self.user || owner.is_some_and(|owner| owner.includes(&peer)) {
            return Ok(());
        }
        Err(format!("process {} of user {}", peer.pid, peer.uid))
    }

    fn accept(&self, socket: &OwnedFd) {
        let mut log = LogLimit::default();
        let mut strangers = LogLimit::default();
        while !self.state.lock().closed {
            match rustix::net::accept_with(socket, SocketFlags::CLOEXEC) {
                Ok(stream) => {
                    if let Err(stranger) = self.admit(&stream) {
                        self.stats.counts.refused_peers.inc();
                        drop(stream);
                        if let Some(held_back) = strangers.allow() {
                            tracing::warn!(held_back, "{stranger} is not the VM's owner and was refused");
                        }
                        continue;
                    }
                    if let Err(stream) = self.offer(stream.into()) {
                        // Before closing it, so that a VMM that sees it closed finds it counted.
                        self.stats.counts.refused.inc();
                        let pid =
                            Peer::of(&stream).ok().and_then(|peer| u32::try_from(peer.pid).ok()).unwrap_or(0);
                        *self.turned_away.lock() = Some((Instant::now(), pid));
                        (self.refuse)(stream);
                        if let Some(held_back) = log.allow() {
                            tracing::warn!(
                                pid,
                                held_back,
                                "a second VMM was refused: a device serves one at a time"
                            );
                        }
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // The socket was shut down to end this thread.
                Err(_) if self.state.lock().closed => {}
                Err(error) => {
                    if let Some(held_back) = log.allow() {
                        tracing::warn!(%error, held_back, "accepting a VMM");
                    }
                    // Out of descriptors, most likely: others must finish first.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Connects whenever no VMM is served, and retries until that succeeds.
    fn call(&self, path: &Path) {
        let mut log = LogLimit::default();
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| state.busy());
            if state.closed {
                return;
            }
            drop(state);
            match connect(path) {
                Ok(stream) => {
                    let _ = self.offer(stream);
                }
                // The VMM does not listen yet, or its queue is full.
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => {}
                Err(error) => {
                    if let Some(held_back) = log.allow() {
                        tracing::warn!(path = %path.display(), %error, held_back, "connecting to a VMM's socket");
                    }
                }
            }
            let mut state = self.state.lock();
            if !state.closed {
                self.changed.wait_for(&mut state, Acceptor::AGAIN);
            }
        }
    }

    fn serve(&self, mut served: Box<dyn Served>) {
        loop {
            let mut state = self.state.lock();
            self.changed
                .wait_while(&mut state, |state| (state.waiting.is_none() || state.held) && !state.closed);
            let Some(arrival) = state.waiting.take() else { return };
            state.opening = true;
            drop(state);
            let opened = served.open(arrival);
            let mut state = self.state.lock();
            state.opening = false;
            let (session, run) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    tracing::warn!(%error, "VMM connection unusable");
                    self.changed.notify_all();
                    continue;
                }
            };
            if state.closed {
                session.stop();
            }
            state.session = Some(session);
            drop(state);
            *self.turned_away.lock() = None;
            tracing::info!("VMM connected");
            // Device code is guarded inside; this keeps the thread for the next VMM should the
            // session's own code fail.
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(reason) => tracing::info!(%reason, "VMM disconnected"),
                Err(_) => tracing::error!("session failed; VMM disconnected"),
            }
            self.state.lock().session = None;
            self.changed.notify_all();
        }
    }
}

/// Never waits: a listener whose queue is full is one to try again.
fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    rustix::fs::fcntl_setfl(&socket, flags - rustix::fs::OFlags::NONBLOCK)?;
    Ok(socket.into())
}

/// Starts a thread of a device. All that is logged there names the device, whatever code runs on it.
fn spawn(
    kind: &str,
    device: &str,
    role: Role,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let named = tracing::error_span!("serving", device);
    std::thread::Builder::new().name(format!("{kind}-{device}")).spawn(move || {
        role::enter(role);
        let _named = named.entered();
        work();
    })
}

/// Only its owner may search it.
fn make_directory(path: &Path) -> Result<(), ListenError> {
    let Some(directory) = path.parent() else { return Ok(()) };
    let made = Trust::default().make(directory, 0o700);
    made.map(drop).map_err(|error| ListenError::Host {
        path: path.to_owned(),
        what: "its directory",
        source: error.about(directory),
    })
}

/// A socket file outlives the process that served it; remove it, but nothing else.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotSocket { path: path.to_owned() });
    }
    if UnixStream::connect(path).is_ok() {
        return Err(ListenError::InUse { path: path.to_owned() });
    }
    std::fs::remove_file(path).map_err(|source| ListenError::Host {
        path: path.to_owned(),
        what: "removing a stale socket",
        source,
    })
}
