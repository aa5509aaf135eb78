//! The uplinks in force: TAP interfaces of the host as ports of the switch.

use vmlane_api::UplinkStats;
use vmlane_host::uplink::{Tap, TapError, TapOptions};
use vmlane_port::{Frames, PortId};
use vmlane_stats::Counters;
use vmlane_switch::Switch;

use crate::config::UplinkConfig;
use crate::confine;
use crate::nic::uplink_spec;

/// Why an uplink cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    #[error("uplink {name:?}: {cause}{}", why(cause))]
    Tap { name: String, cause: TapError },
    #[error(
        "uplink {name:?}: a confined daemon has given up the right to attach interfaces; start it again (it \
         attaches what the configuration has then)"
    )]
    Confined { name: String },
}

fn open(uplink: &UplinkConfig) -> Result<Tap, UplinkError> {
    let options = TapOptions { name: uplink.tap.clone(), queues: uplink.queues };
    Tap::open(&options, Default::default())
        .map_err(|cause| UplinkError::Tap { name: uplink.name.clone(), cause })
}

/// What the system said, if it said something.
fn why(error: &TapError) -> String {
    std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default()
}

/// Every uplink with its port.
#[derive(Default)]
pub struct Uplinks {
    known: Vec<(UplinkConfig, PortId)>,
    /// Opened while the daemon might still do that.
    ready: Vec<(UplinkConfig, Tap)>,
}

impl Uplinks {
    /// Opens the interfaces of `wanted`; [`Uplinks::change`] attaches them.
    pub fn prepare(wanted: &[UplinkConfig]) -> Result<Uplinks, UplinkError> {
        let ready = wanted.iter().map(|uplink| Ok((uplink.clone(), open(uplink)?)));
        Ok(Uplinks { known: Vec::new(), ready: ready.collect::<Result<_, _>>()? })
    }

    /// The interface of an uplink, opened now unless it was before.
    fn take(&mut self, uplink: &UplinkConfig) -> Result<Tap, UplinkError> {
        match self.ready.iter().position(|(ready, _)| ready == uplink) {
            Some(index) => Ok(self.ready.swap_remove(index).1),
            None if confine::is_confined() => Err(UplinkError::Confined { name: uplink.name.clone() }),
            None => open(uplink),
        }
    }

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
            let mut tap = self.take(uplink)?;
            let port = switch.add_port(uplink_spec(uplink));
            tap.set_stats(switch.stats(port));
            switch.attach(port, Box::new(tap));
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
