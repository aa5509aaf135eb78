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

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vmlane_api::UplinkStats;
use vmlane_host::uplink::{Tap, TapError, TapFiles, TapOptions, is_gone, mtu};
use vmlane_port::{Frames, PortId};
use vmlane_state::{Found, Store};
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
    #[error("uplink {name:?}: there is no helper any more that attaches interfaces; start the daemon again")]
    NoHelper { name: String },
}

fn options(uplink: &UplinkConfig) -> TapOptions {
    TapOptions { name: uplink.tap.clone(), queues: uplink.queues }
}

fn failed(uplink: &UplinkConfig) -> impl Fn(TapError) -> UplinkError {
    |cause| UplinkError::Tap { name: uplink.name.clone(), cause }
}

/// How long an interface may be in use: the port that had it goes in its own time.
const PATIENCE: Duration = Duration::from_secs(2);

fn open_patiently(options: &TapOptions) -> Result<TapFiles, TapError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TapFiles::open(options) {
            Err(TapError::Busy { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// What the system said, if it said something.
fn why(error: &TapError) -> String {
    std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default()
}

/// One in force, with its port.
struct Uplink {
    config: UplinkConfig,
    port: PortId,
    /// None: the interface is gone, and the port waits for it.
    attached: Option<Attached>,
}

/// What is known of the interface.
struct Attached {
    /// One of its queues.
    watch: OwnedFd,
    mtu: Arc<AtomicUsize>,
}

/// Every uplink with its port.
#[derive(Default)]
pub struct Uplinks {
    known: Vec<Uplink>,
    /// Opened while the daemon might still do that, or held for it since the previous one ended.
    ready: Vec<(UplinkConfig, TapFiles)>,
    /// In use when this daemon began, with their MTU and why they could not be opened: the previous daemon's files may be held.
    busy: Vec<(UplinkConfig, usize, UplinkError)>,
    /// Holds the interfaces for the next daemon, so that they keep addresses and bridges.
    store: Option<Arc<dyn Store>>,
    /// Opens those that come later.
    helper: Option<Helper>,
}

impl Uplinks {
    /// Opens the interfaces of `wanted`; [`Uplinks::change`] attaches them.
    pub fn prepare(wanted: &[UplinkConfig]) -> Result<Uplinks, UplinkError> {
        let mut uplinks = Uplinks::default();
        for uplink in wanted {
            match TapFiles::open(&options(uplink)) {
                Ok(files) => uplinks.ready.push((uplink.clone(), files)),
                Err(busy @ TapError::Busy { .. }) => {
                    let mtu = mtu(&uplink.tap).map_err(failed(uplink))?;
                    uplinks.busy.push((uplink.clone(), mtu, failed(uplink)(busy)));
                }
                Err(error) => return Err(failed(uplink)(error)),
            }
        }
        Ok(uplinks)
    }

    /// Takes the interfaces that a previous daemon left, and leaves its own to the next one from now on. An error: one is in use
    /// by another program.
    pub fn resume(&mut self, store: Arc<dyn Store>, found: &mut Found) -> Result<(), UplinkError> {
        for (uplink, mtu, busy) in std::mem::take(&mut self.busy) {
            let left = (0..uplink.queues.unwrap_or(1)).map(|number| found.take(&held(&uplink.tap, number)));
            let queues = left.collect::<Option<Vec<OwnedFd>>>().ok_or(busy)?;
            self.ready.push((uplink, TapFiles { queues, mtu }));
        }
        self.store = Some(store);
        Ok(())
    }

    /// The helper, unless it has failed.
    fn ask_helper<T>(
        &mut self,
        uplink: &UplinkConfig,
        ask: impl FnOnce(&mut Helper) -> Result<T, HelperError>,
    ) -> Result<T, UplinkError> {
        let name = || uplink.name.clone();
        let helper = self.helper.as_mut().ok_or_else(|| UplinkError::NoHelper { name: name() })?;
        let answer = ask(helper);
        if let Err(HelperError::Gone(error)) = &answer {
            // It is not waited for again.
            tracing::error!(%error, "the helper that attaches interfaces does not answer: a reload can add no uplink any more");
            self.helper = None;
        }
        answer.map_err(|cause| UplinkError::Helper { name: name(), cause })
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

    /// The interface of uplink number `index` of the configuration, opened now unless it was before. `make` it if there is none.
    fn take(&mut self, index: usize, uplink: &UplinkConfig, make: bool) -> Result<Tap, UplinkError> {
        let files = match self.ready.iter().position(|(ready, _)| ready == uplink) {
            Some(ready) => self.ready.swap_remove(ready).1,
            None if confine::is_confined() => {
                self.ask_helper(uplink, |helper| helper.open(index, uplink, make))?
            }
            None => {
                let there = if make { Ok(0) } else { mtu(&uplink.tap) };
                there.and_then(|_| open_patiently(&options(uplink))).map_err(failed(uplink))?
            }
        };
        if let Some(store) = &self.store {
            hold(&**store, uplink, &files.queues);
        }
        Tap::new(&options(uplink), files, Default::default()).map_err(failed(uplink))
    }

    /// Makes the uplinks those of `wanted`. Returns what was done, and what was not; an error leaves the others alone.
    pub fn change(&mut self, switch: &Switch, wanted: &[UplinkConfig]) -> (Vec<String>, Vec<UplinkError>) {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        self.known.retain(|Uplink { config, port, .. }| {
            let stays = wanted.contains(config);
            if !stays {
                switch.remove_port(*port);
                self.store.iter().for_each(|store| store.remove_all(&held_prefix(&config.tap)));
                let changes = wanted.iter().any(|other| other.name == config.name);
                done.extend((!changes).then(|| format!("uplink {:?}: removed", config.name)));
            }
            stays
        });
        for (index, uplink) in wanted.iter().enumerate() {
            if self.known.iter().any(|known| known.config == *uplink) {
                continue;
            }
            match self.take(index, uplink, true) {
                Ok(tap) => {
                    let port = switch.add_port(uplink_spec(uplink));
                    let attached = attach(switch, port, uplink, tap);
                    self.known.push(Uplink { config: uplink.clone(), port, attached });
                    done.push(format!("uplink {:?}: attached to {}", uplink.name, uplink.tap));
                }
                Err(error) => refused.push(error),
            }
        }
        (done, refused)
    }

    /// Sees to interfaces that have gone, have come back, or have another MTU. `configured`: those of the file, in its order.
    pub fn look(&mut self, switch: &Switch, configured: &[UplinkConfig]) {
        for number in 0..self.known.len() {
            let Some(Uplink { config, port, attached }) = self.known.get(number) else { return };
            let Some(index) = configured.iter().position(|uplink| uplink == config) else { continue };
            let (config, port, attached_now) = (config.clone(), *port, attached.is_some());
            let attached = match attached {
                Some(attached) if is_gone(&attached.watch) => {
                    let (uplink, tap) = (&config.name, &config.tap);
                    tracing::warn!(uplink, tap, "the interface is gone; the port waits for one of this name");
                    switch.detach(port);
                    self.store.iter().for_each(|store| store.remove_all(&held_prefix(&config.tap)));
                    None
                }
                Some(Attached { mtu, .. }) => {
                    let mtu = mtu.clone();
                    self.follow_mtu(switch, (index, &config, port), &mtu);
                    continue;
                }
                // Why not is of no interest: it is tried again.
                None => {
                    self.take(index, &config, false).ok().and_then(|tap| attach(switch, port, &config, tap))
                }
            };
            if attached.is_some() != attached_now
                && let Some(known) = self.known.get_mut(number)
            {
                known.attached = attached;
            }
        }
    }

    /// Has the port carry what its interface carries now.
    fn follow_mtu(&mut self, switch: &Switch, of: (usize, &UplinkConfig, PortId), known: &AtomicUsize) {
        let (index, uplink, port) = of;
        let now = if self.helper.is_some() {
            self.ask_helper(uplink, |helper| helper.mtu(index, uplink)).ok()
        } else if confine::is_confined() {
            None
        } else {
            mtu(&uplink.tap).ok()
        };
        if let Some(now) = now.filter(|now| *now != known.load(Ordering::Relaxed)) {
            tracing::info!(
                uplink = uplink.name,
                tap = uplink.tap,
                mtu = now,
                "the interface has another MTU"
            );
            known.store(now, Ordering::Relaxed);
            switch.refresh(port);
        }
    }

    /// No daemon follows: the interfaces are let go.
    pub fn end(&mut self) {
        self.known.clear();
        self.store.iter().for_each(|store| store.remove_all(HELD));
    }

    pub fn stats(&self, switch: &Switch) -> Vec<UplinkStats> {
        let one = |Uplink { config, port, .. }: &Uplink| UplinkStats {
            name: config.name.clone(),
            port: switch.stats(*port).snapshot().into_iter().collect(),
        };
        self.known.iter().map(one).collect()
    }
}

/// Under what the queues of an interface are held for the next daemon. No VM's devices have such a name: theirs have a dot.
const HELD: &str = "uplink/";

fn held_prefix(tap: &str) -> String {
    format!("{HELD}{tap}/")
}

fn held(tap: &str, queue: u16) -> String {
    format!("{HELD}{tap}/{queue}")
}

fn hold(store: &dyn Store, uplink: &UplinkConfig, queues: &[OwnedFd]) {
    for (number, queue) in (0..).zip(queues) {
        if let Err(error) = store.put(&held(&uplink.tap, number), queue.as_fd()) {
            tracing::warn!(uplink = uplink.name, %error, "the next daemon will attach this interface anew");
        }
    }
}

/// Connects an interface to its port. None: it could not be watched, and is let go.
fn attach(switch: &Switch, port: PortId, uplink: &UplinkConfig, mut tap: Tap) -> Option<Attached> {
    let attached = match tap.watch() {
        Ok(watch) => Attached { watch, mtu: tap.mtu() },
        Err(error) => {
            tracing::error!(uplink = uplink.name, %error, "watching an interface");
            return None;
        }
    };
    tap.set_stats(switch.stats(port));
    switch.attach(port, Box::new(tap));
    tracing::info!(uplink = uplink.name, tap = uplink.tap, "attached");
    Some(attached)
}
