//! Ports come and go, and taps and mirrors wait for them by name.

use std::sync::Arc;

use vmlane_port::{PortId, PortStats};

use super::Switch;
use crate::numbers::SwitchFull;
use crate::spec::PortSpec;

impl Switch {
    /// Makes a port; nothing is attached to it yet.
    pub fn add_port(&self, spec: PortSpec) -> Result<PortId, SwitchFull> {
        self.add_counted_port(spec, PortStats::default())
    }

    /// The same, which counts in `stats`.
    pub fn add_counted_port(&self, spec: PortSpec, stats: PortStats) -> Result<PortId, SwitchFull> {
        let name = spec.name.clone();
        let _here = self.whose.read_recursive();
        let taps = self.taps.lock();
        let id = self.make_port(spec, Arc::new(stats), None)?;
        self.place_known_taps(&taps, &name);
        drop(taps);
        self.aim_mirrors(&name);
        Ok(id)
    }

    /// Removes a port; what is attached to it is dropped. False if there is none.
    pub fn remove_port(&self, id: PortId) -> bool {
        let _here = self.whose.read_recursive();
        let taps = self.taps.lock();
        let Some(spec) = self.unmake_port(id) else { return false };
        self.place_known_taps(&taps, &spec.name);
        drop(taps);
        self.aim_mirrors(&spec.name);
        true
    }
}
