//! VMs whose VMM has a hybrid Unix socket, as Firecracker and Cloud Hypervisor do: the VMM owns the virtio-vsock device, and
//! connections enter and leave it through Unix sockets. Such a VM is one more endpoint of the CID space.
//!
//! The protocol, with PATH the socket that the VMM listens at (its `uds_path`):
//!
//! ```text
//! to the guest      connect to PATH, write "CONNECT 5000\n";  "OK 1073741824\n": connected;  end of file: refused
//! from the guest    it connects to {CID 2, 5000}: the VMM connects to PATH_5000, without a word
//! then              bytes, until one side closes
//! ```
//!
//! The VMM is as little trusted as a guest: its answer is bounded in length and time, it must be of the VM's owner at both
//! sockets, and what it can open is bounded.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use vmlane_access::Owner;
use vmlane_stats::counters;
use vmlane_vsock::{Call, ConnectError, Endpoint, HOST, SocketAddress, Vm};

use super::mail::{Mail, Mailbox, Token};
use crate::uplink::vhost_user::{SocketName, listen_with};

/// Connections of a VMM that may wait to be accepted at the socket of a forward.
const WAITING: i32 = 128;

/// A VM whose VMM has a hybrid Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridVm {
    /// Its address, its limit of connections, and its forwards: at each of their ports the daemon listens for it.
    pub vm: Vm,
    /// The VMM's socket.
    pub path: PathBuf,
    /// Whose processes the VMM's are; `None`: root's and those of the daemon's user.
    pub owner: Option<Owner>,
}

counters! {
    /// What became of one VM's connections.
    pub struct HybridStats {
        /// Connections that the guest asked for, at the sockets of its forwards.
        connects,
        /// Of those, refused: by the other end, or because nothing answers for it.
        connects_refused,
        /// Connections of either end, because the VM had as many as it may, or there was no place.
        over_connections,
        /// Connections established, by either end.
        established,
        /// Bytes that the guest sent.
        bytes_sent,
        /// Bytes that it was given.
        bytes_received,
        /// Connections that others asked the VMM for.
        asked,
        /// Of those, ended by the VMM instead of an answer: no program listens on that port.
        refused_by_vmm,
        /// Of those, for which no VMM was there.
        absent,
        /// Of those, for which the VMM did not accept or answer in time.
        late,
        /// Of those, answered with something else than `OK`.
        malformed,
        /// Processes at either end of the VM's sockets that are not its owner's.
        not_owner,
    }
}

/// What an operator may see of one VM.
#[derive(Clone, Debug)]
pub struct HybridView {
    /// Its address.
    pub cid: u32,
    /// Connections that its guest opened.
    pub opened: usize,
    /// All of its connections: they count against what it may have.
    pub connections: usize,
    /// What it may have.
    pub limit: usize,
    /// Counters.
    pub stats: Arc<HybridStats>,
}

/// One connection with such a VM at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HybridConnection {
    /// Whose place it takes.
    pub vm: u32,
    /// The end that connected. A guest's own port is not known: the VMM does not tell it.
    pub client: SocketAddress,
    /// The end that listened.
    pub server: SocketAddress,
    /// The server has accepted.
    pub established: bool,
}

impl HybridConnection {
    /// As VMCI connections' states are called.
    pub fn state(&self) -> &'static str {
        if self.established { "established" } else { "requested" }
    }
}

/// What the thread that serves them shows of all VMs.
#[derive(Default)]
pub struct Shown {
    vms: HashMap<u32, (usize, Arc<HybridStats>)>,
    connections: HashMap<Token, HybridConnection>,
}

impl Shown {
    pub fn set(&mut self, vm: &Vm, stats: &Arc<HybridStats>) {
        self.vms.insert(vm.cid, (vm.connections, stats.clone()));
    }

    pub fn remove(&mut self, cid: u32) {
        self.vms.remove(&cid);
    }

    pub fn connects(&mut self, token: Token, connection: HybridConnection) {
        self.connections.insert(token, connection);
    }

    /// The connection of this client is joined.
    pub fn joined(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.established = true;
        }
    }

    pub fn ends(&mut self, token: Token) {
        self.connections.remove(&token);
    }

    pub fn connections(&self) -> Vec<HybridConnection> {
        self.connections.values().copied().collect()
    }

    pub fn views(&self) -> Vec<HybridView> {
        let view = |(&cid, (limit, stats)): (&u32, &(usize, Arc<HybridStats>))| {
            let own = || self.connections.values().filter(|connection| connection.vm == cid);
            HybridView {
                cid,
                opened: own().filter(|connection| connection.client.0 == cid).count(),
                connections: own().count(),
                limit: *limit,
                stats: stats.clone(),
            }
        };
        self.vms.iter().map(view).collect()
    }
}

