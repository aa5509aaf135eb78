//! A stream to a VM, over a ring in shared memory.
//!
//! Bytes are copied once between this process and the VM, and a busy stream makes no system call. The
//! descriptor is a Unix socket that carries signals only: it polls readable and writable as the stream
//! is, if the stream does not block. Its reading half stays readable until a read has found nothing; its
//! writing half is made unwritable by filling it.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use vmlane_wire::host::{ANNOUNCED_RECEIVE, ANNOUNCED_SEND, FLAG_RING, Op, RING, Request, ended};

use crate::request::{Answer, Host};
use crate::ring::{self, Incoming, Outgoing, Voice};

/// How long a blocking call polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Polls between two yields.
const YIELD_EVERY: u32 = 64;
/// With this many CPUs or fewer, the daemon and the VM may need the very one that this thread polls on.
const FEW_CPUS: usize = 3;

/// A core that comes back so late was wanted by others, who would have it for a slice after each offer. So
/// for a while threads sleep at once: who sleeps is scheduled as soon as it is woken.
const WANTED: Duration = Duration::from_micros(50);
const YIELDING: Duration = Duration::from_millis(50);

fn yield_every() -> u32 {
    static EVERY: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    *EVERY.get_or_init(|| if cpus() <= FEW_CPUS { 1 } else { YIELD_EVERY })
}

/// A CID and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub cid: u32,
    pub port: u32,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.cid, self.port)
    }
}

/// A stream between this process and a VM. `&Stream` reads and writes too, so two threads may use one
/// stream, each its own way.
pub struct Stream {
    out: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
    voice: Voice,
    /// What was shut down here: `ANNOUNCED_*`.
    down: AtomicU64,
    signals: UnixStream,
    local: Address,
    peer: Address,
    /// The caller may poll the descriptor.
    polled: AtomicBool,
    nonblocking: AtomicBool,
    /// Which halves wait for a signal.
    waits: Halves<AtomicBool>,
    timeouts: Mutex<Halves<Option<Duration>>>,
    spin: Mutex<Spin>,
}

/// How long a blocking call polls.
struct Spin {
    most: Duration,
    /// Others want the core until then: it is yielded.
    yielding_until: Option<Instant>,
}

impl Spin {
    fn window(&self, now: Instant) -> Duration {
        if self.yielding_until.is_some_and(|until| now < until) { Duration::ZERO } else { self.most }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Reading,
    Writing,
}

/// One for each half.
#[derive(Default)]
struct Halves<T> {
    reading: T,
    writing: T,
}

impl<T> Halves<T> {
    fn of(&self, half: Half) -> &T {
        match half {
            Half::Reading => &self.reading,
            Half::Writing => &self.writing,
        }
    }

    fn other_than(&self, half: Half) -> &T {
        match half {
            Half::Reading => &self.writing,
            Half::Writing => &self.reading,
        }
    }

    fn set(&mut self, half: Half, value: T) {
        match half {
            Half::Reading => self.reading = value,
            Half::Writing => self.writing = value,
        }
    }
}

impl Stream {
    /// Connects to `port` of the VM with CID `cid`, through the daemon of [`Host::default`]. Errors are those
    /// of AF_VSOCK: ENODEV (no such VM, or no driver in it), ECONNRESET (no program listens), ETIMEDOUT,
    /// EACCES (not allowed).
    pub fn connect(cid: u32, port: u32) -> io::Result<Stream> {
        Stream::connect_by(&Host::default(), cid, port, Duration::from_secs(2))
    }

    /// The same through another daemon, or with another timeout.
    pub fn connect_by(host: &Host, cid: u32, port: u32, timeout: Duration) -> io::Result<Stream> {
        let millis = timeout.as_millis().clamp(1, 60_000) as u32;
        let (socket, mut answer) = host.ask(Request::new(Op::Connect, cid, port, millis, FLAG_RING))?;
        let memory = answer.fds.pop().ok_or_else(no_memory)?;
        let local = Address { cid: answer.cid, port: answer.port };
        Stream::new(socket, memory, local, Address { cid, port })
    }

    /// What a listener got.
    pub(crate) fn accepted(mut answer: Answer, local: Address) -> io::Result<Stream> {
        let (Some(memory), Some(socket)) = (answer.fds.pop(), answer.fds.pop()) else {
            return Err(no_memory());
        };
        let peer = Address { cid: answer.cid, port: answer.port };
        Stream::new(socket.into(), memory, local, peer)
    }

