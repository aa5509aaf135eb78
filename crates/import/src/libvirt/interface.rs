//! `<interface>`: a network card.

use roxmltree::Node;

use super::Of;
use crate::machine::{Machine, Nic, mac};
use crate::network::{Network, Tagging};
use crate::xml::{all, attribute, first, note_others, of_first};

/// Attributes of `<source>` that are of one port, or that follow from the others.
const OF_PORT: &[&str] = &["portid", "connectionid", "reconnect", "startupPolicy"];
/// Parameters of `<virtualport>` that are of one port.
const OF_VIRTUAL_PORT: &[&str] = &["interfaceid", "instanceid"];
/// Elements that are read, or that change nothing for the guest or for the VMs that it reaches.
const KNOWN: &[&str] = &[
    "source",
    "mac",
    "model",
    "vlan",
    "link",
    "mtu",
    "driver",
    "virtualport",
    "target",
    "alias",
    "address",
    "boot",
    "rom",
    "script",
    "downscript",
    "guest",
    "backend",
    "acpi",
    "tune",
    "backenddomain",
];
const HINTS: &[(&str, &str)] = &[
    ("bandwidth", "give the NIC a shape"),
    ("filterref", "vmlane's port groups have policies of their own"),
    (
        "port",
        "its guests could not talk to each other (isolated='yes'): give each a port group with another VLAN",
    ),
    ("ip", "set the address in the guest"),
    ("route", "set the route in the guest"),
    ("portForward", "QEMU's own network forwarded it; vmlane has uplinks"),
    ("coalesce", "vmlane has its own"),
];

pub fn read(interface: Node<'_, '_>, number: usize, of: Of, machine: &mut Machine) {
    let place = format!("interface {number}");
    let kind = attribute(interface, "type").unwrap_or("network");
    if kind == "hostdev" {
        machine.note(place, "is a device of the host; give it to QEMU by -device vfio-pci");
        return;
    }
    // libvirt's default on x86 is rtl8139; every tool gives one.
    let model = of_first(interface, "model", "type").unwrap_or("rtl8139");
    let Some(model) = machine.nic_model(&place, model) else { return };
    let mac = of_first(interface, "mac", "address").and_then(|text| mac(machine, &place, text));
    let tagging = tagging(interface, &place, machine);
    if of_first(interface, "link", "state") == Some("down") {
        let number = machine.nics.len();
        machine.note(
            format!("{place}: link"),
            format!("is down; set it down with `vmlane link VM/nic{number} down`"),
        );
    }
    note_others(machine, &format!("{place}: "), interface, &[KNOWN], HINTS);
    if attribute(interface, "trustGuestRxFilters") == Some("yes") {
        machine.note(
            format!("{place}: trustGuestRxFilters"),
            "is not carried over; mac_changes of the port group decides",
        );
    }
    let mtu = machine.number(&format!("{place}: mtu"), of_first(interface, "mtu", "size"));
    let queues = machine.number(&format!("{place}: queues"), of_first(interface, "driver", "queues"));
    let network = network(interface, kind, of, &place, machine);
    machine.nics.push(Nic { place, model, network, tagging, mac, slot: None, mtu, queues });
}

/// Everything that an interface has of what it is joined to. An attribute that is not known is
/// taken to identify the network.
fn network(interface: Node<'_, '_>, kind: &str, of: Of, place: &str, machine: &mut Machine) -> Network {
    if let "user" | "ethernet" | "null" | "vdpa" = kind {
        // Each of these was joined to something of its own on the host.
        return Network::Alone(format!("the interface is of the type {kind:?}"));
    }
    let source = first(interface, "source");
    let given = source.into_iter().flat_map(|source| source.attributes());
    let mut given: Vec<(&str, &str)> = given.map(|attribute| (attribute.name(), attribute.value())).collect();
    // Running domains also show the bridge that belongs to their network.
    let follows = |name: &str| {
        OF_PORT.contains(&name) || kind == "network" && ["bridge", "dev", "mode"].contains(&name)
    };
    given.retain(|(name, value)| !follows(name) && !value.is_empty());
    // The switch first, the others by their names.
    let is_switch =
        |name: &str| ["network", "bridge", "dev", "switchid", "address", "path", "name"].contains(&name);
    given.sort_by_key(|(name, _)| (!is_switch(name), *name));
    match (kind, given.as_slice()) {
        ("vds", &[("switchid", switch), ("portgroupid", group)]) => {
            return Network::Distributed { switch: switch.into(), port_group: group.into() };
        }
        ("bridge", &[("bridge", name)]) if of == Of::Vmware => return Network::PortGroup(name.into()),
        ("direct", given) if given.contains(&("mode", "private")) => machine.note(
            format!("{place}: mode \"private\""),
            "is not carried over: cards on it did not reach each other; give each a port group with another VLAN",
        ),
        _ => {}
    }
    let known =
        ["network", "bridge", "direct", "vds", "internal", "vhostuser", "client", "server", "mcast", "udp"];
    let mut words: Vec<(String, String)> =
        given.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    if !words.is_empty() {
        // The two ends of a connection are one network; all other types are networks of their own.
        let kind = if kind == "server" { "client" } else { kind };
        if !["network", "bridge"].contains(&kind) {
            words.push(("type".into(), kind.into()));
        }
        words.extend(profile(interface, kind, &words, place, machine));
    }
    if !known.contains(&kind) {
        machine.note(format!("{place}: type {kind:?}"), "is no type that is known");
    }
    if let Some(local) = source.and_then(|source| first(source, "local")) {
        let local = local
            .attributes()
            .map(|attribute| (format!("local {}", attribute.name()), attribute.value().into()));
        words.extend(local);
    }
    Network::of(words, "the interface names no network")
}

