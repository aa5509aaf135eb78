//! Mirrors as other threads manage them.

use std::io;
use std::sync::Arc;

use vmlane_port::PortStats;
use vmlane_wire::ethernet::Mac;

use super::list::Mirror;
use super::port::MirrorPort;
use super::ring::Ring;
use super::tap::MirrorTap;
use super::{Copies, MirrorSpec, MirrorView};
use crate::port::PortState;
use crate::queue::Request;
use crate::spec::{Policy, PortSpec, Traffic, VlanMode};
use crate::switch::Switch;

impl Switch {
    /// Mirrors the ports with the names `from`, those that there are and those that come. Fails if the host has no memory
    /// for it. The caller sees to it that names of mirrors are unique and that no destination of a mirror is a source.
    pub fn add_mirror(&self, spec: MirrorSpec, from: Vec<String>) -> io::Result<()> {
        let ring = Arc::new(Ring::new()?);
        let id = self.next_id();
        let stats = Arc::new(PortStats::default());
        let tap = MirrorTap::new(ring.clone(), spec.direction, spec.snap, stats.clone());
        // No VM, uplink or group has such a name.
        let name = format!("mirror {}", spec.name);
        let port = PortSpec {
            name: name.clone(),
            group: name,
            mac: Mac::default(),
            vlan: VlanMode::Untagged,
            policy: Policy::default(),
            traffic: Traffic::default(),
            uplink: false,
        };
        let state = Arc::new(PortState::default());
        self.ask(Request::Add { id, spec: port, stats: stats.clone(), state, shaper: None });
        let mirror = Mirror { id, spec, from: Vec::new(), tap: Arc::new(tap), stats };
        let name = mirror.spec.name.clone();
        {
            let mut mirrors = self.mirrors().lock();
            self.aim(&mirror);
            mirrors.0.push(mirror);
        }
        self.ask(Request::Attach { id, end: Box::new(MirrorPort::new(ring)) });
        self.set_mirror_sources(&name, from);
        Ok(())
    }

    /// Changes which ports a mirror copies from. False: there is no mirror of that name.
    pub fn set_mirror_sources(&self, name: &str, from: Vec<String>) -> bool {
        let mut mirrors = self.mirrors().lock();
        let Some(mirror) = mirrors.0.iter_mut().find(|mirror| mirror.spec.name == name) else { return false };
        let before = std::mem::replace(&mut mirror.from, from);
        let gone: Vec<&String> = before.iter().filter(|port| !mirror.from.contains(port)).collect();
        let new: Vec<String> = mirror.from.iter().filter(|port| !before.contains(port)).cloned().collect();
        gone.into_iter().for_each(|port| self.remove_tap_of(port, &mirror.tap));
        let tap = mirror.tap.clone();
        self.aim(mirror);
        new.iter().for_each(|port| self.add_tap(port, tap.clone()));
        true
    }

    /// Ends a mirror. False: there is none of that name.
    pub fn remove_mirror(&self, name: &str) -> bool {
        if !self.set_mirror_sources(name, Vec::new()) {
            return false;
        }
        let mut mirrors = self.mirrors().lock();
        if let Some(at) = mirrors.0.iter().position(|mirror| mirror.spec.name == name) {
            let mirror = mirrors.0.remove(at);
            self.ask(Request::Remove { id: mirror.id });
        }
        true
    }

    /// All mirrors, in the order of their making.
    pub fn mirror_views(&self) -> Vec<MirrorView> {
        let view = |mirror: &Mirror| MirrorView {
            spec: mirror.spec.clone(),
            from: mirror.from.clone(),
            stats: mirror.stats.clone(),
        };
        self.mirrors().lock().0.iter().map(view).collect()
    }

    /// The port with a name has come or gone: mirrors to it find it, or do without.
    pub(crate) fn aim_mirrors(&self, port: &str) {
        for mirror in self.mirrors().lock().0.iter().filter(|mirror| mirror.spec.to == port) {
            self.aim(mirror);
        }
    }

    fn aim(&self, mirror: &Mirror) {
        let to = self.id_of(&mirror.spec.to);
        let copies = Copies { to, vlan: mirror.spec.vlan, parts: mirror.parts() };
        self.ask(Request::Copy { id: mirror.id, copies });
    }
}
