//! NICs whose guests would send packets that are longer than the network behind their uplink carries, as an
//! overlay's headers take some room.

use std::fs;
use std::path::Path;

use crate::{Config, NicConfig, NicModel, UplinkConfig, UplinkKind, Vlan, VmConfig};

/// What a guest assumes that is not notified of another one.
const USUAL: usize = 1500;

/// What an uplink's interface carries now; None: there is none, or it cannot be read.
pub fn of_uplink(uplink: &UplinkConfig) -> Option<usize> {
    if let UplinkKind::VhostUser { mtu, .. } = uplink.kind {
        return Some(mtu.into());
    }
    let file = Path::new("/sys/class/net").join(uplink.kind.interface()?).join("mtu");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// One warning for each such NIC, with its VM. `carried`: see [`of_uplink`].
pub fn too_long<'c>(
    config: &'c Config,
    carried: impl Fn(&UplinkConfig) -> Option<usize>,
) -> Vec<(&'c VmConfig, String)> {
    // Each is asked for its MTU once, however many NICs there are.
    let uplinks = config.uplinks.iter().filter(|uplink| !uplink.kind.is_direct());
    let short = uplinks.filter_map(|uplink| Some((uplink, carried(uplink).filter(|mtu| *mtu < USUAL)?)));
    let short: Vec<(&UplinkConfig, usize)> = short.collect();
    let of_vm = |vm: &'c VmConfig| {
        let nics = vm.nics.iter().enumerate();
        nics.filter_map(|(number, nic)| {
            let (mtu, why) = carried_for(config, vm, nic, &short)?;
            let what_to_do = advice(nic, mtu)?;
            Some((vm, format!("nic {number}: {why} carries packets of {mtu} bytes at most; {what_to_do}")))
        })
        .collect::<Vec<_>>()
    };
    config.vms.iter().flat_map(of_vm).collect()
}

/// The least that an uplink carries for a NIC, if that is less than guests assume, and what it is.
fn carried_for(
    config: &Config,
    vm: &VmConfig,
    nic: &NicConfig,
    short: &[(&UplinkConfig, usize)],
) -> Option<(usize, String)> {
    if let Some(port) = &nic.ovn {
        let mtu = usize::from(port.mtu?);
        return (mtu < USUAL).then(|| (mtu, "by its own word, OVN's network".into()));
    }
    let of_group = || config.port_group(&nic.port_group).map(|group| &group.vlan);
    let vlan = if nic.wire().is_some() { &Vlan::TrunkAll } else { of_group()? };
    let leads_there = |uplink: &UplinkConfig| {
        uplink.group == vm.group && uplink.switch == nic.switch && share(&uplink.vlan, vlan)
    };
    let of_nic = short.iter().filter(|(uplink, _)| leads_there(uplink));
    let (uplink, mtu) = of_nic.min_by_key(|(_, mtu)| *mtu)?;
    Some((*mtu, format!("uplink {:?}", uplink.name)))
}

/// What the operator is to do; None: its guest is notified.
fn advice(nic: &NicConfig, mtu: usize) -> Option<String> {
    match &nic.model {
        NicModel::Vmxnet3 => Some(format!(
            "a VMXNET3 card cannot report it to its guest, so run `ip link set eth0 mtu {mtu}` there, or use virtio-net"
        )),
        NicModel::VirtioNet(virtio) if virtio.announces_mtu && usize::from(nic.mtu) <= mtu => None,
        NicModel::VirtioNet(virtio) if virtio.announces_mtu => {
            Some(format!("its mtu = {} is more: write mtu = {mtu}", nic.mtu))
        }
        NicModel::VirtioNet(_) => Some(format!("write mtu = {mtu}, which is reported to its guest")),
    }
}

/// Is there a VLAN that both carry?
fn share(one: &Vlan, other: &Vlan) -> bool {
    match (one, other) {
        (Vlan::TrunkAll, _) | (_, Vlan::TrunkAll) | (Vlan::Untagged, Vlan::Untagged) => true,
        (Vlan::Access(one), Vlan::Access(other)) => one == other,
        (Vlan::Trunk(list), Vlan::Access(one)) | (Vlan::Access(one), Vlan::Trunk(list)) => list.contains(one),
        (Vlan::Trunk(one), Vlan::Trunk(other)) => one.iter().any(|vlan| other.contains(vlan)),
        (Vlan::Untagged, _) | (_, Vlan::Untagged) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(nics: &str, carried: usize) -> Vec<String> {
        let text = format!(
            "[[uplink]]\nname = \"lan\"\ntap = \"tap0\"\nvlan = [10, 20]\n\
             [[port_group]]\nname = \"ten\"\nvlan = 10\n[[port_group]]\nname = \"thirty\"\nvlan = 30\n\
             [[vm]]\nname = \"a\"\ncid = 3\nnic = [{nics}]\n"
        );
        let config = Config::parse(Path::new("t.toml"), &text).unwrap();
        too_long(&config, |_| Some(carried))
            .into_iter()
            .map(|(vm, text)| format!("{}: {text}", vm.name))
            .collect()
    }

    #[test]
    fn guests_that_are_not_notified_of_an_overlays_mtu_are_named() {
        let nics = "{ model = \"vmxnet3\", port_group = \"ten\" }, { model = \"virtio-net\", port_group = \"ten\" }, \
                    { model = \"virtio-net\", port_group = \"ten\", mtu = 1480 }, \
                    { model = \"virtio-net\", port_group = \"ten\", mtu = 1450 }, \
                    { model = \"virtio-net\", port_group = \"thirty\" }, { model = \"virtio-net\" }";
        let carries = "uplink \"lan\" carries packets of 1450 bytes at most;";
        assert_eq!(
            warnings(nics, 1450),
            [
                format!(
                    "a: nic 0: {carries} a VMXNET3 card cannot report it to its guest, so run `ip link set eth0 mtu 1450` there, \
                     or use virtio-net"
                ),
                format!("a: nic 1: {carries} write mtu = 1450, which is reported to its guest"),
                format!("a: nic 2: {carries} its mtu = 1480 is more: write mtu = 1450"),
            ]
        );
        assert_eq!(warnings(nics, 1500), [""; 0]);
    }

    #[test]
    fn a_card_on_a_wire_has_the_uplinks_mtu_and_no_other_one() {
        let text = "[[uplink]]\nname = \"lan\"\ntap = \"t0\"\n[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"virtio-net\" }, \
                    { model = \"virtio-net\" }]\n[[wire]]\nname = \"l\"\nends = [\"lan\", \"a/nic1\"]\n";
        let config = Config::parse(Path::new("t.toml"), text).unwrap();
        let [(_, warning)] = &too_long(&config, |_| Some(1450))[..] else { panic!("one NIC") };
        assert!(warning.starts_with("nic 1: uplink \"lan\" carries packets of 1450"), "{warning}");
    }

    #[test]
    fn a_card_that_cannot_report_ovns_mtu_to_its_guest_is_named() {
        let nics = "{ model = \"vmxnet3\", ovn = \"lsp-a\", mtu = 1442 }, { model = \"virtio-net\", ovn = \"lsp-b\", mtu = 1442 }";
        let [warning] = &warnings(nics, 9000)[..] else { panic!("{:?}", warnings(nics, 9000)) };
        assert!(warning.starts_with("a: nic 0:") && warning.contains("mtu 1442"), "{warning}");
    }
}