/// What `<virtualport>` adds: profiles of ports decide which network a port is in.
fn profile(
    interface: Node<'_, '_>,
    kind: &str,
    words: &[(String, String)],
    place: &str,
    machine: &mut Machine,
) -> Vec<(String, String)> {
    let Some(port) = first(interface, "virtualport") else { return Vec::new() };
    let mut profile = Vec::new();
    let is_integration = attribute(port, "type") == Some("midonet")
        || kind == "bridge" && words.iter().any(|(_, bridge)| bridge.starts_with("br-int"));
    for attribute in all(port, "parameters").flat_map(|parameters| parameters.attributes()) {
        let (name, value) = (attribute.name(), attribute.value());
        if !OF_VIRTUAL_PORT.contains(&name) {
            profile.push((name.to_owned(), value.to_owned()));
        } else if name == "interfaceid" && is_integration {
            // The integration bridge of OVN or Neutron: a controller decides by this id.
            machine.note(
                format!("{place}: interfaceid {value:?}"),
                format!("decides in which network of OVN's or Neutron's the card is, so it is apart from all others here; ovn = {value:?} instead of port_group joins it to OVN's"),
            );
            profile.push((name.to_owned(), value.to_owned()));
        }
    }
    profile.sort();
    profile
}

/// The VLANs of an interface.
fn tagging(interface: Node<'_, '_>, place: &str, machine: &mut Machine) -> Tagging {
    let Some(vlan) = first(interface, "vlan") else { return Tagging::OfNetwork };
    let tags: Vec<Node<'_, '_>> = all(vlan, "tag").collect();
    let native = tags.iter().find_map(|tag| attribute(*tag, "nativeMode").zip(attribute(*tag, "id")));
    if let Some((mode, id)) = native {
        machine.note(
            format!("{place}: nativeMode {mode:?} of VLAN {id}"),
            "is not carried over: frames without a tag, which were of this VLAN, are of none; have the guest tag them",
        );
    }
    let is_trunk = attribute(vlan, "trunk") == Some("yes") || tags.len() > 1 || native.is_some();
    let (mut good, mut odd) = (Vec::new(), Vec::new());
    for tag in &tags {
        let id = attribute(*tag, "id").unwrap_or_default();
        match id.parse::<u16>() {
            Ok(number) if (1..4095).contains(&number) => good.push(number),
            _ => odd.push(id),
        }
    }
    for id in &odd {
        machine.note(format!("{place}: VLAN {id:?}"), "is no number from 1 to 4094; it is left out");
    }
    good.sort_unstable();
    good.dedup();
    match good.as_slice() {
        [] => Tagging::Unusable(odd.join(" ")),
        [one] if !is_trunk => Tagging::Access(*one),
        _ => Tagging::Trunk(good),
    }
}

#[cfg(test)]
mod tests {
    use super::super::libvirt;
    use crate::machine::Nic;
    use crate::network::{Network, Tagging};

    fn nics(interfaces: &[&str]) -> Vec<Nic> {
        let interfaces = interfaces.iter().map(|interface| {
            let (open, rest) = interface.split_once('>').unwrap();
            format!("<interface {open}>{rest}<model type='virtio'/></interface>")
        });
        let interfaces: String = interfaces.collect();
        libvirt(format!("<domain type='kvm'><name>t</name><devices>{interfaces}</devices></domain>"))
            .unwrap()
            .nics
    }

