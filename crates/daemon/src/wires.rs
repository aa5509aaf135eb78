//! Wires while they are in use: what happens to their frames, whether they are cut, and how the control
//! socket shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use vmlane_api::{Done, ErrorCode, Failure, Wire, WireEnd, WireImpairment};
use vmlane_config::{Config, WireConfig, impair_changed, wire};
use vmlane_state::{Found, Store};
use vmlane_switch::{Impairment, PortView, Switch};

/// Under what the store holds that a wire is cut, before its name.
const CUT: &str = "wire-cut/";

/// What the operator has made of the wires of the configuration.
pub struct Wires {
    /// Those that are cut, also for the next daemon.
    cut: BTreeSet<String>,
    /// What was set since the last reload: on the way to each end.
    set: BTreeMap<String, [Impairment; 2]>,
    store: Arc<dyn Store>,
}

fn bad(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}

fn known<'c>(config: &'c Config, name: &str) -> Result<&'c WireConfig, Failure> {
    config.wires.iter().find(|wire| wire.name == name).ok_or_else(|| {
        let names: Vec<&str> = config.wires.iter().map(|wire| wire.name.as_str()).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        bad(format!("there is no wire {name:?}; known are {names}"))
    })
}

impl Wires {
    /// Takes in what the operator cut in a previous daemon.
    pub fn resume(store: Arc<dyn Store>, config: &Config, found: &mut Found) -> Wires {
        let cut = found.take_all(CUT).0.into_keys().collect();
        let mut wires = Wires { cut, set: BTreeMap::new(), store };
        wires.reload(config);
        wires
    }

    /// Of wires that there are no more, that they are cut is forgotten; of all, what was set.
    pub fn reload(&mut self, config: &Config) {
        self.set.clear();
        let Wires { cut, store, .. } = self;
        cut.retain(|name| {
            let stays = config.wires.iter().any(|wire| wire.name == *name);
            if !stays {
                store.remove(&format!("{CUT}{name}"));
            }
            stays
        });
    }

    /// Gives all ports what their wires are. Returns why it could not.
    pub fn apply(&self, switch: &Switch, config: &Config) -> Vec<String> {
        switch.ports().iter().filter_map(|view| self.apply_to(switch, config, view)).collect()
    }

    fn apply_to(&self, switch: &Switch, config: &Config, view: &PortView) -> Option<String> {
        let name = wire::of_network(&view.spec.switch);
        let wire = name.and_then(|name| config.wires.iter().find(|wire| wire.name == name));
        let end = wire.and_then(|wire| wire.ends.iter().position(|end| *end == view.spec.name));
        let of = |wire: &WireConfig| self.in_force(wire).into_iter().nth(end?);
        switch.set_cut(view.id, wire.is_some_and(|wire| self.cut.contains(&wire.name)));
        let outcome = switch.set_impairment(view.id, wire.and_then(of).unwrap_or_default());
        let why = outcome.err()?;
        Some(format!("wire {:?}: no memory for frames on their way: {why}", name.unwrap_or_default()))
    }

    fn in_force(&self, wire: &WireConfig) -> [Impairment; 2] {
        self.set.get(&wire.name).copied().unwrap_or(wire.impair)
    }

    /// Changes what happens to frames of the wire `name` until the next reload, as `text` has it; on their
    /// way to one end if that is named.
    pub fn set(
        &mut self,
        switch: &Switch,
        config: &Config,
        (name, to): (&str, Option<&str>),
        text: &str,
    ) -> Result<Done, Failure> {
        let wire = known(config, name)?;
        if let Some(to) = to.filter(|to| wire.ends.iter().all(|end| end != to)) {
            let ends = wire.ends.join(" and ");
            return Err(bad(format!("wire {name:?} has no end {to:?}; its ends are {ends}")));
        }
        let mut now = self.in_force(wire);
        for (of, _) in now.iter_mut().zip(&wire.ends).filter(|(_, end)| to.is_none_or(|to| *end == to)) {
            *of = impair_changed(name, text, *of).map_err(bad)?;
        }
        self.set.insert(name.to_owned(), now);
        let refused = self.apply(switch, config);
        if !refused.is_empty() {
            return Err(Failure::internal(refused.join("; ")));
        }
        tracing::info!(wire = name, to, impair = text.replace('\n', ", "), "set by the operator");
        Ok(Done {})
    }

    /// Cuts the wire `name`, or joins it, also for the next daemon.
    pub fn cut(&mut self, switch: &Switch, config: &Config, name: &str, cut: bool) -> Result<Done, Failure> {
        known(config, name)?;
        let held = format!("{CUT}{name}");
        if !cut {
            self.cut.remove(name);
            self.store.remove(&held);
        } else if self.cut.insert(name.to_owned())
            && let Err(error) =
                vmlane_mem::memfd("cut", 1).and_then(|file| self.store.put(&held, file.as_fd()))
        {
            tracing::warn!(wire = name, %error, "the wire will be joined again after the daemon's end");
        }
        self.apply(switch, config);
        tracing::info!(wire = name, cut, "set by the operator");
        Ok(Done {})
    }
}

/// All wires. `ports`: those of the switch.
pub fn show(wires: &[WireConfig], ports: &[PortView]) -> Vec<Wire> {
    wires.iter().map(|wire| show_one(wire, ports)).collect()
}

fn show_one(wire: &WireConfig, ports: &[PortView]) -> Wire {
    let network = wire::network(&wire.name);
    let views = wire
        .ends
        .each_ref()
        .map(|end| ports.iter().find(|view| view.spec.name == *end && view.spec.switch == network));
    let [one, other] = views;
    let [name, other_name] = &wire.ends;
    let ends = vec![show_end(name, one, other), show_end(other_name, other, one)];
    let cut = views.iter().flatten().any(|view| view.cut);
    Wire { name: wire.name.clone(), cut, carrier: ends.iter().all(|end| end.up), ends }
}

