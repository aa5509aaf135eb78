//! Host sockets: processes of the host reach VMs, and are reached, at CID 2.
//!
//! | file | what |
//! | --- | --- |
//! | `desk.rs` | the one thread that serves them all: doors, requests, who listens where |
//! | `client.rs` | one process's connection to a door, from its request on |
//! | `stream.rs` | a joined stream: bytes between its socket and its ring |
//! | `mail.rs` | what workers and sessions tell the thread |
//! | `policy.rs` | who may |
//! | `socket.rs` | system calls |
//!
//! There are two doors: `host.sock` speaks the records of [`vmlane_wire::host`], and each VM's `vsock.uds`
//! speaks text (`CONNECT 5000`, answered `OK 1073741824`) as Firecracker and Cloud Hypervisor do.
//! Everything a process can grow is bounded; a process that misbehaves loses its own sockets.

mod client;
mod desk;
mod mail;
mod policy;
mod socket;
mod stream;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use vmlane_device::vmci::{Call, Endpoint, Fabric, SocketAddress};
use vmlane_wire::host;
use vmlane_wire::vmci::CID_HOST;
use zerocopy::IntoBytes;

pub use mail::Guest;
pub use policy::{Peer, Policy, Rule, Wish};

use mail::{Mail, Mailbox};

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections of all processes together.
    pub clients: usize,
    /// Connections of one process.
    pub of_process: usize,
    /// Connections whose request has not arrived.
    pub unasked: usize,
    /// How long a request may take to arrive.
    pub request: std::time::Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { clients: 2048, of_process: 1024, unasked: 256, request: std::time::Duration::from_secs(5) }
    }
}

/// Datagram sockets of host programs, by port: looked at by guests' sessions.
type Datagrams = Arc<Mutex<HashMap<u32, (Arc<OwnedFd>, Peer)>>>;

/// Host sockets on offer. Dropping it ends all of them.
pub struct HostSockets {
    fabric: Arc<Fabric>,
    mailbox: Arc<Mailbox>,
    path: PathBuf,
    /// Of the VMs' doors.
    doors: Mutex<HashMap<u32, PathBuf>>,
    thread: Option<JoinHandle<()>>,
}

/// What the fabric asks.
struct Host {
    fabric: std::sync::Weak<Fabric>,
    mailbox: Arc<Mailbox>,
    datagrams: Datagrams,
    policy: Arc<Mutex<Policy>>,
}

impl Endpoint for Host {
    fn requested(&self, call: Call, _size: u64) {
        self.mailbox.send(Mail::Requested(call));
    }

    fn datagram(&self, from: SocketAddress, port: u32, payload: &[u8]) -> bool {
        let Some((socket, peer)) = self.datagrams.lock().get(&port).cloned() else { return false };
        let group = self.fabric.upgrade().and_then(|fabric| fabric.group_of(from.0)).unwrap_or_default();
        if !self.policy.lock().allows(peer, Wish::BeReached(&group)) {
            return false;
        }
        let header = host::Peer { cid: from.0.into(), port: from.1.into() };
        let message = [header.as_bytes(), payload].concat();
        matches!(socket::write(&*socket, &message), socket::Io::Done(_))
    }
}

impl HostSockets {
    /// Opens `path` and answers for CID 2. `mode`: the socket's; who may do what is for `policy` to say.
    pub fn start(
        fabric: Arc<Fabric>,
        path: &Path,
        mode: u32,
        policy: Policy,
        bounds: Bounds,
    ) -> io::Result<HostSockets> {
        let door = socket::listen(path, mode)?;
        let mailbox = Arc::new(Mailbox::new()?);
        let datagrams = Datagrams::default();
        let shared = Arc::new(Mutex::new(policy));
        let desk = desk::Desk::new(
            fabric.clone(),
            mailbox.clone(),
            datagrams.clone(),
            shared.clone(),
            door,
            bounds,
        )?;
        let thread = std::thread::Builder::new().name("host".into()).spawn(move || desk.run())?;
        let endpoint =
            Host { fabric: Arc::downgrade(&fabric), mailbox: mailbox.clone(), datagrams, policy: shared };
        fabric.set_endpoint(CID_HOST, Arc::new(endpoint));
        let doors = Mutex::default();
        Ok(HostSockets { fabric, mailbox, path: path.to_owned(), doors, thread: Some(thread) })
    }

    /// Opens a VM's hybrid Unix socket.
    pub fn add_guest(&self, guest: Guest) -> io::Result<()> {
        let door = socket::listen(&guest.uds, 0o600)?;
        self.doors.lock().insert(guest.cid, guest.uds.clone());
        self.mailbox.send(Mail::AddGuest(guest, door));
        Ok(())
    }

    /// Closes it; streams that are open stay.
    pub fn remove_guest(&self, cid: u32) {
        if let Some(path) = self.doors.lock().remove(&cid) {
            let _ = std::fs::remove_file(path);
        }
        self.mailbox.send(Mail::RemoveGuest(cid));
    }

    /// What new requests are measured by.
    pub fn set_policy(&self, policy: Policy) {
        self.mailbox.send(Mail::Policy(policy));
    }
}

impl Drop for HostSockets {
    fn drop(&mut self) {
        self.fabric.clear_endpoint(CID_HOST);
        self.mailbox.send(Mail::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
        for path in self.doors.lock().values() {
            let _ = std::fs::remove_file(path);
        }
    }
}
