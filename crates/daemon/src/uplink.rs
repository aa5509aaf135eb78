//! The uplinks in force: TAP interfaces of the host as ports of the switch.
//!
//! | file | what |
//! | --- | --- |
//! | `helper.rs` | the daemon's side of the process that attaches interfaces for a confined daemon |
//! | `process.rs` | that process |
//! | `messages.rs` | what they say to each other |

mod helper;
mod messages;
mod process;

use std::path::Path;

use vmlane_api::UplinkStats;
use vmlane_host::uplink::{Tap, TapError, TapFiles, TapOptions};
use vmlane_port::{Frames, PortId};
use vmlane_stats::Counters;
use vmlane_switch::Switch;

use crate::config::UplinkConfig;
use crate::confine;
use crate::nic::uplink_spec;

use self::helper::{Helper, HelperError};
pub use self::process::serve;

/// Why an uplink cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    #[error("uplink {name:?}: {cause}{}", why(cause))]
    Tap { name: String, cause: TapError },
    #[error("uplink {name:?}: {cause}")]
    Helper { name: String, cause: HelperError },
    #[error(
        "uplink {name:?}: the helper that attaches interfaces could not be started; start the daemon again"
    )]
    NoHelper { name: String },
}

fn options(uplink: &UplinkConfig) -> TapOptions {
    TapOptions { name: uplink.tap.clone(), queues: uplink.queues }
}

fn failed(uplink: &UplinkConfig) -> impl Fn(TapError) -> UplinkError {
    |cause| UplinkError::Tap { name: uplink.name.clone(), cause }
}

fn open(uplink: &UplinkConfig) -> Result<TapFiles, UplinkError> {
    TapFiles::open(&options(uplink)).map_err(failed(uplink))
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
    ready: Vec<(UplinkConfig, TapFiles)>,
    /// Opens those that come later.
    helper: Option<Helper>,
}

impl Uplinks {
    /// Opens the interfaces of `wanted`; [`Uplinks::change`] attaches them.
    pub fn prepare(wanted: &[UplinkConfig]) -> Result<Uplinks, UplinkError> {
        let ready = wanted.iter().map(|uplink| Ok((uplink.clone(), open(uplink)?)));
        let ready = ready.collect::<Result<_, _>>()?;
        Ok(Uplinks { ready, ..Uplinks::default() })
    }

    /// Starts the helper, for a daemon that is about to be confined. `config`: the file that names uplinks.
    pub fn keep_rights(&mut self, config: &Path) {
        match Helper::start(config) {
            Ok(helper) => self.helper = Some(helper),
            Err(error) => tracing::warn!(
                %error,
                "the helper that attaches interfaces cannot be started: a reload that adds an uplink will be refused"
            ),
        }
    }

    /// The interface of uplink number `index` of the configuration, opened now unless it was before.
    fn take(&mut self, index: usize, uplink: &UplinkConfig) -> Result<Tap, UplinkError> {
        let files = match self.ready.iter().position(|(ready, _)| ready == uplink) {
            Some(ready) => self.ready.swap_remove(ready).1,
            None if confine::is_confined() => {
                let name = || uplink.name.clone();
                let helper = self.helper.as_mut().ok_or_else(|| UplinkError::NoHelper { name: name() })?;
                helper.open(index, uplink).map_err(|cause| UplinkError::Helper { name: name(), cause })?
            }
            None => open(uplink)?,
        };
        Tap::new(&options(uplink), files, Default::default()).map_err(failed(uplink))
    }

    /// Makes the uplinks those of `wanted`. Returns what was done, and what was not; an error leaves the others alone.
    pub fn change(&mut self, switch: &Switch, wanted: &[UplinkConfig]) -> (Vec<String>, Vec<UplinkError>) {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        self.known.retain(|(uplink, port)| {
            let stays = wanted.contains(uplink);
            if !stays {
                switch.remove_port(*port);
                let changes = wanted.iter().any(|other| other.name == uplink.name);
                done.extend((!changes).then(|| format!("uplink {:?}: removed", uplink.name)));
            }
            stays
        });
        for (index, uplink) in wanted.iter().enumerate() {
            if self.known.iter().any(|(known, _)| known == uplink) {
                continue;
            }
            match self.take(index, uplink) {
                Ok(tap) => {
                    self.attach(switch, uplink, tap);
                    done.push(format!("uplink {:?}: attached to {}", uplink.name, uplink.tap));
                }
                Err(error) => refused.push(error),
            }
        }
        (done, refused)
    }

    fn attach(&mut self, switch: &Switch, uplink: &UplinkConfig, mut tap: Tap) {
        let port = switch.add_port(uplink_spec(uplink));
        tap.set_stats(switch.stats(port));
        switch.attach(port, Box::new(tap));
        tracing::info!(uplink = uplink.name, tap = uplink.tap, "attached");
        self.known.push((uplink.clone(), port));
    }

    pub fn stats(&self, switch: &Switch) -> Vec<UplinkStats> {
        let one = |(uplink, port): &(UplinkConfig, PortId)| UplinkStats {
            name: uplink.name.clone(),
            port: switch.stats(*port).snapshot().into_iter().collect(),
        };
        self.known.iter().map(one).collect()
    }
}
