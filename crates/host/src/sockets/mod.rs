//! Host sockets: processes of the host reach VMs, and are reached, at CID 2.
//!
//! | file | what |
//! | --- | --- |
//! | `server.rs` | the one thread that serves them all: what comes next |
//! | `server/calls.rs`, `server/moving.rs`, `server/ends.rs` | how streams come about, have their turns, and end |
//! | `server/clients.rs`, `server/poller.rs`, `server/ports.rs`, `server/rings.rs` | its tables: clients, files that are waited for, the host's ports, rings and their budgets |
//! | `server/programs.rs` | what programs ask for |
//! | `hybrid.rs`, `forwards.rs`, `hybrid_views.rs`, `server/hybrid.rs`, `server/asked.rs` | VMs whose VMMs have hybrid Unix sockets |
//! | `route.rs`, `route_socket.rs`, `server/route_table.rs`, `server/routes.rs` | other hosts, and the helper that carries streams to them |
//! | `left.rs`, `server/left.rs` | streams between programs and other hosts whose bytes only the helper moves |
//! | `server/turns.rs` | whose turn it is |
//! | `client.rs` | one process's connection, from its request on |
//! | `stream.rs` | a joined stream: bytes between its socket and its ring |
//! | `inbox.rs` | messages of workers and sessions to the thread |
//! | `socket.rs` | system calls |
//!
//! There are two kinds of listening socket: `host.sock` speaks the records of [`vmlane_wire::host`], and each
//! VM's `vsock.uds` speaks text (`CONNECT 5000`, answered `OK 1073741824`) as Firecracker and Cloud
//! Hypervisor do. Where these are the VMMs, they own those sockets, and this thread is their client
//! (`hybrid.rs`). Everything a process can grow is bounded; a process that misbehaves loses its own sockets.

mod client;
mod forwards;
mod hybrid;
mod hybrid_views;
mod inbox;
mod left;
mod route;
mod route_socket;
mod server;
mod socket;
mod stream;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use vmlane_access::Peer;
use vmlane_port::role::{self, Role};
use vmlane_vsock::{
    Call, ConnectError, DatagramError, Endpoint, HostAccess, HostRules, Router, SocketAddress,
};
use vmlane_wire::host;
use vmlane_wire::vmci::CID_HOST;
use zerocopy::IntoBytes;

pub use hybrid::HybridStats;
pub use hybrid_views::{HybridConnection, HybridView};
pub use inbox::Guest;
pub use route::{CidRange, Peer as RoutePeer, PeerView, Routes};
pub use socket::connect;

use forwards::{Forwards, HybridEndpoint};
use hybrid_views::Shown;
use inbox::{Inbox, Message};
use route_socket::RouteSocket;

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections of all processes together, and of VMs with hybrid sockets; of one user or VM, as many as
    /// stay free for others.
    pub clients: usize,
    /// Streams of other hosts; of one, as many as stay free for others.
    pub routed: usize,
    /// Calls that wait for other hosts; of one client, as many as stay free.
    pub calls: usize,
    /// Connections of one process.
    pub of_process: usize,
    /// Connections whose request has not arrived; of one user, as many as stay free for others.
    pub unasked: usize,
    /// How long a request may take to arrive.
    pub request: std::time::Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            clients: 4096,
            routed: 8192,
            calls: 4096,
            of_process: 2048,
            unasked: 256,
            request: std::time::Duration::from_secs(5),
        }
    }
}

/// Datagram sockets of host programs, by port: read by guests' sessions.
type Datagrams = Arc<Mutex<HashMap<u32, (Arc<OwnedFd>, Arc<Peer>)>>>;

/// Host sockets on offer. Dropping it ends all of them.
pub struct HostSockets {
    router: Arc<Router>,
    inbox: Arc<Inbox>,
    path: PathBuf,
    /// Of the VMs' Unix sockets.
    guest_sockets: Mutex<HashMap<u32, PathBuf>>,
    /// Of the forwards of VMs with hybrid sockets.
    forwards: Mutex<HashMap<u32, Forwards>>,
    shown: Arc<Mutex<Shown>>,
    /// Other hosts.
    route: Mutex<RouteSocket>,
    thread: Option<JoinHandle<()>>,
}

/// What answers for CID 2.
struct Host {
    router: std::sync::Weak<Router>,
    inbox: Arc<Inbox>,
    datagrams: Datagrams,
    rules: Arc<Mutex<HostRules>>,
}

impl Endpoint for Host {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        self.inbox.request(call)
    }

    fn given_up(&self, call: Call) {
        self.inbox.withdraw(call);
    }

    fn datagram(&self, from: SocketAddress, port: u32, payload: &[u8]) -> Result<(), DatagramError> {
        let receiver = self.datagrams.lock().get(&port).cloned();
        let (socket, peer) = receiver.ok_or(DatagramError::Port)?;
        let vm = self.router.upgrade().and_then(|router| router.vms().get(from.0));
        let group = vm.as_ref().map_or("", |vm| &vm.group);
        if !self.rules.lock().allows(&peer, HostAccess::BeReached(group)) {
            return Err(DatagramError::Port);
        }
        let header = host::Peer { cid: from.0.into(), port: from.1.into() };
        let message = [header.as_bytes(), payload].concat();
        match socket::write(&*socket, &message) {
            socket::Io::Done(_) => Ok(()),
            socket::Io::WouldBlock | socket::Io::Over => Err(DatagramError::Full),
        }
    }
}

