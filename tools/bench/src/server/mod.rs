//! The answering end: one process, many clients, a thread for each and nothing left of it afterwards.
//!
//! The accept loop owns the listeners; `connection::serve` owns one client from greeting to good-bye. What
//! clients may ask for is bounded twice: each test by `Limits`, all of them together by `Quota`.

mod connection;
mod quota;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::address::Address;
use crate::auth::Secret;
use crate::control::{Channel, Message};
use crate::error::Error;
use crate::spec::Limits;
use crate::transport::{Buffers, Conn, Listener};
use quota::Quota;
pub use quota::ServerLimits;

/// Where one line about each failed connection goes.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// What a client wants to know about this machine, and the addresses of the connection it came over.
#[derive(Debug)]
pub struct Question<'a> {
    pub request: &'a serde_json::Value,
    pub here: Option<IpAddr>,
    pub there: Option<IpAddr>,
}

/// Answers questions about this machine. An error is text for the one who asked.
pub type Examiner = Arc<dyn Fn(&Question<'_>) -> Result<serde_json::Value, String> + Send + Sync>;

pub struct Server {
    listeners: Vec<Listener>,
    shared: Shared,
}

struct Shared {
    limits: Limits,
    quota: Quota,
    log: Log,
    /// What a client must know.
    secret: Option<Secret>,
    /// None: no questions about this machine are answered.
    examiner: Option<Examiner>,
}

/// A server on a thread of its own; it stops when this is dropped.
pub struct Running {
    addresses: Vec<Address>,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Server {
    pub fn bind(addresses: &[Address]) -> Result<Server, Error> {
        let listeners = addresses.iter().map(|address| Listener::bind(address, Buffers::default()));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        for listener in &listeners {
            // poll reports when to accept; this is for a client that is gone again by then.
            listener.set_timeout(Duration::from_millis(100)).map_err(Error::io("preparing a listener"))?;
        }
        let shared = Shared {
            limits: Limits::default(),
            quota: Quota::default(),
            log: Arc::new(|_| ()),
            secret: None,
            examiner: None,
        };
        Ok(Server { listeners, shared })
    }

    pub fn with_log(self, log: Log) -> Server {
        self.with(|shared| shared.log = log)
    }

    /// Serves only clients that know the secret.
    pub fn with_secret(self, secret: Secret) -> Server {
        self.with(|shared| shared.secret = Some(secret))
    }

    /// Answers clients that ask about this machine.
    pub fn with_examiner(self, examiner: Examiner) -> Server {
        self.with(|shared| shared.examiner = Some(examiner))
    }

    /// What a test may ask for, and what all clients together may hold.
    pub fn with_limits(self, limits: Limits, server: ServerLimits) -> Server {
        self.with(|shared| (shared.limits, shared.quota) = (limits, Quota::new(server)))
    }

    fn with(mut self, change: impl FnOnce(&mut Shared)) -> Server {
        change(&mut self.shared);
        self
    }

    /// Where it listens, ports chosen by the kernel included.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|listener| listener.address().clone()).collect()
    }

    /// Serves until the process ends.
    pub fn run(self) -> Result<(), Error> {
        self.serve(None)
    }

    pub fn spawn(self) -> Result<Running, Error> {
        let (watched, stop) =
            rustix::pipe::pipe().map_err(|error| Error::io("making a pipe")(error.into()))?;
        let addresses = self.addresses();
        let thread = std::thread::Builder::new()
            .name("bench server".into())
            .spawn(move || self.serve(Some(watched)))
            .map_err(Error::io("starting the server's thread"))?;
        Ok(Running { addresses, stop: Some(stop), thread: Some(thread) })
    }

    fn serve(self, stop: Option<OwnedFd>) -> Result<(), Error> {
        let Server { listeners, shared } = self;
        let shared = Arc::new(shared);
        let mut fds: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        fds.extend(stop.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        loop {
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(Error::io("waiting for clients")(error.into())),
            }
            if fds.iter().skip(listeners.len()).any(|fd| !fd.revents().is_empty()) {
                return Ok(());
            }
            for (listener, fd) in listeners.iter().zip(&fds) {
                if !fd.revents().is_empty() {
                    shared.admit(listener);
                }
            }
        }
    }
}

impl Shared {
    fn admit(self: &Arc<Shared>, listener: &Listener) {
        let conn = match listener.accept() {
            Ok(conn) => conn,
            Err(error) if crate::transport::is_timeout(&error) => return,
            Err(error) => {
                // Out of descriptors, most likely: let some connections end instead of spinning.
                (self.log)(&format!("accepting on {}: {error}", listener.address()));
                std::thread::sleep(Duration::from_millis(50));
                return;
            }
        };
        if let Err(error) = self.receive(conn, listener.address()) {
            (self.log)(&error.to_string());
        }
    }

    fn receive(self: &Arc<Shared>, conn: Conn, address: &Address) -> Result<(), Error> {
        let peer = match conn.peer_host() {
            Ok(host) => format!("client {host} on {address}"),
            Err(error) => return Err(Error::io("asking who the client is")(error)),
        };
        let channel = Channel::new(conn, peer);
        let Some(share) = self.quota.client() else {
            let message = "busy: too many clients at once; try again later".to_owned();
            return channel.send(&Message::Error { message });
        };
        let (shared, address) = (self.clone(), address.clone());
        let connection = move || {
            let _share = share;
            connection::serve(channel, &address, &shared);
        };
        let spawned = std::thread::Builder::new().name("connection".into()).spawn(connection);
        spawned.map(drop).map_err(|cause: io::Error| Error::Io { doing: "starting a client's thread", cause })
    }
}

impl Running {
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None; // closing the pipe is the signal
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a failure was already logged
        }
    }
}
