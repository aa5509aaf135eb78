//! Wires as the control socket shows them.

use vmlane_api::{Wire, WireEnd};
use vmlane_config::{WireConfig, wire};
use vmlane_switch::PortView;

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
    let end = |name: &String, view: Option<&PortView>, other: Option<&PortView>| WireEnd {
        port: name.clone(),
        // The other end has its carrier from this one.
        up: view.is_some() && other.is_some_and(|other| other.carrier),
        frames: view.map_or(0, |view| view.stats.rx_frames.get()),
    };
    let [name, other_name] = &wire.ends;
    let ends = vec![end(name, one, other), end(other_name, other, one)];
    Wire { name: wire.name.clone(), carrier: ends.iter().all(|end| end.up), ends }
}

#[cfg(test)]
mod tests {
    use vmlane_switch::{PortSpec, Settings, Switch};

    use super::*;

    #[test]
    fn an_end_is_up_if_the_other_one_has_a_carrier_from_it() {
        let (switch, mut worker) = Switch::unstarted(Settings::default());
        let wires = [WireConfig { name: "l".into(), ends: ["a/nic0".into(), "b/nic0".into()] }];
        let spec = |name: &str, network: &str| PortSpec {
            name: name.into(),
            switch: network.into(),
            direct: network.starts_with("wire:"),
            ..PortSpec::default()
        };
        let ups = |switch: &Switch| {
            let [wire] = &show(&wires, &switch.ports())[..] else { panic!("one wire") };
            let ups: Vec<_> = wire.ends.iter().map(|end| (end.port.clone(), end.up)).collect();
            assert!(!wire.carrier);
            ups
        };
        let down = [("a/nic0".to_owned(), false), ("b/nic0".to_owned(), false)];
        assert_eq!(ups(&switch), down, "there are no such ports");
        switch.add_port(spec("a/nic0", "wire:l")).unwrap();
        switch.add_port(spec("b/nic0", "default")).unwrap();
        assert!(worker.step());
        assert_eq!(ups(&switch), down, "one is on a switch");
    }
}
