//! What the thread knows of VMs with hybrid sockets, and of what their VMMs have been asked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_vsock::{Call, Failed, Key, Router};

use crate::sockets::client::Account;
use crate::sockets::hybrid::HybridStats;
use crate::sockets::hybrid_views::{HybridConnection, Shown};
use crate::sockets::inbox::Token;
use crate::sockets::stream::Moved;

/// The VMs, and the connections that their VMMs have been asked for.
pub struct Hybrids {
    /// By CID: the VMM's socket.
    vms: HashMap<u32, (PathBuf, Arc<HybridStats>)>,
    /// By number of the call.
    asked: HashMap<u64, Token>,
    shown: Arc<Mutex<Shown>>,
}

impl Hybrids {
    pub fn new(shown: Arc<Mutex<Shown>>) -> Hybrids {
        Hybrids { vms: HashMap::new(), asked: HashMap::new(), shown }
    }

    pub fn set(&mut self, cid: u32, path: PathBuf, stats: Arc<HybridStats>) {
        self.shown.lock().set(cid, &stats);
        self.vms.insert(cid, (path, stats));
    }

    /// The socket of the VM's VMM, if it is one of these VMs.
    pub fn path(&self, cid: u32) -> Option<&Path> {
        self.vms.get(&cid).map(|(path, _)| &**path)
    }

    /// Counts something of this VM, if it is one.
    pub fn count(&self, cid: Option<u32>, count: impl FnOnce(&HybridStats)) {
        if let Some((_, stats)) = cid.and_then(|cid| self.vms.get(&cid)) {
            count(stats);
        }
    }

    pub fn moved(&self, account: Account, moved: Moved) {
        if let Account::Vm(cid) = account {
            self.count(Some(cid), |stats| {
                stats.bytes_sent.bump(moved.up as u64);
                stats.bytes_received.bump(moved.down as u64);
            });
        }
    }

    /// The connection of this client is joined.
    pub fn joined(&self, token: Token, account: Account) {
        if let Account::Vm(cid) = account {
            self.count(Some(cid), |stats| stats.established.inc());
            self.shown.lock().joined(token);
        }
    }

    /// A VMM has been asked for the connection of this client.
    pub fn asks(&mut self, call: Call, token: Token) {
        self.asked.insert(call.number, token);
    }

    /// Its VMM has answered, or it is given up: whose it was.
    pub fn answered(&mut self, call: Call) -> Option<Token> {
        self.asked.remove(&call.number)
    }

    /// A VM's connection is to be seen from now on.
    pub fn shows(&self, token: Token, vm: u32, call: Call) {
        let Key { client, server } = call.key;
        let connection = HybridConnection { vm, client, server, established: false };
        self.shown.lock().connects(token, connection);
    }

    /// The VM is served no more.
    pub fn remove(&mut self, cid: u32) {
        self.vms.remove(&cid);
        self.shown.lock().remove(cid);
    }

    /// A client of a VM is gone.
    pub fn ends(&self, token: Token) {
        self.shown.lock().ends(token);
    }

    /// Nothing comes of what a VMM was asked for.
    pub fn over(&mut self, router: &Router, call: Call, why: Failed) {
        self.answered(call);
        router.refuse(call, why);
    }
}