fn show_end(name: &str, view: Option<&PortView>, other: Option<&PortView>) -> WireEnd {
    let Some(view) = view else { return WireEnd { port: name.into(), ..WireEnd::default() } };
    let stats = &view.stats;
    WireEnd {
        port: name.into(),
        // The other end has its carrier from this one.
        up: other.is_some_and(|other| other.carrier),
        frames: stats.rx_frames.get(),
        impair: Some(view.impairment).filter(|of| !of.is_none()).map(shown),
        waiting: view.waiting,
        lost: stats.drop_impaired.get(),
        reordered: stats.wire_reordered.get(),
        duplicated: stats.wire_duplicated.get(),
        corrupted: stats.wire_corrupted.get(),
        full: stats.drop_wire_full.get(),
    }
}

fn shown(of: Impairment) -> WireImpairment {
    let Impairment { delay, jitter, loss, loss_burst, reorder, duplicate, corrupt, rate } = of;
    let percent = |of_a_million: u32| f64::from(of_a_million) / 10_000.0;
    WireImpairment {
        delay_us: delay.as_micros() as u64,
        jitter_us: jitter.as_micros() as u64,
        loss: percent(loss),
        loss_burst,
        reorder: percent(reorder),
        duplicate: percent(duplicate),
        corrupt: percent(corrupt),
        rate,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use vmlane_state::NoStore;
    use vmlane_switch::{PortSpec, Settings};

    use super::*;

    fn spec(name: &str, network: &str) -> PortSpec {
        PortSpec {
            name: name.into(),
            switch: network.into(),
            direct: network.starts_with("wire:"),
            ..PortSpec::default()
        }
    }

    fn config(of_wire: &str) -> Config {
        let text = format!(
            "[[wire]]\nname = \"l\"\nends = [\"a/nic0\", \"a/nic1\"]\n{of_wire}\n[[vm]]\nname = \"a\"\ncid = 3\n\
             nic = [{{ model = \"virtio-net\" }}, {{ model = \"virtio-net\" }}]\n"
        );
        Config::parse(Path::new("t.toml"), &text).unwrap()
    }

    #[test]
    fn an_end_is_up_if_the_other_one_has_a_carrier_from_it() {
        let (switch, mut worker) = Switch::unstarted(Settings::default());
        let config = config("");
        let ups = |switch: &Switch| {
            let [wire] = &show(&config.wires, &switch.ports())[..] else { panic!("one wire") };
            let ups: Vec<_> = wire.ends.iter().map(|end| (end.port.clone(), end.up)).collect();
            assert!(!wire.carrier);
            ups
        };
        let down = [("a/nic0".to_owned(), false), ("a/nic1".to_owned(), false)];
        assert_eq!(ups(&switch), down, "there are no such ports");
        switch.add_port(spec("a/nic0", "wire:l")).unwrap();
        switch.add_port(spec("a/nic1", "default")).unwrap();
        assert!(worker.step());
        assert_eq!(ups(&switch), down, "one is on a switch");
    }

    #[test]
    fn what_is_set_lasts_until_a_reload_and_what_is_cut_beyond_the_daemon() {
        let (switch, _worker) = Switch::unstarted(Settings::default());
        let lossy = config("impair = { loss = 1 }");
        let [one, other] = ["a/nic0", "a/nic1"].map(|name| switch.add_port(spec(name, "wire:l")).unwrap());
        let file = vmlane_mem::memfd("cut", 1).unwrap();
        let mut found = Found::default();
        found.0.insert("wire-cut/gone".into(), file.try_clone().unwrap());
        found.0.insert("wire-cut/l".into(), file);
        let mut wires = Wires::resume(Arc::new(NoStore), &lossy, &mut found);
        assert!(found.0.is_empty() && !wires.cut.contains("gone"));
        let now = |wires: &Wires| {
            assert!(wires.apply(&switch, &lossy).is_empty());
            let ports = switch.ports();
            let view = |id| ports.iter().find(|view| view.id == id).unwrap();
            [one, other].map(|id| {
                let Impairment { loss, delay, .. } = view(id).impairment;
                (loss, delay.as_micros(), view(id).cut)
            })
        };
        assert_eq!(now(&wires), [(10_000, 0, true); 2]);
        wires.cut(&switch, &lossy, "l", false).unwrap();
        wires.set(&switch, &lossy, ("l", None), "loss = 2").unwrap();
        wires.set(&switch, &lossy, ("l", Some("a/nic1")), "delay_us = 7").unwrap();
        let refused = wires.set(&switch, &lossy, ("l", None), "jitter_us = 7").unwrap_err();
        assert!(refused.message.contains("jitter_us = 7 is more than delay_us = 0"), "{refused:?}");
        assert_eq!(now(&wires), [(20_000, 0, false), (20_000, 7, false)]);
        // A VM that is served anew, and one whose card goes to a switch.
        switch.remove_port(other);
        switch.update_port(one, spec("a/nic0", "default"));
        let other = switch.add_port(spec("a/nic1", "wire:l")).unwrap();
        wires.apply(&switch, &lossy);
        let ports = switch.ports();
        let late = |id| ports.iter().find(|view| view.id == id).unwrap().impairment.delay;
        assert_eq!([late(one), late(other)], [Duration::ZERO, Duration::from_micros(7)]);
        wires.reload(&lossy);
        wires.apply(&switch, &lossy);
        assert!(switch.ports().iter().all(|view| view.impairment.delay.is_zero()));
    }
}