impl HostSockets {
    /// Opens `path` and answers for CID 2. `mode`: the socket's; `rules` decide who may do what.
    pub fn start(
        router: Arc<Router>,
        path: &Path,
        mode: u32,
        rules: HostRules,
        bounds: Bounds,
    ) -> io::Result<HostSockets> {
        let socket = socket::listen(path, mode)?;
        let inbox = Arc::new(Inbox::new()?);
        let datagrams = Datagrams::default();
        let shared = Arc::new(Mutex::new(rules));
        let shown = Arc::new(Mutex::new(Shown::default()));
        let server = server::Server::new(
            router.clone(),
            inbox.clone(),
            datagrams.clone(),
            shared.clone(),
            (socket, bounds),
            shown.clone(),
        )?;
        let thread = std::thread::Builder::new().name("host".into()).spawn(move || {
            role::enter(Role::Host);
            server.run();
        })?;
        let endpoint =
            Host { router: Arc::downgrade(&router), inbox: inbox.clone(), datagrams, rules: shared };
        router.set_endpoint(CID_HOST, Arc::new(endpoint));
        let guest_sockets = Mutex::default();
        let path = path.to_owned();
        let forwards = Mutex::default();
        let route = Mutex::default();
        Ok(HostSockets { router, inbox, path, guest_sockets, forwards, shown, route, thread: Some(thread) })
    }

    /// Opens a VM's hybrid Unix socket, to processes of the VM's owner.
    pub fn add_guest(&self, guest: Guest) -> io::Result<()> {
        let socket = socket::listen(&guest.uds, 0o600)?;
        self.guest_sockets.lock().insert(guest.cid, guest.uds.clone());
        self.inbox.send(Message::AddGuest(guest, socket));
        Ok(())
    }

    /// Closes it; streams that are open stay.
    pub fn remove_guest(&self, cid: u32) {
        if let Some(path) = self.guest_sockets.lock().remove(&cid) {
            let _ = std::fs::remove_file(path);
        }
        self.inbox.send(Message::RemoveGuest(cid));
    }

    /// Answers for a VM whose VMM has a hybrid socket at `path`; to be called again when what is configured
    /// of the VM has changed. Opens the sockets of its forwards; what cannot be opened is returned, and tried
    /// again by [`Self::reopen_forwards`]. It counts in `stats`, as it did before.
    pub fn set_hybrid(&self, cid: u32, path: PathBuf, stats: &Arc<HybridStats>) -> Vec<String> {
        let Some(vm) = self.router.vms().get(cid) else { return Vec::new() };
        let mut all = self.forwards.lock();
        let forwards =
            all.entry(cid).or_insert_with(|| Forwards::new(vm.clone(), path.clone(), stats.clone()));
        forwards.change(vm, path, &self.inbox);
        forwards.reconcile(&self.inbox);
        self.router.set_endpoint(cid, Arc::new(HybridEndpoint(self.inbox.clone())));
        forwards.problems()
    }

    /// Ends that: the VM's connections are reset.
    pub fn remove_hybrid(&self, cid: u32) {
        if let Some(forwards) = self.forwards.lock().remove(&cid) {
            self.router.clear_endpoint(cid);
            forwards.end(&self.inbox);
        }
    }

    /// Opens sockets of forwards that could not be opened before, or whose names are gone. To be called every
    /// few seconds.
    pub fn reopen_forwards(&self) {
        self.forwards.lock().values_mut().for_each(|forwards| forwards.reconcile(&self.inbox));
    }

    /// What an operator may see of the VMs with hybrid sockets.
    pub fn hybrids(&self) -> Vec<HybridView> {
        self.shown.lock().views(&self.router.vms().known())
    }

    /// Their connections; one between two of them is there twice.
    pub fn hybrid_connections(&self) -> Vec<HybridConnection> {
        self.shown.lock().connections()
    }

    /// What is configured of other hosts from now on; `path` is where the helper that carries their streams
    /// connects.
    pub fn set_routes(&self, path: &Path, routes: Option<Routes>) -> io::Result<()> {
        self.route.lock().set(path, routes, &self.router, &self.inbox)
    }

    /// What an operator may see of other hosts; nothing if none are configured.
    pub fn peers(&self) -> Vec<PeerView> {
        self.route.lock().views()
    }

    /// What new requests are measured by.
    pub fn set_rules(&self, rules: HostRules) {
        self.inbox.send(Message::Rules(rules));
    }
}

impl Drop for HostSockets {
    fn drop(&mut self) {
        self.router.clear_endpoint(CID_HOST);
        for (cid, forwards) in self.forwards.lock().drain() {
            self.router.clear_endpoint(cid);
            forwards.end(&self.inbox);
        }
        self.route.lock().end(&self.router);
        self.inbox.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
        for path in self.guest_sockets.lock().values() {
            let _ = std::fs::remove_file(path);
        }
    }
}
