//! Whether links of uplinks are up, by the kernel's word and the operator's.

use std::os::fd::AsFd;
use std::sync::Arc;

use vmlane_config::UplinkConfig;
use vmlane_state::{Found, Store};
use vmlane_switch::Switch;

use super::links::{DOWN, Wanted, held_down};
use super::{Uplink, Uplinks};

impl Uplinks {
    /// Reports links that change to `switch`, from now on.
    pub fn follow_links(&mut self, switch: &Arc<Switch>) {
        if let Some(Err(error)) = self.links.as_mut().map(|links| links.start(switch.clone())) {
            tracing::error!(%error, "no thread that follows the links of uplinks");
        }
    }

    /// Reports the state of uplinks' links, as far as a team, the network behind them or
    /// a wire's other end needs it. What the
    /// switch has found out by itself of a team's (a frame was refused) ends with that.
    pub fn report_links(&self, switch: &Switch) {
        let Some(links) = &self.links else { return };
        let in_team = |known: &Uplink| {
            self.teams.iter().any(|team| team.members().any(|name| *name == known.config.name))
        };
        let wanted = |known: &Uplink| {
            let in_team = in_team(known);
            let is_needed = in_team || known.config.notify || known.config.wire().is_some();
            let interface = known.config.kind.interface().filter(|_| is_needed)?;
            Some(Wanted { port: known.port, interface: interface.to_owned(), in_team })
        };
        links.follow(switch, self.known.iter().filter_map(wanted).collect());
    }

    /// Takes in what the operator set in a previous daemon.
    pub fn resume_down(&mut self, found: &mut Found) {
        self.down.extend(found.take_all(DOWN).0.into_keys());
    }

    /// What the operator set for uplinks that there are no more is forgotten.
    pub fn forget_down(&mut self, wanted: &[UplinkConfig]) {
        let store = &self.store;
        self.down.retain(|name| {
            let stays = wanted.iter().any(|uplink| uplink.name == *name);
            if !stays {
                store.iter().for_each(|store| store.remove(&held_down(name)));
            }
            stays
        });
    }

    /// Sets an uplink's link up or down, also for the next daemon. False: there is none of that name.
    pub fn set_link(&mut self, switch: &Switch, name: &str, up: bool) -> bool {
        let Some(known) = self.known.iter().find(|known| known.config.name == name) else { return false };
        if up {
            self.down.remove(name);
            self.store.iter().for_each(|store| store.remove(&held_down(name)));
        } else {
            self.down.insert(name.to_owned());
            let hold = |store: &Arc<dyn Store>| {
                vmlane_mem::memfd("down", 1).and_then(|file| store.put(&held_down(name), file.as_fd()))
            };
            if let Some(Err(error)) = self.store.as_ref().map(hold) {
                tracing::warn!(uplink = name, %error, "the link will be up again after the daemon's end");
            }
        }
        switch.set_link(known.port, up)
    }

    /// Names of all uplinks, for messages.
    pub fn names(&self) -> String {
        match &self.known[..] {
            [] => "none".into(),
            known => known.iter().map(|one| one.config.name.as_str()).collect::<Vec<_>>().join(", "),
        }
    }
}