    #[test]
    fn nothing_that_identifies_a_network_is_dropped() {
        let nics = nics(&[
            "type='network'><source network='a' portgroup='x'/>",
            "type='network'><source network='b' portgroup='x'/>",
            "type='network'><source network='a' portgroup='y'/>",
            "type='network'><source network='a'/>",
            "type='bridge'><source bridge='a'/>",
            "type='bridge'><source bridge='a'/><virtualport type='802.1Qbh'><parameters profileid='p'/></virtualport>",
            "type='bridge'><source bridge='br-int'/><virtualport type='openvswitch'><parameters interfaceid='1'/></virtualport>",
            "type='bridge'><source bridge='br-int'/><virtualport type='openvswitch'><parameters interfaceid='2'/></virtualport>",
            "type='direct'><source dev='a' mode='bridge'/>",
            "type='direct'><source dev='a' mode='vepa'/>",
            "type='vds'><source switchid='a' portid='1' portgroupid='x' connectionid='1'/>",
            "type='vds'><source switchid='a' portid='2' portgroupid='y' connectionid='2'/>",
            "type='server'><source address='10.0.0.1' port='1'/>",
            "type='server'><source address='10.0.0.1' port='2'/>",
            "type='mcast'><source address='10.0.0.1' port='1'/>",
            "type='udp'><source address='10.0.0.1' port='1'><local address='10.0.0.2' port='1'/></source>",
            "type='udp'><source address='10.0.0.1' port='1'><local address='10.0.0.3' port='1'/></source>",
            "type='internal'><source name='a'/>",
            "type='vhostuser'><source type='unix' path='/a' mode='server'/>",
            "type='new'><source key='a'/>",
            "type='network'><source network='a' key='b'/>",
        ]);
        for (at, one) in nics.iter().enumerate() {
            assert!(!matches!(one.network, Network::Alone(_)), "{}", one.network);
            assert!(nics.iter().skip(at + 1).all(|other| other.network != one.network), "{}", one.network);
        }
        for alone in [
            "type='user'>",
            "type='null'>",
            "type='ethernet'><target dev='tap0'/>",
            "type='bridge'>",
            "type='client'>",
        ] {
            let nic = self::nics(&[alone]).remove(0);
            assert!(matches!(nic.network, Network::Alone(_)), "{alone}: {}", nic.network);
        }
    }

    #[test]
    fn ports_of_one_network_are_in_it() {
        for pair in [
            [
                "type='network'><source network='a' portid='1' bridge='virbr0'/>",
                "type='network'><source network='a'/>",
            ],
            [
                "type='bridge'><source bridge='a'/><virtualport type='openvswitch'><parameters interfaceid='1'/></virtualport>",
                "type='bridge'><source bridge='a'/>",
            ],
            [
                "type='server'><source address='10.0.0.1' port='1'/>",
                "type='client'><source address='10.0.0.1' port='1'/>",
            ],
            [
                "type='vds'><source switchid='a' portid='1' portgroupid='x' connectionid='1'/>",
                "type='vds'><source switchid='a' portid='2' portgroupid='x' connectionid='2'/>",
            ],
        ] {
            let nics = nics(&pair);
            assert_eq!(nics[0].network, nics[1].network);
        }
    }

    #[test]
    fn tags_are_those_of_the_interface() {
        for (vlan, tagging) in [
            ("<vlan><tag id='42'/></vlan>", Tagging::Access(42)),
            ("<vlan trunk='yes'><tag id='42'/></vlan>", Tagging::Trunk(vec![42])),
            ("<vlan><tag id='47'/><tag id='42'/></vlan>", Tagging::Trunk(vec![42, 47])),
            ("<vlan><tag id='42' nativeMode='untagged'/></vlan>", Tagging::Trunk(vec![42])),
            ("<vlan trunk='yes'><tag id='42'/><tag id='4095'/></vlan>", Tagging::Trunk(vec![42])),
            ("<vlan><tag id='5000'/></vlan>", Tagging::Unusable("5000".into())),
            ("<vlan/>", Tagging::Unusable(String::new())),
            ("", Tagging::OfNetwork),
        ] {
            let nic = nics(&[&format!("type='bridge'><source bridge='a'/>{vlan}")]).remove(0);
            assert_eq!(nic.tagging, tagging, "{vlan}");
        }
    }
}