/// What answers for the CID of such a VM.
pub struct HybridEndpoint(pub Arc<Mailbox>);

impl Endpoint for HybridEndpoint {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        self.0.request(call)
    }

    fn given_up(&self, call: Call) {
        // The VMM has been asked already: it is told.
        if !self.0.withdraw(call) {
            self.0.send(Mail::GivenUp(call));
        }
    }
}

/// The sockets of one VM's forwards, as the operator's thread knows them: the thread that serves them has no file to do with.
pub struct Forwards {
    vm: HybridVm,
    stats: Arc<HybridStats>,
    open: BTreeMap<u32, SocketName>,
    /// Ports whose sockets could not be made, and why: told once.
    failed: BTreeMap<u32, String>,
}

impl Forwards {
    pub fn new(vm: HybridVm) -> Forwards {
        Forwards { vm, stats: Arc::default(), open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// What is known of the VM changes.
    pub fn change(&mut self, vm: HybridVm, mailbox: &Mailbox) {
        if (&vm.path, vm.owner) != (&self.vm.path, self.vm.owner) {
            // Their files let the owner before in.
            self.close(mailbox, |_| true);
        }
        self.vm = vm;
        mailbox.send(Mail::Hybrid(Box::new(self.vm.clone()), self.stats.clone()));
    }

    /// Opens what is to be open and is not, also if its directory has come only now, and closes the rest.
    pub fn look(&mut self, mailbox: &Mailbox) {
        let ports: Vec<u32> = self.vm.vm.forwards.iter().map(|forward| forward.port).collect();
        self.close(mailbox, |port| !ports.contains(&port));
        self.failed.retain(|port, _| ports.contains(port));
        let gone: Vec<u32> =
            self.open.iter().filter(|(_, name)| !name.is_there()).map(|(&port, _)| port).collect();
        self.close(mailbox, |port| gone.contains(&port));
        for port in ports {
            if self.open.contains_key(&port) {
                continue;
            }
            let path = self.path(port);
            match listen_with(&path, self.vm.owner, WAITING) {
                Ok((socket, name)) => {
                    if self.failed.remove(&port).is_some() {
                        tracing::info!(path = %path.display(), "the socket of a forward is there now");
                    }
                    self.open.insert(port, name);
                    mailbox.send(Mail::Listen(self.vm.vm.cid, port, socket));
                }
                Err(error) => {
                    let why = error.to_string();
                    if self.failed.get(&port) != Some(&why) {
                        tracing::warn!(
                            path = %path.display(),
                            "no socket for a forward of CID {}, which waits until there is: {why}",
                            self.vm.vm.cid
                        );
                        self.failed.insert(port, why);
                    }
                }
            }
        }
    }

    /// What is wrong with the sockets of its forwards.
    pub fn problems(&self) -> Vec<String> {
        let problem = |(&port, why): (&u32, &String)| format!("{}: {why}", self.path(port).display());
        self.failed.iter().map(problem).collect()
    }

    /// Its VM is served no more.
    pub fn end(mut self, mailbox: &Mailbox) {
        self.close(mailbox, |_| true);
        mailbox.send(Mail::RemoveHybrid(self.vm.vm.cid));
    }

    fn close(&mut self, mailbox: &Mailbox, which: impl Fn(u32) -> bool) {
        let cid = self.vm.vm.cid;
        self.open.retain(|&port, name| {
            let closes = which(port);
            if closes {
                name.remove();
                mailbox.send(Mail::Unlisten(cid, port));
            }
            !closes
        });
    }

    /// Where the VMM connects for this port of {CID 2}.
    fn path(&self, port: u32) -> PathBuf {
        let mut path = self.vm.path.clone().into_os_string();
        path.push(format!("_{port}"));
        path.into()
    }
}

/// Whom a connect of this VM to the host's `port` reaches: what its forwards say, and nothing else.
pub fn target(vm: &Vm, port: u32) -> Option<SocketAddress> {
    vm.forward(port).map(|_| vm.target((HOST, port)))
}
