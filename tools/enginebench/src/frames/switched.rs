//! Guests behind the switch, whose worker the caller turns by hand.

use vmlane_port::{FramePort, Frames, PortId, VlanSet};
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode, Worker};

use super::guest::{Guest, Load, mac};
use super::verified::Verified;

/// Guests, their switch and its worker. Guest n sends to its neighbour: 0 and 1 to each other, 2 and 3,
/// and so on.
pub struct Switched {
    pub guests: Vec<Guest>,
    pub worker: Worker,
    pub _switch: Switch,
}

impl Switched {
    pub fn new(count: u16, load: Load, lro: bool) -> Switched {
        Switched::mixed(&vec![load; count.into()], lro)
    }

    /// The same with a load for each.
    pub fn mixed(loads: &[Load], lro: bool) -> Switched {
        Switched::with(loads, lro, port)
    }

    /// The same, of cards without LRO whose guests forward nothing.
    pub fn endpoints(count: u16, load: Load) -> Switched {
        Switched::with(&vec![load; count.into()], false, |number| PortSpec {
            traffic: Traffic { endpoint: true, ..Traffic::default() },
            ..port(number)
        })
    }

    /// Two guests at the ends of a wire.
    pub fn wired(load: Load) -> Switched {
        let vlan = VlanMode::Trunk(VlanSet::all());
        let policy = Policy { promiscuous: true, mac_changes: true, forged_transmits: true };
        Switched::with(&[load; 2], true, |number| PortSpec {
            vlan: vlan.clone(),
            policy,
            direct: true,
            ..port(number)
        })
    }

    fn with(loads: &[Load], lro: bool, spec: impl Fn(u16) -> PortSpec) -> Switched {
        let (switch, mut worker) = Switch::unstarted(Settings { poll: true, ..Settings::default() });
        let guests = (0..).zip(loads);
        let guests = guests.map(|(number, &load)| plug(&switch, number, load, lro, spec(number)).0).collect();
        worker.step();
        Switched { guests, worker, _switch: switch }
    }
}

/// That of guest `number`.
fn port(number: u16) -> PortSpec {
    PortSpec {
        name: format!("vm-{number}"),
        group: "test".into(),
        mac: mac(number),
        vlan: VlanMode::Untagged,
        ..PortSpec::default()
    }
}

/// One more guest, and its port.
pub fn connect(switch: &Switch, number: u16, load: Load, lro: bool) -> (Guest, PortId) {
    plug(switch, number, load, lro, port(number))
}

fn plug(switch: &Switch, number: u16, load: Load, lro: bool, spec: PortSpec) -> (Guest, PortId) {
    let port = switch.add_port(spec).expect("a switch with room");
    let (guest, nic) = Guest::new(number, number ^ 1, load, lro, Frames::stats(switch, port));
    // Segments are those of an uplink.
    let end: Box<dyn FramePort> =
        if load == Load::Segments { Box::new(Verified(nic)) } else { Box::new(nic) };
    switch.attach(port, end);
    (guest, port)
}
