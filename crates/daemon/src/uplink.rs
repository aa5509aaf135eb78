//! The uplinks in force: what leads out of the host, as ports of the switch.
//!
//! | file | what |
//! | --- | --- |
//! | `kind.rs`, `attached.rs` | what differs between kinds of uplinks: how they are opened; what they are once they have a port |
//! | `connecting.rs` | uplinks of the kind `vhost_user`, which connect by themselves |
//! | `teams.rs` | those that serve as one |
//! | `links.rs`, `link_state.rs` | the state of links as the kernel reports it, and as the operator sets it |
//! | `error.rs` | why there is none |
//! | `helper.rs` | the daemon's side of the process that opens uplinks for a confined daemon |
//! | `process.rs` | that process |
//! | `messages.rs` | their messages |

mod attached;
mod connecting;
mod error;
mod helper;
mod kind;
mod link_state;
mod links;
mod messages;
mod process;
pub(crate) mod teams;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_api::{UplinkStats, UplinkStatus};
use vmlane_config::{TeamConfig, UplinkConfig};
use vmlane_port::{Frames, PortId};
use vmlane_state::{Found, Store};
use vmlane_stats::Counters;
use vmlane_switch::{PortView, Switch};

use crate::counters::kept;
use crate::nic::uplink_spec;

use self::attached::Attached;
use self::connecting::Connecting;
pub use self::error::UplinkError;
use self::helper::{Helper, SharedHelper};
use self::kind::{HELD, OpenError, Opened};
use self::links::{DOWN, Links};
pub use self::process::serve;
pub use self::teams::{stats as team_stats, status as team_status};

/// Is the interface of this name up? None: there is none.
pub fn interface_is_up(name: &str) -> Option<bool> {
    vmlane_host::uplink::is_up(name).ok()
}

