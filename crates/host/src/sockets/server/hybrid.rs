//! VMs whose VMMs have hybrid sockets: connections to their guests, which a VMM is asked for, and from them,
//! which come at the sockets of their forwards.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use vmlane_access::Peer;
use vmlane_port::StreamAddress;
use vmlane_vsock::{Call, Failed, Key};

use super::turns;
use super::{CONNECT, Server};
use crate::sockets::client::{Account, Client, Dialect, RingUse, State, VmmAnswer, vmm_answer};
use crate::sockets::hybrid::{HybridStats, target};
use crate::sockets::inbox::Token;
use crate::sockets::socket::{self, Io};

/// How long a VMM may take to answer. Firecracker gives its guest 2 s.
const ANSWER: Duration = Duration::from_secs(5);

impl Server {
    /// A connection to a guest is wanted: its VMM is asked for it.
    pub(super) fn ask_vmm(&mut self, call: Call) {
        let cid = call.key.server.0;
        self.hybrids.count(Some(cid), |stats| stats.asked.inc());
        if let Err(why) = self.begin_to_ask(call) {
            self.router.refuse(call, why);
        }
    }

    fn begin_to_ask(&mut self, call: Call) -> Result<(), Failed> {
        let (cid, port) = call.key.server;
        let path = self.hybrids.path(cid).ok_or(Failed::Absent)?;
        let vm = self.router.vms().get(cid).ok_or(Failed::Absent)?;
        let account = Account::Vm(cid);
        let count = |what: fn(&HybridStats)| self.hybrids.count(Some(cid), what);
        if self.clients.of(account) >= vm.connections || !self.clients.has_room(account) {
            count(|stats| stats.over_connections.inc());
            return Err(Failed::Refused);
        }
        let socket = match socket::connect(path) {
            Ok(socket) => socket,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                count(|stats| stats.late.inc());
                return Err(Failed::Gone);
            }
            Err(error) => {
                count(|stats| stats.absent.inc());
                log_absent(cid, path, &error);
                return Err(Failed::Absent);
            }
        };
        let peer = Arc::new(Peer::of(&socket).map_err(|_| Failed::Absent)?);
        // A name in the VMM's directory may lead to a socket of others: those of root, too.
        if !vm.owner.map_or_else(|| self.rules.lock().is_ours(&peer), |owner| owner.includes(&peer)) {
            count(|stats| stats.not_owner.inc());
            tracing::warn!(
                cid,
                pid = peer.pid,
                uid = peer.uid,
                path = %path.display(),
                "the process that listens there is not of the VM's owner; change the VM's `owner`, or run the VMM as that user"
            );
            return Err(Failed::Absent);
        }
        let line = format!("CONNECT {port}\n");
        if socket::write(&socket, line.as_bytes()) != Io::Done(line.len()) {
            count(|stats| stats.refused_by_vmm.inc());
            return Err(Failed::Refused);
        }
        let state = State::Asked(call);
        let deadline = Some(Instant::now() + ANSWER);
        let socket = Arc::new(socket);
        let client = Client { socket, peer, account, state, deadline, waker: None };
        let token = self.admit(client).ok_or(Failed::Refused)?;
        self.hybrids.asks(call, token);
        self.hybrids.shows(token, cid, call);
        self.turns.charge(account, turns::CONNECT);
        Ok(())
    }

    /// The VMM has sent something, or has gone.
    pub(super) fn vmm_answers(&mut self, token: Token, call: Call, hung_up: bool) {
        let cid = call.key.server.0;
        let count = |what: fn(&HybridStats)| self.hybrids.count(Some(cid), what);
        let refused = match self.clients.get(token).map(|client| vmm_answer(&client.socket)) {
            None | Some(VmmAnswer::Later) => return,
            Some(VmmAnswer::Accepted) => !self.vmm_accepts(token, call, hung_up),
            Some(VmmAnswer::Refused) => {
                count(|stats| stats.refused_by_vmm.inc());
                true
            }
            Some(VmmAnswer::Malformed) => {
                count(|stats| stats.malformed.inc());
                tracing::warn!(cid, "the VMM's answer to CONNECT is malformed; the connection is closed");
                true
            }
        };
        if refused {
            self.hybrids.over(&self.router, call, Failed::Refused);
            self.close(token);
        }
    }

    /// The guest has accepted, and may have closed since. False if its end cannot be made; a client that has
    /// given up is dealt with here.
    fn vmm_accepts(&mut self, token: Token, call: Call, hung_up: bool) -> bool {
        let Key { client: (peer_cid, peer_port), server: (cid, port) } = call.key;
        let address = StreamAddress { cid, port, peer_cid, peer_port };
        let Ok((end, waker, mut ring)) = self.rings.ring(token, Account::Vm(cid), None, Some(address)) else {
            return false;
        };
        if let RingUse::Ours(pump) = &mut ring {
            pump.hung_up = hung_up;
        }
        self.hybrids.answered(call);
        self.accept_with(token, call, (end, waker, ring), CONNECT);
        true
    }

    /// The client has given up before the VMM has answered.
    pub(super) fn vmm_given_up(&mut self, call: Call) {
        if let Some(token) = self.hybrids.answered(call) {
            self.close(token);
        }
    }

    /// A deadline has passed: if it is a VMM's, that is counted.
    pub(super) fn vmm_is_late(&self, token: Token) {
        if let Some(client) = self.clients.get(token)
            && let State::Asked(call) = &client.state
        {
            self.hybrids.count(Some(call.key.server.0), |stats| stats.late.inc());
        }
    }

    /// A guest has connected to a port of the host: its VMM is at the socket of a forward.
    pub(super) fn forward(&mut self, (cid, port): (u32, u32), socket: OwnedFd, peer: Arc<Peer>) {
        let Some(vm) = self.router.vms().get(cid) else { return };
        let (account, most, to) = (Account::Vm(cid), vm.connections, target(&vm, port));
        self.turns.charge(account, turns::CONNECT);
        self.hybrids.count(Some(cid), |stats| stats.connects.inc());
        let full = self.clients.of(account) >= most;
        let socket = Arc::new(socket);
        let client = Client { socket, peer, account, state: State::Changing, deadline: None, waker: None };
        let token = if full { None } else { self.admit(client) };
        let Some(token) = token else {
            return self.hybrids.count(Some(cid), |stats| stats.over_connections.inc());
        };
        let dialect = Dialect::Forward(cid, port);
        let opened =
            to.ok_or(Errno::CONNRESET).and_then(|to| self.connect(token, dialect, to, false, CONNECT));
        if opened.is_err() {
            self.hybrids.count(Some(cid), |stats| stats.connects_refused.inc());
            self.close(token);
        }
    }

    /// The VM is served no more: its connections end.
    pub(super) fn remove_hybrid(&mut self, cid: u32) {
        let of = |dialect: Dialect| matches!(dialect, Dialect::Forward(of, _) if of == cid);
        self.poller.close(of);
        self.clients.tokens_of(Account::Vm(cid)).into_iter().for_each(|token| self.reset(token));
        self.rings.forget(Account::Vm(cid));
        self.hybrids.remove(cid);
    }
}

/// What an operator can do about a VMM that cannot be reached, if anything.
fn log_absent(cid: u32, path: &Path, error: &std::io::Error) {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => tracing::warn!(
            cid,
            path = %path.display(),
            "the VMM's socket does not let the daemon's user in; start the VMM with umask 007 (systemd: UMask=0007)"
        ),
        _ => tracing::debug!(cid, path = %path.display(), %error, "no VMM is there"),
    }
}
