//! Connections with peers: made, proved, lost, made again; what is reported of them to an operator.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use vmlane_wire::route::{Op, Record, Refusal};

use super::state::{Entry, Helper, LISTENER, Stage};
use crate::admission::Admission;
use crate::frame::{Frame, VERSION};
use crate::link::{self, Lane, Link, LinkError, Phase, Token, Wire};
use crate::settings::{PeerSettings, Settings};
use crate::status::{PeerState, RETRY, Status};
use crate::tls::{CertificateFault, TlsError};

/// Connections that are accepted before others have their turn.
const ACCEPTS: usize = 64;
/// A peer's certificate is judged anew so often: it may have ended.
const JUDGE: Duration = Duration::from_secs(10);

impl Helper {
    /// Deadlines: of the daemon, of handshakes, of peers that send nothing.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        self.ticked = now;
        self.reach_daemon(now);
        if std::mem::take(&mut self.accepts_later) {
            self.wait_for_hosts(epoll::EventFlags::IN);
        }
        let dead = self.settings.dead;
        let (mut late, mut pinged) = (Vec::new(), Vec::new());
        for (&token, link) in &mut self.links {
            let lane = &mut link.lane;
            if lane.phase < Phase::Up {
                if now >= lane.deadline {
                    late.push((
                        token,
                        format!("it did not prove its name within {:?}", self.settings.bounds.handshake),
                    ));
                }
                continue;
            }
            if now.saturating_duration_since(lane.last_received) >= dead {
                late.push((token, format!("nothing was received from it for {} s", dead.as_secs())));
            } else if now.saturating_duration_since(lane.pinged) >= dead / 4 {
                lane.ping(now);
                pinged.push(token);
            }
        }
        pinged.into_iter().for_each(|token| self.again(token));
        for (token, why) in late {
            if let Some(link) = self.links.remove(&token) {
                let slow = link.lane.phase < Phase::Up && !link.lane.dialled;
                self.strangers.counts.handshakes_late += u64::from(slow);
                self.link_ends(link, &std::io::Error::other(why).into());
            }
        }
        self.judge(|lane| now.saturating_duration_since(lane.judged) >= JUDGE);
        self.dial_all(now);
        self.report_status();
    }

    /// Judges the certificates of peers anew, by what is configured now. Connections of those that do not
    /// pass end.
    fn judge(&mut self, due: impl Fn(&Lane) -> bool) {
        let now = Instant::now();
        let mut unfit = Vec::new();
        for (&token, link) in &mut self.links {
            if link.lane.phase > Phase::Handshaking && due(&link.lane) {
                link.lane.judged = now;
                let judged =
                    self.identity.judge(&link.wire.tls, &self.settings.peers, link.lane.peer.as_deref());
                unfit.extend(judged.err().map(|error| (token, error)));
            }
        }
        for (token, error) in unfit {
            if let Some(link) = self.links.remove(&token) {
                self.link_ends(link, &error.into());
            }
        }
    }

    fn dial_all(&mut self, now: Instant) {
        let due = |peer: &&PeerSettings| {
            let state = self.peers.get(&peer.name);
            self.settings.dials(peer) && state.is_some_and(|state| state.link.is_none() && state.retry <= now)
        };
        let due: Vec<_> = self.settings.peers.iter().filter(due).cloned().collect();
        for peer in due {
            let Some(address) = peer.address else { continue };
            if let Err(error) = self.dial(&peer.name, address) {
                self.peer_down(&peer.name, &error);
            }
        }
    }

    fn dial(&mut self, name: &str, address: SocketAddr) -> Result<(), LinkError> {
        let tls = self.identity.dial(name)?;
        let socket = link::connect(address)?;
        let token = self.token();
        let deadline = Instant::now() + self.settings.bounds.handshake;
        let mut link = Link::new(socket, tls, token, address.ip(), deadline);
        link.lane.peer = Some(name.to_owned());
        self.add_link(link)?;
        if let Some(state) = self.peers.get_mut(name) {
            state.link = Some(token);
            if state.status.state != "up" {
                state.status.state = "connecting";
            }
        }
        Ok(())
    }

    fn add_link(&mut self, link: Link) -> std::io::Result<()> {
        let wanted =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        self.watch(&link.wire.socket, link.lane.token, wanted)?;
        self.links.insert(link.lane.token, link);
        Ok(())
    }

    /// Other hosts connect.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            let (socket, address) = match link::accept(listener) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    self.accepting_failed(&error);
                    return self.accept_later();
                }
            };
            let Some(place) = self.unproved.take(address, Instant::now()) else {
                self.strangers.counts.over_handshakes += 1;
                continue;
            };
            let token = self.token();
            let deadline = Instant::now() + self.settings.bounds.handshake;
            let added = self
                .identity
                .answer()
                .map_err(LinkError::from)
                .and_then(|tls| Ok(self.add_link(Link::new(socket, tls, token, address, deadline))?));
            match added {
                Ok(()) => {
                    if let Some(link) = self.links.get_mut(&token) {
                        link.lane.place = Some(place);
                    }
                    self.again(token);
                }
                Err(error) => {
                    self.unproved.failed(place, Instant::now());
                    self.accepting_failed(&error);
                }
            }
        }
    }

    fn accepting_failed(&mut self, error: &dyn std::fmt::Display) {
        if let Some(held_back) = self.logs.accepting.allow() {
            tracing::warn!(%error, held_back, "another host's connection cannot be accepted");
        }
    }

    /// Connections wait until the next tick. Out of descriptors, most likely: others must end first, and the
    /// listening socket would be ready all the time.
    fn accept_later(&mut self) {
        self.accepts_later = true;
        self.wait_for_hosts(epoll::EventFlags::empty());
    }

    fn wait_for_hosts(&self, flags: epoll::EventFlags) {
        if let Some(listener) = &self.listener {
            let _ = epoll::modify(&*self.epoll, listener, epoll::EventData::new_u64(LISTENER), flags);
        }
    }

    pub(super) fn link_event(&mut self, token: Token, flags: epoll::EventFlags) {
        let Some(link) = self.links.get_mut(&token) else { return };
        link.wire.ends |=
            flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        link.wire.can_read |= flags.intersects(
            epoll::EventFlags::IN
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::HUP
                | epoll::EventFlags::ERR,
        );
        link.wire.can_write |=
            flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        self.again(token);
    }

    /// The handshake is through: whose name was proved?
    pub(super) fn name_proved(&mut self, wire: &mut Wire, lane: &mut Lane) -> Result<(), LinkError> {
        // The configuration may be another one than when the handshake began.
        let judged = self.identity.judge(&wire.tls, &self.settings.peers, lane.peer.as_deref());
        if let Err(TlsError::Unnamed) = judged {
            self.strangers.counts.unknown_names += 1;
        }
        (lane.peer, lane.judged) = (Some(judged?), Instant::now());
        lane.phase = Phase::Greeting;
        let streams = self.settings.bounds.streams as u32;
        lane.queue(&Frame::Hello { version: VERSION, streams });
        Ok(())
    }

    /// The peer's first frame is there.
    pub(super) fn link_up(&mut self, lane: &mut Lane) {
        lane.phase = Phase::Up;
        lane.ping(Instant::now());
        if let Some(place) = lane.place.take() {
            self.unproved.proved(place);
        }
        let name = lane.peer.clone().unwrap_or_default();
        self.remember_address(&name, lane);
        let Some(state) = self.peers.get_mut(&name) else { return };
        let before = state.link.replace(lane.token).filter(|&before| before != lane.token);
        state.status.state = "up";
        state.status.problem.clear();
        state.status.counts.links += 1;
        state.timeout = RETRY[0];
        if let Some(held_back) = state.ups.allow() {
            tracing::info!(peer = name, address = %lane.address, held_back, "connected");
        }
        if let Some(link) = before.and_then(|before| self.links.remove(&before)) {
            // It was started again, and this host has not noticed.
            self.link_ends(link, &std::io::Error::other("it has connected anew").into());
            if let Some(state) = self.peers.get_mut(&name) {
                (state.link, state.status.state) = (Some(lane.token), "up");
                state.status.problem.clear();
            }
        }
        self.report_peer(&name);
    }

    /// A connection is over: so are its streams.
    pub(super) fn link_ends(&mut self, link: Link, error: &LinkError) {
        let Lane { token, phase, address, place, peer, streams, sent, received, .. } = link.lane;
        drop(link.wire);
        for token in streams.into_values() {
            if let Some(Entry { stage: Stage::Calling(number), .. }) = self.entries.get(&token) {
                let gone = Refusal::Gone as u32;
                self.send_to_daemon(&Record::message(Op::Refuse, *number, Default::default(), gone, ""));
            }
            self.drop_stream(token, None);
        }
        if let Some(place) = place {
            self.unproved.failed(place, Instant::now());
        }
        let fault = if let LinkError::Tls(error) = error {
            error.certificate_fault()
        } else {
            CertificateFault::Other
        };
        let violation = matches!(error, LinkError::Tls(TlsError::Violation(_)));
        let state = peer.as_ref().and_then(|name| self.peers.get_mut(name));
        let counts = match state {
            Some(state) => &mut state.status.counts,
            None => &mut self.strangers.counts,
        };
        if phase == Phase::Up {
            counts.links_lost += 1;
        } else {
            counts.handshakes_failed += 1;
        }
        counts.violations += u64::from(violation);
        counts.certificates_expired +=
            u64::from(matches!(fault, CertificateFault::Expired | CertificateFault::NotYet));
        counts.certificates_foreign += u64::from(fault == CertificateFault::Foreign);
        counts.certificates_revoked += u64::from(fault == CertificateFault::Revoked);
        counts.bytes_sent += sent;
        counts.bytes_received += received;
        match &peer {
            Some(name) => {
                if self.peers.get(name).is_some_and(|state| state.link == Some(token)) {
                    self.peer_down(name, error);
                }
            }
            None => {
                let text = format!("{address}: {error}");
                if self.strangers.problem != text
                    && let Some(held_back) = self.logs.strangers.allow()
                {
                    tracing::warn!(%address, held_back, "a host that has proved no name: {error}");
                }
                self.strangers.problem = text;
            }
        }
    }

    fn peer_down(&mut self, name: &str, error: &LinkError) {
        let Some(state) = self.peers.get_mut(name) else { return };
        let text = error.to_string();
        if (state.status.problem != text || state.status.state == "up")
            && let Some(held_back) = state.downs.allow()
        {
            tracing::warn!(peer = name, held_back, "not connected: {text}");
        }
        (state.link, state.status.state, state.status.problem) = (None, "down", text);
        state.retry = Instant::now() + spread(state.timeout);
        state.timeout = (state.timeout * 2).min(RETRY[1]);
        self.report_peer(name);
    }

    /// The configuration is another one.
    pub(super) fn peers_change(&mut self) {
        let known = self.settings.peers.iter().map(|peer| peer.name.clone());
        let mut before = std::mem::take(&mut self.peers);
        self.peers = known.map(|name| (name.clone(), before.remove(&name).unwrap_or_default())).collect();
        self.readmit();
        for state in self.peers.values_mut() {
            // Perhaps it can be reached now.
            (state.retry, state.timeout) = (Instant::now(), RETRY[0]);
        }
        for link in before.into_values().filter_map(|state| state.link) {
            if let Some(link) = self.links.remove(&link) {
                self.link_ends(link, &std::io::Error::other("it is not configured any more").into());
            }
        }
        self.judge(|_| true);
    }

    /// Where a peer has connected from has places for it from here on.
    fn remember_address(&mut self, name: &str, lane: &Lane) {
        let Some(state) = self.peers.get_mut(name).filter(|_| !lane.dialled) else { return };
        if state.address.replace(lane.address) != Some(lane.address) {
            self.unproved.set_peers(addresses(&self.settings, &self.peers));
        }
    }

    /// Gives places out anew: how many there are may have changed.
    fn readmit(&mut self) {
        self.unproved = admission(&self.settings, &self.peers);
        let now = Instant::now();
        for lane in self.links.values_mut().map(|link| &mut link.lane) {
            if lane.place.is_some() {
                lane.place = self.unproved.take(lane.address, now);
            }
        }
    }

    /// Reports to the daemon the status of each peer whose status has changed, and of the helper itself.
    pub(super) fn report_status(&mut self) {
        let changed: Vec<(String, Status)> = self
            .peers
            .iter()
            .map(|(name, state)| (name, self.status_of(state), &state.reported))
            .filter(|(_, now, reported)| Some(now) != reported.as_ref())
            .map(|(name, now, _)| (name.clone(), now))
            .collect();
        for (name, now) in changed {
            if !self.report(&name, now) {
                return; // reported once there is room, or a daemon
            }
        }
        if self.strangers_reported.as_ref() != Some(&self.strangers) && self.send_status("", &self.strangers)
        {
            self.strangers_reported = Some(self.strangers.clone());
        }
    }

    /// The same of one peer, to which something has just happened.
    fn report_peer(&mut self, name: &str) {
        let now = self.peers.get(name).map(|state| self.status_of(state));
        if let Some(now) = now {
            self.report(name, now);
        }
    }

    /// With what was sent and received on the connection that is up.
    fn status_of(&self, state: &PeerState) -> Status {
        let mut status = state.status.clone();
        if let Some(link) = state.link.and_then(|link| self.links.get(&link)) {
            status.counts.bytes_sent += link.lane.sent;
            status.counts.bytes_received += link.lane.received;
        }
        status
    }

    fn report(&mut self, name: &str, now: Status) -> bool {
        let sent = self.send_status(name, &now);
        if let Some(state) = self.peers.get_mut(name).filter(|_| sent) {
            state.reported = Some(now);
        }
        sent
    }

    fn send_status(&self, name: &str, status: &Status) -> bool {
        self.send_to_daemon(&Record::message(Op::Status, 0, Default::default(), 0, &status.text(name)))
    }
}

pub(super) fn admission(settings: &Settings, peers: &BTreeMap<String, PeerState>) -> Admission {
    let mut admission = Admission::new(settings.bounds.handshakes, 2 * settings.peers.len());
    admission.set_peers(addresses(settings, peers));
    admission
}

/// Where peers connect from, as far as it is known: what is configured, and where they were last.
fn addresses(settings: &Settings, peers: &BTreeMap<String, PeerState>) -> HashSet<IpAddr> {
    let calls = settings.peers.iter().filter(|peer| !settings.dials(peer));
    let known = |peer: &PeerSettings| {
        let last = peers.get(&peer.name).and_then(|state| state.address);
        [peer.address.map(|address| address.ip()), last].into_iter().flatten()
    };
    calls.flat_map(known).collect()
}

/// Half of it to all of it: hosts that have lost the same one do not come back to it all at once, again and
/// again.
fn spread(timeout: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    timeout / 2 + (timeout / 2).mul_f64(random as f64 / u64::MAX as f64)
}