/// Sets it up or down; one that is up is the switch's whose port it is, and quiet otherwise.
pub fn set_interface_up(name: &str, up: bool) -> std::io::Result<()> {
    let why = |error: &vmlane_host::uplink::TapError| {
        let source = std::error::Error::source(error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    };
    vmlane_host::uplink::set_up(name, up).map_err(|error| std::io::Error::other(why(&error)))
}

/// Under what the store holds the counters of uplinks' ports.
const COUNTERS: &str = "uplink-counters";

fn failed(uplink: &UplinkConfig) -> impl Fn(OpenError) -> UplinkError {
    |cause| UplinkError::Open { name: uplink.name.clone(), cause }
}

/// One in force, with its port.
struct Uplink {
    config: UplinkConfig,
    port: PortId,
    /// None: what it leads to is gone, and the port waits for it.
    attached: Option<Attached>,
    /// Why not, if it is not attached.
    why_not: String,
    /// Its interface has another name than that of the file.
    strayed: bool,
}

impl Uplink {
    fn new(config: &UplinkConfig, port: PortId) -> Uplink {
        Uplink { config: config.clone(), port, attached: None, why_not: String::new(), strayed: false }
    }

    /// Keeps what came of attaching it. A reason why not is logged once.
    fn note(&mut self, outcome: Result<Attached, UplinkError>) {
        match outcome {
            Ok(attached) => self.attached = Some(attached),
            Err(error) => {
                let why = error.to_string();
                if !error.is_missing() && why != self.why_not {
                    tracing::warn!("{why}");
                }
                self.why_not = why;
            }
        }
    }
}

/// Every uplink with its port.
#[derive(Default)]
pub struct Uplinks {
    known: Vec<Uplink>,
    /// Opened while the daemon might still do that, or held for it since the previous one ended.
    ready: Vec<(UplinkConfig, Opened)>,
    /// In use when this daemon began, with their MTU and why they could not be opened: the previous daemon's
    /// files may be held.
    busy: Vec<(UplinkConfig, Option<usize>, UplinkError)>,
    /// Holds the interfaces for the next daemon, so that they keep addresses and bridges.
    store: Option<Arc<dyn Store>>,
    /// What ports of a previous daemon counted.
    counted: Found,
    /// Opens those that come later.
    helper: SharedHelper,
    /// The daemon's directory, where it makes sockets by itself.
    runtime: PathBuf,
    teams: Vec<TeamConfig>,
    /// None: the kernel reports nothing. All links are taken to be up.
    links: Option<Links>,
    /// Names of those whose links the operator set down.
    down: BTreeSet<String>,
}

impl Uplinks {
    /// Opens what those of `wanted` lead to; [`Uplinks::change`] attaches it.
    pub fn prepare(wanted: &[UplinkConfig]) -> Result<Uplinks, UplinkError> {
        let mut uplinks = Uplinks::default();
        match Links::open() {
            Ok(links) => uplinks.links = Some(links),
            Err(error) => {
                tracing::warn!(%error, "the kernel does not report the state of links: teams notice only uplinks that are gone or refuse frames");
            }
        }
        // Sockets need no rights that a confined daemon, or its helper, has not.
        for uplink in wanted.iter().filter(|uplink| uplink.kind.interface().is_some()) {
            let is_held = !kind::held(&uplink.kind).is_empty();
            let opened = if is_held {
                kind::open(&uplink.kind, true)
            } else {
                kind::open_patiently(&uplink.kind, true)
            };
            match opened {
                Ok(opened) => uplinks.ready.push((uplink.clone(), opened)),
                Err(busy) if busy.is_busy() && is_held => {
                    let seen = kind::inspect(&uplink.kind).map_err(failed(uplink))?;
                    uplinks.busy.push((uplink.clone(), seen.map(|seen| seen.mtu), failed(uplink)(busy)));
                }
                // `change` has the port wait for it.
                Err(missing) if missing.is_missing() => {}
                Err(error) => return Err(failed(uplink)(error)),
            }
        }
        Ok(uplinks)
    }

    /// Takes the interfaces that a previous daemon left, and leaves its own to the next one from now on. An
    /// error: one is in use by another program.
    pub fn resume(&mut self, store: Arc<dyn Store>, found: &mut Found) -> Result<(), UplinkError> {
        for (uplink, mtu, busy) in std::mem::take(&mut self.busy) {
            let opened = kind::resume(&uplink.kind, found, mtu).ok_or(busy)?;
            self.ready.push((uplink, opened));
        }
        self.resume_down(found);
        self.counted = found.scope(COUNTERS);
        self.store = Some(store);
        Ok(())
    }

    /// Starts the helper, for a daemon that is about to be confined to `runtime`. `config`: the file that
    /// names uplinks.
    pub fn keep_rights(&mut self, config: &Path, runtime: &Path) {
        runtime.clone_into(&mut self.runtime);
        match Helper::start(config) {
            Ok(helper) => self.helper.set(helper),
            Err(error) => tracing::warn!(
                %error,
                "the helper that attaches interfaces cannot be started: a reload that adds an uplink will be refused"
            ),
        }
    }

    /// What uplink number `index` of the configuration leads to, opened now unless it was before. `make` it
    /// if there is none.
    fn take(&mut self, index: usize, uplink: &UplinkConfig, make: bool) -> Result<Opened, UplinkError> {
        let opened = match self.ready.iter().position(|(ready, _)| ready == uplink) {
            Some(ready) => self.ready.swap_remove(ready).1,
            None if vmlane_confine::is_confined() && !uplink.kind.listens_in(&self.runtime) => {
                self.helper.ask(uplink, |helper| helper.open(index, uplink, make))?
            }
            None => kind::open_patiently(&uplink.kind, make).map_err(failed(uplink))?,
        };
        if let Some(store) = &self.store {
            hold(&**store, uplink, &opened);
        }
        Ok(opened)
    }

    /// Nothing of an uplink is held for the next daemon any more.
    fn let_go(store: Option<&Arc<dyn Store>>, uplink: &UplinkConfig) {
        let names = store.map(|store| (store, kind::held(&uplink.kind)));
        names.into_iter().for_each(|(store, names)| names.iter().for_each(|name| store.remove(name)));
    }

    /// Makes the uplinks those of `wanted`. Returns what was done, and what was not; an error leaves the
    /// others alone.
    pub fn change(
        &mut self,
        switch: &Arc<Switch>,
        wanted: &[UplinkConfig],
    ) -> (Vec<String>, Vec<UplinkError>) {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        self.rewire(switch, wanted);
        self.known.retain(|Uplink { config, port, .. }| {
            let stays = wanted.contains(config);
            if !stays {
                switch.remove_port(*port);
                Self::let_go(self.store.as_ref(), config);
                let changes = wanted.iter().any(|other| other.name == config.name);
                if !changes {
                    self.store.iter().for_each(|store| store.remove(&held_counters(&config.name)));
                }
                done.extend((!changes).then(|| format!("uplink {:?}: removed", config.name)));
            }
            stays
        });
        self.forget_down(wanted);
        for (index, uplink) in wanted.iter().enumerate() {
            if self.known.iter().any(|known| known.config == *uplink) {
                continue;
            }
            match self.add(switch, index, uplink) {
                Ok(added) => {
                    done.push(match added.attached {
                        Some(_) => format!("uplink {:?}: attached to {}", uplink.name, uplink.kind.target()),
                        None => format!("{}; the port waits for it", added.why_not),
                    });
                    self.known.push(added);
                }
                Err(error) => refused.push(error),
            }
        }
        for name in std::mem::take(&mut self.counted).0.keys() {
            self.store.iter().for_each(|store| store.remove(&held_counters(name)));
        }
        (done, refused)
    }

    /// Those that go to a wire, or come from one, and are as before otherwise: what they lead to stays
    /// attached.
    fn rewire(&mut self, switch: &Switch, wanted: &[UplinkConfig]) {
        for known in &mut self.known {
            let same =
                |other: &&UplinkConfig| other.name == known.config.name && other.kind == known.config.kind;
            let Some(new) = wanted.iter().find(same) else { continue };
            if new.wire() != known.config.wire() && switch.update_port(known.port, uplink_spec(new)) {
                known.config.clone_from(new);
            }
        }
    }

    /// A port for uplink number `index` of the configuration, with what it leads to attached.
    fn add(
        &mut self,
        switch: &Arc<Switch>,
        index: usize,
        uplink: &UplinkConfig,
    ) -> Result<Uplink, UplinkError> {
        let opened = match uplink.kind.connects_by_itself() {
            true => None,
            false => Some(self.take(index, uplink, true)),
        };
        let opened = match opened {
            Some(Err(error)) if !error.is_missing() => return Err(error),
            opened => opened,
        };
        let helper = &self.helper;
        let left = self.counted.take(&uplink.name);
        let stats = self.store.as_ref().map(|store| kept(&**store, left, &held_counters(&uplink.name)));
        let port = switch.add_counted_port(uplink_spec(uplink), stats.unwrap_or_default());
        let port = port.map_err(|cause| UplinkError::Port { name: uplink.name.clone(), cause })?;
        switch.set_link(port, !self.down.contains(&uplink.name));
        let attached = match opened {
            Some(opened) => opened.and_then(|opened| attach(switch, port, uplink, helper, opened)),
            None => Connecting::start(switch, (port, index), uplink, helper).map(Attached::VhostUser),
        };
        let mut added = Uplink::new(uplink, port);
        match attached {
            Err(error) if !error.is_missing() => {
                switch.remove_port(port);
                return Err(error);
            }
            Err(missing) => {
                tracing::warn!("{missing}; the port waits for it");
                added.note(Err(missing));
            }
            attached => added.note(attached),
        }
        Ok(added)
    }

    /// Handles interfaces that have gone, have come back, or have another MTU. `configured`: those of the
    /// file, in its order.
    pub fn check(&mut self, switch: &Arc<Switch>, configured: &[UplinkConfig]) {
        self.helper.collect();
        for number in 0..self.known.len() {
            let Some(Uplink { config, port, attached, .. }) = self.known.get(number) else { return };
            let Some(index) = configured.iter().position(|uplink| uplink == config) else { continue };
            let (config, port) = (config.clone(), *port);
            match attached {
                Some(attached) if attached.is_gone() => {
                    let why = attached.gone();
                    self.lose(switch, number, why);
                }
                Some(Attached::VhostUser(connecting)) => connecting.set_index(index),
                Some(_) => self.follow(switch, number, index),
                None => {
                    let opened = self.take(index, &config, false);
                    let attached =
                        opened.and_then(|opened| attach(switch, port, &config, &self.helper, opened));
                    if let Some(known) = self.known.get_mut(number) {
                        known.note(attached);
                    }
                }
            }
        }
        self.report_links(switch);
    }

    /// The port waits until it can be attached again.
    fn lose(&mut self, switch: &Switch, number: usize, why: &str) {
        let Some(known) = self.known.get_mut(number) else { return };
        tracing::warn!(uplink = known.config.name, to = %known.config.kind, "{why}");
        switch.detach(known.port);
        Self::let_go(self.store.as_ref(), &known.config);
        // What was attached ends here, not on the switch's worker.
        (known.attached, known.strayed) = (None, false);
        why.clone_into(&mut known.why_not);
    }

    /// Has the port carry what its interface carries now.
    fn follow(&mut self, switch: &Switch, number: usize, index: usize) {
        let Some(config) = self.known.get(number).map(|known| known.config.clone()) else { return };
        let seen = if self.helper.is_there() {
            self.helper.ask(&config, |helper| helper.inspect(index, &config))
        } else if vmlane_confine::is_confined() {
            return;
        } else {
            kind::inspect(&config.kind).map_err(failed(&config))
        };
        let Some(known) = self.known.get_mut(number) else { return };
        let Some(attached) = &known.attached else { return };
        let strayed = match &seen {
            Ok(Some(seen)) => !attached.is(seen),
            Err(error) => error.is_missing(),
            Ok(None) => false,
        };
        if strayed && !known.strayed {
            let (uplink, to) = (&config.name, &config.kind);
            tracing::warn!(uplink, %to, "its interface has another name now; the port stays with it, and follows its MTU no more");
        }
        known.strayed = strayed;
        let (Ok(Some(seen)), Some(mtu), false) = (seen, attached.mtu(), strayed) else { return };
        if seen.mtu == mtu.load(Ordering::Relaxed) {
            return;
        }
        let (uplink, to) = (&config.name, &config.kind);
        tracing::info!(uplink, %to, mtu = seen.mtu, "the interface has another MTU");
        if attached.carries(seen.mtu) {
            mtu.store(seen.mtu, Ordering::Relaxed);
            switch.refresh(known.port);
        } else {
            self.lose(switch, number, "its frames have no room for packets of this MTU; it is opened again");
        }
    }

    /// The names of those that are one NIC's only, and attached.
    pub fn attached_direct(&self) -> HashSet<&str> {
        let attached = |known: &&Uplink| known.config.kind.is_direct() && known.attached.is_some();
        self.known.iter().filter(attached).map(|known| known.config.name.as_str()).collect()
    }

    /// Sets for those of one NIC only whether what is behind them takes super-frames; `whole` gives it
    /// of a name.
    pub fn set_whole(&self, switch: &Switch, whole: impl Fn(&str) -> bool) {
        for known in self.known.iter().filter(|known| known.config.kind.is_direct()) {
            let Some(of_port) = known.attached.as_ref().and_then(Attached::whole) else { continue };
            let whole = whole(&known.config.name);
            if of_port.swap(whole, Ordering::Relaxed) != whole {
                switch.refresh(known.port);
            }
        }
    }

    /// Do super-frames reach it whole?
    pub fn is_whole(&self, name: &str) -> bool {
        let known = self.known.iter().find(|known| known.config.name == name);
        let whole = known.and_then(|known| known.attached.as_ref()?.whole());
        whole.is_some_and(|whole| whole.load(Ordering::Relaxed))
    }

    /// No daemon follows: the interfaces are let go.
    pub fn end(&mut self) {
        self.known.clear();
        let all = [HELD, DOWN, &held_counters("")];
        self.store.iter().for_each(|store| all.iter().for_each(|names| store.remove_all(names)));
    }

    pub fn stats(&self, switch: &Switch) -> Vec<UplinkStats> {
        let lost = |attached: Option<&Attached>| attached.map(Attached::lost).unwrap_or_default();
        let one = |Uplink { config, port, attached, .. }: &Uplink| UplinkStats {
            name: config.name.clone(),
            port: switch.stats(*port).snapshot().into_iter().chain(lost(attached.as_ref())).collect(),
        };
        self.known.iter().map(one).collect()
    }

    /// What an operator asks first: is it attached, how, or why not.
    pub fn status(&self, ports: &[PortView]) -> Vec<UplinkStatus> {
        let view = |port| ports.iter().find(|view| view.id == port);
        let one = |Uplink { config, port, attached, why_not, .. }: &Uplink| UplinkStatus {
            name: config.name.clone(),
            to: config.kind.to_string(),
            switch: config.switch.clone(),
            attached: view(*port).is_some_and(|view| view.attached),
            how: attached.as_ref().map_or_else(|| why_not.clone(), Attached::how),
            link_down: view(*port).is_some_and(|view| view.link_down),
            since: view(*port).map(|view| view.stats.since()),
        };
        self.known.iter().map(one).collect()
    }
}

/// By what name the counters of an uplink's port are held.
fn held_counters(name: &str) -> String {
    format!("{COUNTERS}/{name}")
}

fn hold(store: &dyn Store, uplink: &UplinkConfig, opened: &Opened) {
    for (name, file) in kind::held(&uplink.kind).iter().zip(opened.to_hold()) {
        if let Err(error) = store.put(name, file) {
            tracing::warn!(uplink = uplink.name, %error, "the next daemon will open this uplink anew");
        }
    }
}

/// Connects an uplink to its port.
fn attach(
    switch: &Arc<Switch>,
    port: PortId,
    uplink: &UplinkConfig,
    helper: &SharedHelper,
    opened: Opened,
) -> Result<Attached, UplinkError> {
    if let Opened::Listening(listening) = opened {
        let connecting = Connecting::listen(switch, port, uplink, helper, listening)?;
        tracing::info!(uplink = uplink.name, to = %uplink.kind, "listens for the other switch");
        return Ok(Attached::VhostUser(connecting));
    }
    let (end, attached) = opened.connect(&uplink.kind, switch.stats(port)).map_err(failed(uplink))?;
    switch.attach(port, end);
    tracing::info!(uplink = uplink.name, to = %uplink.kind, "attached");
    Ok(attached)
}

#[cfg(test)]
mod tests;
