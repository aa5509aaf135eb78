//! Guests behind the switch, whose worker the caller turns by hand.

use vmlane_port::{FramePort, Frames, PortId};
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
        Switched::with(loads, lro, Traffic::default())
    }

    /// The same, of cards without LRO whose guests forward nothing.
    pub fn endpoints(count: u16, load: Load) -> Switched {
        Switched::with(&vec![load; count.into()], false, Traffic { endpoint: true, ..Traffic::default() })
    }

    fn with(loads: &[Load], lro: bool, traffic: Traffic) -> Switched {
        let (switch, mut worker) = Switch::unstarted(Settings { poll: true, ..Settings::default() });
        let guests =
            (0..).zip(loads).map(|(number, &load)| plug(&switch, number, load, lro, traffic).0).collect();
        worker.step();
        Switched { guests, worker, _switch: switch }
    }
}

/// One more guest, and its port.
pub fn connect(switch: &Switch, number: u16, load: Load, lro: bool) -> (Guest, PortId) {
    plug(switch, number, load, lro, Traffic::default())
}

fn plug(switch: &Switch, number: u16, load: Load, lro: bool, traffic: Traffic) -> (Guest, PortId) {
    let port = switch
        .add_port(PortSpec {
            name: format!("vm-{number}"),
            group: "test".into(),
            switch: String::new(),
            mac: mac(number),
            vlan: VlanMode::Untagged,
            policy: Policy::default(),
            traffic,
            uplink: false,
            direct: false,
            notify: false,
        })
        .expect("a switch with room");
    let (guest, nic) = Guest::new(number, number ^ 1, load, lro, Frames::stats(switch, port));
    // Segments are those of an uplink.
    let end: Box<dyn FramePort> =
        if load == Load::Segments { Box::new(Verified(nic)) } else { Box::new(nic) };
    switch.attach(port, end);
    (guest, port)
}
