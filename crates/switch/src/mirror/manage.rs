//! Mirrors as other threads manage them.

use std::io;
use std::sync::Arc;

use vmlane_port::wrap::FrameTap;
use vmlane_port::{Frames, PortStats};

use super::list::Mirror;
use super::port::MirrorPort;
use super::ring::Ring;
use super::tap::MirrorTap;
use super::{Copies, MirrorSpec, MirrorView};
use crate::queue::Change;
use crate::spec::PortSpec;
use crate::switch::Switch;

/// A mirror's own port. No VM, uplink or group has such a name.
fn port_spec(mirror: &MirrorSpec) -> PortSpec {
    let name = format!("mirror {}", mirror.name);
    PortSpec { name: name.clone(), group: name, ..PortSpec::default() }
}

impl Switch {
    /// Mirrors the ports with the names `from`, those that there are and those that come. Fails if the host
    /// has no memory for it. The caller sees to it that names of mirrors are unique and that no destination
    /// of a mirror is a source.
    pub fn add_mirror(&self, spec: MirrorSpec, from: Vec<String>) -> io::Result<()> {
        let ring = Arc::new(Ring::new()?);
        let stats = Arc::new(PortStats::default());
        let worker = self.id_of(&spec.to).map_or(0, |id| self.owner(id));
        let id = self.make_port(port_spec(&spec), stats.clone(), Some(worker))?;
        let mut mirror = Mirror { id, spec, from: Vec::new(), taps: Vec::new(), ring: ring.clone(), stats };
        let name = mirror.spec.name.clone();
        self.attach(id, Box::new(MirrorPort::new(ring)));
        {
            let mut mirrors = self.mirrors().lock();
            self.aim(&mut mirror);
            mirrors.0.push(mirror);
        }
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
        for port in gone {
            if let Some(at) = mirror.taps.iter().position(|(source, _)| source == port) {
                let (port, tap) = mirror.taps.swap_remove(at);
                self.remove_tap_of(&port, &tap);
            }
        }
        self.aim(mirror);
        for port in new {
            let MirrorSpec { direction, snap, .. } = mirror.spec;
            let tap = MirrorTap::new(mirror.ring.clone(), direction, snap, mirror.stats.clone());
            let tap: Arc<dyn FrameTap> = Arc::new(tap);
            mirror.taps.push((port.clone(), tap.clone()));
            self.add_tap(&port, tap);
        }
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
            self.unmake_port(mirror.id);
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
        for mirror in self.mirrors().lock().0.iter_mut().filter(|mirror| mirror.spec.to == port) {
            self.aim(mirror);
        }
    }

    /// Copies are delivered by the worker that owns their destination, so a mirror's port follows it.
    fn aim(&self, mirror: &mut Mirror) {
        let to = self.id_of(&mirror.spec.to);
        if let Some(worker) = to.map(|to| self.owner(to)).filter(|&worker| worker != self.owner(mirror.id)) {
            self.unmake_port(mirror.id);
            match self.make_port(port_spec(&mirror.spec), mirror.stats.clone(), Some(worker)) {
                Ok(id) => mirror.id = id,
                Err(full) => return tracing::warn!(mirror = mirror.spec.name, %full, "nothing is mirrored"),
            }
            self.attach(mirror.id, Box::new(MirrorPort::new(mirror.ring.clone())));
        }
        let copies = Copies { to, vlan: mirror.spec.vlan, parts: mirror.parts() };
        self.ask_owner(mirror.id, Change::Copy(copies));
    }
}
