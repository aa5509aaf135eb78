//! A port of the switch as the control socket shows it.

use vmlane_api::{LearnedMac, SwitchPort};
use vmlane_port::VlanSet;
use vmlane_stats::Counters;
use vmlane_switch::{LearnedAddress, PortView, VlanMode};

/// `learned`: of all ports.
pub fn switch_port(view: PortView, learned: &[LearnedAddress]) -> SwitchPort {
    let counters = view.stats.snapshot();
    let drops = || counters.iter().filter(|(name, value)| name.starts_with("drop_") && *value > 0);
    let own = learned.iter().filter(|address| address.port == view.id);
    SwitchPort {
        kind: if view.spec.uplink { "uplink" } else { "nic" }.into(),
        vlan: match &view.spec.vlan {
            VlanMode::Untagged => "untagged".into(),
            VlanMode::Access(vlan) => vlan.to_string(),
            VlanMode::Trunk(vlans) if *vlans == VlanSet::all() => "trunk".into(),
            VlanMode::Trunk(vlans) => format!("{vlans:?}"),
        },
        mac: if view.spec.uplink { "-".into() } else { view.spec.mac.to_string() },
        active: view.attached,
        link_down: view.link_down,
        worker: view.worker,
        tx_frames: view.stats.tx_frames.get(),
        rx_frames: view.stats.rx_frames.get(),
        dropped: drops().map(|(_, value)| value).sum(),
        tx_bytes: view.stats.tx_bytes.get(),
        rx_bytes: view.stats.rx_bytes.get(),
        drops: drops().copied().collect(),
        mac_in_use: view.mac.map(|mac| mac.to_string()),
        learned: own
            .map(|&LearnedAddress { mac, vlan, seconds, .. }| LearnedMac {
                mac: mac.to_string(),
                vlan,
                seconds,
            })
            .collect(),
        name: view.spec.name,
        group: view.spec.group,
        switch: view.spec.switch,
    }
}
