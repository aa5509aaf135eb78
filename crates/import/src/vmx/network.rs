//! What a card of a `.vmx` file was joined to.

use super::keys::Device;
use crate::network::Network;

/// Keys that identify the network of a card. `dvs.portId`, `dvs.connectionId` and `externalId` are of
/// one port.
const IDENTITY: [&str; 7] = [
    "dvs.switchId",
    "dvs.portgroupId",
    "opaqueNetwork.type",
    "opaqueNetwork.id",
    "pvnID",
    "vnet",
    "networkName",
];

pub fn of(card: Device<'_>) -> Network {
    let keys = IDENTITY.into_iter().chain(["connectionType"]);
    let unusable: Vec<&str> = keys.filter(|key| card.is_unusable(key)).collect();
    if let Some(key) = unusable.first() {
        return Network::Alone(format!("what the file has of {key} cannot be used"));
    }
    let has = |name: &str| card.get(name).is_some();
    let given = IDENTITY.into_iter().filter_map(|key| Some((key, card.get(key)?)));
    let mut given: Vec<(&str, &str)> = given.collect();
    let kind = card.get("connectionType").map(str::to_ascii_lowercase);
    match (given.as_slice(), kind.as_deref()) {
        (&[("networkName", name)], None | Some("bridged" | "custom" | "nat" | "hostonly")) => {
            return Network::PortGroup(name.into());
        }
        (&[("dvs.switchId", switch), ("dvs.portgroupId", group)], _) => {
            return Network::Distributed { switch: switch.into(), port_group: group.into() };
        }
        // VMware Workstation has one of each on a host.
        ([], Some(kind @ ("bridged" | "nat" | "hostonly"))) => given.push(("connectionType", kind)),
        ([], Some(kind)) => {
            return Network::Alone(format!("connectionType is {kind:?}, and nothing names the network"));
        }
        _ if has("dvs.switchId") != has("dvs.portgroupId") => {
            return Network::Alone("a distributed port group has two ids, and one is missing".into());
        }
        _ if has("opaqueNetwork.type") && !has("opaqueNetwork.id") => {
            return Network::Alone("opaqueNetwork.id is missing".into());
        }
        (_, Some("pvn")) if !has("pvnID") => return Network::Alone("pvnID is missing".into()),
        (_, None | Some("bridged" | "custom" | "nat" | "hostonly" | "pvn")) => {}
        (_, Some(kind)) => given.push(("connectionType", kind)),
    }
    let words = given.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Network::of(words, "the description names no network for this card")
}

#[cfg(test)]
mod tests {
    use super::super::vmx;
    use crate::network::Network;

    /// Of cards with these lines.
    fn networks(cards: &[&str]) -> Vec<Network> {
        let mut text = String::from("config.version = \"8\"\n");
        for (number, lines) in cards.iter().enumerate() {
            text +=
                &format!("ethernet{number}.present = \"TRUE\"\nethernet{number}.virtualDev = \"vmxnet3\"\n");
            text.extend(
                lines
                    .split(' ')
                    .filter(|line| !line.is_empty())
                    .map(|line| format!("ethernet{number}.{line}\n")),
            );
        }
        vmx(&text).unwrap().nics.into_iter().map(|nic| nic.network).collect()
    }

    #[test]
    fn nothing_that_identifies_a_network_is_dropped() {
        let apart = [
            "networkName=a",
            "networkName=b",
            "dvs.switchId=s1 dvs.portgroupId=a",
            "dvs.switchId=s1 dvs.portgroupId=b",
            "dvs.switchId=s2 dvs.portgroupId=a",
            "dvs.switchId=s1 dvs.portgroupId=a networkName=a",
            "opaqueNetwork.type=nsx.LogicalSwitch opaqueNetwork.id=a",
            "opaqueNetwork.type=nsx.LogicalSwitch opaqueNetwork.id=b",
        ];
        let more = [
            "connectionType=pvn pvnID=a",
            "connectionType=pvn pvnID=b",
            "connectionType=custom vnet=VMnet2",
            "connectionType=custom vnet=VMnet3",
            "connectionType=bridged",
            "connectionType=nat",
            "connectionType=hostonly",
            "connectionType=new networkName=a",
        ];
        let networks = [networks(&apart), networks(&more)].concat();
        for (at, one) in networks.iter().enumerate() {
            assert!(!matches!(one, Network::Alone(_)), "{one}");
            assert!(networks.iter().skip(at + 1).all(|other| other != one), "{one}");
        }
        assert_eq!(networks[0], Network::PortGroup("a".into()));
    }

    #[test]
    fn a_card_of_which_nothing_is_known_is_alone() {
        let alone = [
            "",
            "connectionType=custom",
            "connectionType=pvn",
            "connectionType=new",
            "dvs.switchId=s1",
            "dvs.portgroupId=a networkName=b",
            "opaqueNetwork.type=nsx.LogicalSwitch networkName=b",
            "connectionType=pvn networkName=b",
            "networkName=\"b connectionType=bridged",
        ];
        for network in networks(&alone) {
            assert!(matches!(network, Network::Alone(_)), "{network}");
        }
    }
}