    fn new(signals: UnixStream, memory: OwnedFd, local: Address, peer: Address) -> io::Result<Stream> {
        // As small as it gets: filling it is how the descriptor becomes unwritable.
        rustix::net::sockopt::set_socket_send_buffer_size(&signals, 1)?;
        let (out, incoming) = ring::map(memory, RING)?;
        Ok(Stream {
            voice: out.voice(),
            down: AtomicU64::new(0),
            out: Mutex::new(out),
            incoming: Mutex::new(incoming),
            signals,
            local,
            peer,
            polled: AtomicBool::new(false),
            nonblocking: AtomicBool::new(false),
            waits: Default::default(),
            timeouts: Mutex::default(),
            spin: Mutex::new(Spin { most: SPIN, yielding_until: None }),
        })
    }

    /// This end's address.
    pub fn local_addr(&self) -> Address {
        self.local
    }

    pub fn peer_addr(&self) -> Address {
        self.peer
    }

    /// Bytes that fit into each direction's ring.
    pub fn buffer_size(&self) -> u64 {
        RING
    }

    /// Calls that cannot proceed fail with `WouldBlock`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::SeqCst);
        self.make_polled()
    }

    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Half::Reading, timeout)
    }

    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Half::Writing, timeout)
    }

    fn set_timeout(&self, half: Half, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.timeouts.lock().set(half, timeout);
        Ok(())
    }

    /// How long a blocking call polls before it sleeps: more costs CPU, less costs latency.
    pub fn set_spin(&self, spin: Duration) {
        self.spin.lock().most = spin;
    }

    /// Ends one direction or both. The peer reads what was written, then the end. `Both` wakes any thread
    /// that is blocked on this stream in another thread.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let what = match how {
            Shutdown::Read => ANNOUNCED_RECEIVE,
            Shutdown::Write => ANNOUNCED_SEND,
            Shutdown::Both => ANNOUNCED_RECEIVE | ANNOUNCED_SEND,
        };
        self.down.fetch_or(what, Ordering::SeqCst);
        self.voice.announce_end(what);
        self.signal();
        if how == Shutdown::Both {
            // Nothing is left to be signalled: the daemon takes what was written and hangs up.
            rustix::net::shutdown(&self.signals, rustix::net::Shutdown::Both)?;
        }
        Ok(())
    }

    fn is_down(&self, what: u64) -> bool {
        self.down.load(Ordering::SeqCst) & what != 0
    }

    /// Is there something to read, or the end? If not, the descriptor polls readable once there is.
    pub fn ready(&self) -> io::Result<bool> {
        self.make_polled()?;
        let incoming = self.incoming.lock();
        if incoming.arm()? || self.is_down(ANNOUNCED_RECEIVE) {
            return Ok(true);
        }
        match self.drain(Half::Reading) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(true),
            done => done.and_then(|()| incoming.arm()),
        }
    }

    /// Writes what fits now; fails with `WouldBlock` if that is nothing.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let mut out = self.out.lock();
        self.check_writable(&out)?;
        let moved = out.write(data)?;
        self.kick(moved.kick);
        if moved.len == 0 && !data.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(moved.len) }
    }

    fn check_writable(&self, out: &Outgoing) -> io::Result<()> {
        let over = out.is_refused() || self.is_down(ANNOUNCED_SEND);
        if over { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// The daemon may be asleep: it is to be woken.
    fn signal(&self) {
        let _ = rustix::net::send(&self.signals, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn kick(&self, kick: bool) {
        if kick {
            self.signal();
        }
    }

    /// From here on the descriptor shows what the stream can do.
    fn make_polled(&self) -> io::Result<()> {
        if !self.polled.swap(true, Ordering::SeqCst) && self.incoming.lock().arm()? {
            // There is something already: the daemon has announced it.
            self.signal();
        }
        Ok(())
    }

    /// Takes the signals that have come. What was meant for the other half is asked for again.
    fn drain(&self, half: Half) -> io::Result<()> {
        let mut bytes = [0; 64];
        let mut any = false;
        loop {
            match rustix::net::recv(&self.signals, &mut bytes, RecvFlags::DONTWAIT) {
                // The daemon is gone.
                Ok((0, _)) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok((len, _)) => {
                    any = true;
                    if len < bytes.len() {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.pass_on(half, any);
        Ok(())
    }

    /// One half has taken signals (`any`) that may have been meant for the other.
    fn pass_on(&self, half: Half, any: bool) {
        if any
            && (self.waits.other_than(half).load(Ordering::SeqCst)
                || (half == Half::Writing && self.is_polled()))
        {
            self.signal();
        }
    }

    fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    /// Waits for `done` by polling, then by sleeping. `arm` announces the sleep and polls once more.
    fn wait(
        &self,
        half: Half,
        mut done: impl FnMut() -> io::Result<bool>,
        mut arm: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<()> {
        if self.nonblocking.load(Ordering::Relaxed) {
            self.drain(half)?;
            if arm()? {
                return Ok(());
            }
            if half == Half::Writing {
                self.fill();
                if arm()? {
                    return Ok(());
                }
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let start = Instant::now();
        let spin = self.spin.lock().window(start);
        let (mut rounds, yield_every) = (0u32, yield_every());
        let mut now = start;
        while now.saturating_duration_since(start) < spin {
            if done()? {
                return Ok(());
            }
            rounds += 1;
            let before = now;
            if rounds.is_multiple_of(yield_every) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            now = Instant::now();
            if now.saturating_duration_since(before) > WANTED {
                self.spin.lock().yielding_until = Some(now + YIELDING);
            }
        }
        self.waits.of(half).store(true, Ordering::SeqCst);
        let deadline = self.timeouts.lock().of(half).map(|timeout| start + timeout);
        let outcome = self.sleep(half, deadline, &mut arm);
        self.waits.of(half).store(false, Ordering::SeqCst);
        outcome
    }

    fn sleep(
        &self,
        half: Half,
        deadline: Option<Instant>,
        arm: &mut dyn FnMut() -> io::Result<bool>,
    ) -> io::Result<()> {
        let down = || self.is_down(if half == Half::Reading { ANNOUNCED_RECEIVE } else { ANNOUNCED_SEND });
        loop {
            if down() || arm()? {
                return Ok(());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let woken = self.sleep_once(half, left);
            if down() {
                return Ok(());
            }
            woken?;
        }
    }

    /// Sleeps until a signal comes, and takes it.
    fn sleep_once(&self, half: Half, left: Option<Duration>) -> io::Result<()> {
        // One call in place of three, where nothing else waits at this descriptor.
        if left.is_none() && !self.waits.other_than(half).load(Ordering::SeqCst) {
            match rustix::net::recv(&self.signals, &mut [0; 64], RecvFlags::empty()) {
                // The daemon is gone.
                Ok((0, _)) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok(_) => {
                    self.pass_on(half, true);
                    return Ok(());
                }
                // Others may have made it one that does not block.
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], left.as_ref())?;
        self.drain(half)
    }

    /// Makes the descriptor unwritable.
    fn fill(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while rustix::net::send(&self.signals, &[0; 256], flags).is_ok() {}
    }

    fn receive(&self, data: &mut [u8]) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        if data.is_empty() {
            return Ok(0);
        }
        loop {
            if self.is_down(ANNOUNCED_RECEIVE) {
                return Ok(0);
            }
            let over = incoming.is_over();
            let moved = incoming.read(data)?;
            self.kick(moved.kick);
            if moved.len > 0 || over {
                if !self.is_polled() {
                    incoming.disarm();
                }
                // Behind all bytes that came before it.
                if moved.len == 0 && incoming.ended() & ended::RESET != 0 {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                return Ok(moved.len);
            }
            self.wait(Half::Reading, || Ok(incoming.ready()? > 0 || incoming.is_over()), || incoming.arm())?;
        }
    }

    fn transmit(&self, data: &[u8]) -> io::Result<usize> {
        let mut out = self.out.lock();
        if data.is_empty() {
            return Ok(0);
        }
        loop {
            self.check_writable(&out)?;
            let moved = out.write(data)?;
            self.kick(moved.kick);
            if moved.len > 0 {
                out.disarm();
                return Ok(moved.len);
            }
            let free = |out: &Outgoing| Ok(out.room()? > 0 || out.is_refused());
            self.wait(Half::Writing, || free(&out), || Ok(out.arm()? || out.is_refused()))?;
        }
    }
}

fn no_memory() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the daemon sent no memory for the stream")
}

impl Read for &Stream {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        self.receive(data)
    }
}

impl Write for &Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.transmit(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        self.receive(data)
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.transmit(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for Stream {
    /// To be polled only: bytes do not go through it.
    fn as_raw_fd(&self) -> RawFd {
        let _ = self.make_polled();
        self.signals.as_raw_fd()
    }
}

impl AsFd for Stream {
    /// To be polled only: bytes do not go through it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let _ = self.make_polled();
        self.signals.as_fd()
    }
}
