//! Other hosts as the operator's thread knows them: the socket of the helper, and the endpoints of their
//! CIDs.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_vsock::{Call, ConnectError, Endpoint, RemoteRange, Router};

use super::inbox::{Inbox, Message};
use super::route::{PeerShared, PeerView, Routes};
use super::socket;

/// See the module's text.
#[derive(Default)]
pub struct RouteSocket {
    /// Where the helper connects, once there are other hosts.
    path: Option<PathBuf>,
    /// By name, with its number; the one without a name is the helper itself.
    peers: BTreeMap<String, (u32, Arc<PeerShared>)>,
    last: u32,
}

impl RouteSocket {
    pub fn set(
        &mut self,
        path: &Path,
        routes: Option<Routes>,
        router: &Router,
        inbox: &Arc<Inbox>,
    ) -> io::Result<()> {
        let Some(routes) = routes else {
            self.end(router);
            self.peers.clear();
            inbox.send(Message::Routes(None, HashMap::new()));
            return Ok(());
        };
        let socket = if self.path.is_none() { Some(socket::listen(path, 0o600)?) } else { None };
        let names = routes.peers.iter().map(|peer| peer.name.as_str()).chain([""]);
        let mut peers = BTreeMap::new();
        for name in names {
            let known = self.peers.remove(name).unwrap_or_else(|| {
                self.last += 1;
                (self.last, Arc::default())
            });
            peers.insert(name.to_owned(), known);
        }
        self.peers = peers;
        router.set_remotes(self.ranges(&routes, inbox));
        let known = self.peers.clone().into_iter().collect();
        inbox.send(Message::Routes(Some(Arc::new(routes)), known));
        if let Some(socket) = socket {
            self.path = Some(path.to_owned());
            inbox.send(Message::ListenRoute(socket));
        }
        Ok(())
    }

    fn ranges(&self, routes: &Routes, inbox: &Arc<Inbox>) -> Vec<(RemoteRange, Arc<dyn Endpoint>)> {
        let mut ranges = Vec::new();
        for peer in &routes.peers {
            let Some((_, shared)) = self.peers.get(&peer.name) else { continue };
            let endpoint: Arc<dyn Endpoint> =
                Arc::new(RouteEndpoint { inbox: inbox.clone(), peer: shared.clone() });
            let groups: Arc<[String]> = peer.groups.clone().into();
            let range = |&(first, last): &_| RemoteRange { first, last, groups: groups.clone() };
            ranges.extend(peer.cids.iter().map(|cids| (range(cids), endpoint.clone())));
        }
        ranges
    }

    pub fn views(&self) -> Vec<PeerView> {
        let helper = self.peers.get("").is_some_and(|(_, shared)| !shared.report.lock().state.is_empty());
        self.peers.iter().map(|(name, (_, shared))| shared.view(name, helper)).collect()
    }

    /// Nothing answers for other hosts any more.
    pub fn end(&mut self, router: &Router) {
        router.set_remotes(Vec::new());
        if let Some(path) = self.path.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What answers for the CIDs of one peer.
struct RouteEndpoint {
    inbox: Arc<Inbox>,
    peer: Arc<PeerShared>,
}

impl Endpoint for RouteEndpoint {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        if !self.peer.up.load(Ordering::Acquire) {
            self.peer.stats.calls.inc();
            self.peer.stats.calls_refused.inc();
            return Err(ConnectError::Unreachable);
        }
        self.inbox.request(call)
    }

    fn given_up(&self, call: Call) {
        // The helper has been asked already: it is notified.
        if !self.inbox.withdraw(call) {
            self.inbox.send(Message::GivenUp(call));
        }
    }
}
