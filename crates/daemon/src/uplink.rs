//! The uplinks in force: TAP interfaces of the host as ports of the switch.

use vmlane_api::UplinkStats;
use vmlane_switch::Switch;

use crate::config::UplinkConfig;

/// Why an uplink cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("uplink {name:?}: this version cannot serve uplinks yet; remove the table")]
pub struct UplinkError {
    name: String,
}

/// Every uplink with its port.
#[derive(Default)]
pub struct Uplinks;

impl Uplinks {
    /// Makes the uplinks those of `wanted`. Returns what was done.
    pub fn change(&mut self, _switch: &Switch, wanted: &[UplinkConfig]) -> Result<Vec<String>, UplinkError> {
        match wanted.first() {
            Some(uplink) => Err(UplinkError { name: uplink.name.clone() }),
            None => Ok(Vec::new()),
        }
    }

    pub fn stats(&self, _switch: &Switch) -> Vec<UplinkStats> {
        Vec::new()
    }
}
