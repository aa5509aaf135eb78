//! Both ways of a VM with a hybrid socket into the CID space: its endpoint, and the sockets of its forwards.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use vmlane_vsock::{Call, ConnectError, Endpoint, Vm};

use super::hybrid::HybridStats;
use super::inbox::{Inbox, Message};
use crate::uplink::vhost_user::{SocketName, listen_with};

/// Connections of a VMM that may wait to be accepted at the socket of a forward.
const WAITING: i32 = 128;

/// What answers for the CID of such a VM.
pub struct HybridEndpoint(pub Arc<Inbox>);

impl Endpoint for HybridEndpoint {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        self.0.request(call)
    }

    fn given_up(&self, call: Call) {
        // The VMM has been asked already: it is notified.
        if !self.0.withdraw(call) {
            self.0.send(Message::GivenUp(call));
        }
    }
}

/// The sockets of one VM's forwards, as the operator's thread knows them: the thread that serves them has no
/// file to do with.
pub struct Forwards {
    /// As it was configured when its sockets were checked last.
    vm: Arc<Vm>,
    /// The VMM's socket.
    path: PathBuf,
    stats: Arc<HybridStats>,
    open: BTreeMap<u32, SocketName>,
    /// Ports whose sockets could not be made, and why: reported once.
    failed: BTreeMap<u32, String>,
}

impl Forwards {
    pub fn new(vm: Arc<Vm>, path: PathBuf, stats: Arc<HybridStats>) -> Forwards {
        Forwards { vm, path, stats, open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// What is known of the VM changes.
    pub fn change(&mut self, vm: Arc<Vm>, path: PathBuf, inbox: &Inbox) {
        if (&path, vm.owner) != (&self.path, self.vm.owner) {
            // Their files let the owner before in.
            self.close(inbox, |_| true);
        }
        (self.vm, self.path) = (vm, path);
        inbox.send(Message::Hybrid(self.vm.cid, self.path.clone(), self.stats.clone()));
    }

    /// Opens what is to be open and is not, also if its directory has come only now, and closes the rest.
    pub fn reconcile(&mut self, inbox: &Inbox) {
        let ports: Vec<u32> = self.vm.forwards.iter().map(|forward| forward.port).collect();
        self.close(inbox, |port| !ports.contains(&port));
        self.failed.retain(|port, _| ports.contains(port));
        let gone: Vec<u32> =
            self.open.iter().filter(|(_, name)| !name.is_there()).map(|(&port, _)| port).collect();
        self.close(inbox, |port| gone.contains(&port));
        for port in ports {
            if self.open.contains_key(&port) {
                continue;
            }
            let path = self.path_of(port);
            match listen_with(&path, self.vm.owner, WAITING) {
                Ok((socket, name)) => {
                    if self.failed.remove(&port).is_some() {
                        tracing::info!(path = %path.display(), "the socket of a forward is there now");
                    }
                    self.open.insert(port, name);
                    inbox.send(Message::Listen(self.vm.cid, port, socket));
                }
                Err(error) => {
                    let why = error.to_string();
                    if self.failed.get(&port) != Some(&why) {
                        tracing::warn!(
                            path = %path.display(),
                            "no socket for a forward of CID {}, which waits until there is: {why}",
                            self.vm.cid
                        );
                        self.failed.insert(port, why);
                    }
                }
            }
        }
    }

    /// What is wrong with the sockets of its forwards.
    pub fn problems(&self) -> Vec<String> {
        let problem = |(&port, why): (&u32, &String)| format!("{}: {why}", self.path_of(port).display());
        self.failed.iter().map(problem).collect()
    }

    /// Its VM is served no more.
    pub fn end(mut self, inbox: &Inbox) {
        self.close(inbox, |_| true);
        inbox.send(Message::RemoveHybrid(self.vm.cid));
    }

    fn close(&mut self, inbox: &Inbox, which: impl Fn(u32) -> bool) {
        let cid = self.vm.cid;
        self.open.retain(|&port, name| {
            let closes = which(port);
            if closes {
                name.remove();
                inbox.send(Message::Unlisten(cid, port));
            }
            !closes
        });
    }

    /// Where the VMM connects for this port of {CID 2}.
    fn path_of(&self, port: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        path.into()
    }
}
