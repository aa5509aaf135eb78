//! The uplinks in force: TAP interfaces of the host as ports of the switch.

use vmlane_api::UplinkStats;
use vmlane_port::{Frames, PortId};
use vmlane_stats::Counters;
use vmlane_switch::Switch;
use vmlane_transport::{Tap, TapError, TapOptions};

use crate::config::UplinkConfig;
use crate::nic::uplink_spec;

/// Why an uplink cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("uplink {name:?}: {cause}{}", why(cause))]
pub struct UplinkError {
    name: String,
    cause: TapError,
}

/// What the system said, if it said something.
fn why(error: &TapError) -> String {
    std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default()
}

/// Every uplink with its port.
#[derive(Default)]
pub struct Uplinks {
    known: Vec<(UplinkConfig, PortId)>,
}

impl Uplinks {
    /// Makes the uplinks those of `wanted`. Returns what was done; an error leaves the others alone.
    pub fn change(&mut self, switch: &Switch, wanted: &[UplinkConfig]) -> Result<Vec<String>, UplinkError> {
        let mut done = Vec::new();
        self.known.retain(|(uplink, port)| {
            let stays = wanted.contains(uplink);
            if !stays {
                switch.remove_port(*port);
                done.push(format!("uplink {:?}: removed", uplink.name));
            }
            stays
        });
        for uplink in wanted {
            if self.known.iter().any(|(known, _)| known == uplink) {
                continue;
            }
            let port = switch.add_port(uplink_spec(uplink));
            let options = TapOptions { name: uplink.tap.clone(), queues: uplink.queues };
            match Tap::open(&options, switch.stats(port)) {
                Ok(tap) => switch.attach(port, Box::new(tap)),
                Err(cause) => {
                    switch.remove_port(port);
                    return Err(UplinkError { name: uplink.name.clone(), cause });
                }
            }
            tracing::info!(uplink = uplink.name, tap = uplink.tap, "attached");
            done.push(format!("uplink {:?}: added", uplink.name));
            self.known.push((uplink.clone(), port));
        }
        Ok(done)
    }

    pub fn stats(&self, switch: &Switch) -> Vec<UplinkStats> {
        let one = |(uplink, port): &(UplinkConfig, PortId)| UplinkStats {
            name: uplink.name.clone(),
            port: switch.stats(*port).snapshot().into_iter().collect(),
        };
        self.known.iter().map(one).collect()
    }
}
