//! NICs that are logical ports of OVN: `ovn` of a NIC, and the table `[ovn]`. Each has an uplink of its own,
//! a TAP interface that the helper makes a port of the integration bridge.

use std::path::PathBuf;

use toml::Spanned;
use vmlane_switch::Policy;

use crate::names::{hash, nic_name};
use crate::notes::Notes;
use crate::raw::{RawNic, RawOvn, RawVm};
use crate::switch;
use crate::uplink::{MOST_QUEUES, UplinkConfig, UplinkKind};
use crate::vlan::Vlan;

/// Where Open vSwitch's database listens on Debian, and elsewhere.
const DATABASE: &str = "/run/openvswitch/db.sock";
/// OVN's name of the bridge, by default.
const BRIDGE: &str = "br-int";
/// Bytes of the longest name of a logical port.
const LONGEST_PORT: usize = 200;

/// The table `[ovn]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvnConfig {
    /// The socket of Open vSwitch's database.
    pub database: PathBuf,
    /// The integration bridge.
    pub bridge: String,
}

impl Default for OvnConfig {
    fn default() -> OvnConfig {
        OvnConfig { database: DATABASE.into(), bridge: BRIDGE.into() }
    }
}

/// The logical port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvnNic {
    /// Its name in OVN's northbound database: `iface-id`.
    pub port: String,
    /// The MTU that the configuration gives to the NIC, and so to its interface.
    pub mtu: Option<u16>,
}

/// What OVN judges is not judged here.
pub const POLICY: Policy = Policy { promiscuous: true, mac_changes: true, forged_transmits: true };

/// The name of the uplink of NIC `number`: as its port's, so that both have one share of a worker's time.
pub fn uplink_name(vm: &str, number: usize) -> String {
    format!("{}/ovn", nic_name(vm, number))
}

/// The isolation group of that NIC and its uplink. The configuration cannot name it.
pub fn group(vm: &str, number: usize) -> String {
    format!("ovn:{}", nic_name(vm, number))
}

/// The interface of that NIC: 48 bits of a hash.
pub fn interface(vm: &str, number: usize) -> String {
    let hash = hash(vm, number);
    format!("vmo{:012x}", (hash ^ hash >> 48) & 0xffff_ffff_ffff)
}

/// The table `[ovn]`.
pub(crate) fn judge(raw: &Option<Spanned<RawOvn>>, notes: &mut Notes<'_>) -> OvnConfig {
    let mut ovn = OvnConfig::default();
    let Some(raw) = raw.as_ref().map(Spanned::get_ref) else { return ovn };
    if let Some(database) = &raw.database {
        let path = database.get_ref();
        if !path.starts_with('/') || path.contains('\0') {
            let text =
                format!("ovn: database = {path:?}: use the absolute path of the socket, as {DATABASE}");
            notes.problem(database.span(), text);
        }
        ovn.database = path.into();
    }
    if let Some(bridge) = &raw.bridge {
        ovn.bridge = notes.name("ovn", "bridge", bridge);
    }
    ovn
}

/// The uplinks of NICs that are ports of OVN's.
pub(crate) fn uplinks(vms: &[Spanned<RawVm>]) -> Vec<UplinkConfig> {
    let mut uplinks = Vec::new();
    for vm in vms {
        let Some(name) = &vm.get_ref().name else { continue };
        for (number, nic) in vm.get_ref().nic.iter().enumerate() {
            if nic.get_ref().ovn.is_none() {
                continue;
            }
            let queues = nic.get_ref().queues.as_ref().map_or(1, |queues| *queues.get_ref());
            uplinks.push(UplinkConfig {
                name: uplink_name(name.get_ref(), number),
                kind: UplinkKind::Tap {
                    interface: interface(name.get_ref(), number),
                    queues: Some(queues.clamp(1, MOST_QUEUES.into()) as u16),
                    direct: true,
                },
                group: group(name.get_ref(), number),
                switch: switch::DEFAULT.to_owned(),
                vlan: Vlan::TrunkAll,
                notify: true,
            });
        }
    }
    uplinks
}

/// A NIC's configuration of its logical port.
pub(crate) fn judge_nic(key: &str, raw: &RawNic, notes: &mut Notes<'_>) -> Option<OvnNic> {
    let port = raw.ovn.as_ref()?;
    let text = port.get_ref();
    if text.is_empty() || text.len() > LONGEST_PORT || text.chars().any(|c| c.is_control() || c == ' ') {
        let text = format!(
            "{key}: ovn = {text:?} is no logical port's name; use the one of `ovn-nbctl lsp-list SWITCH`, at most \
             {LONGEST_PORT} bytes without spaces"
        );
        notes.problem(port.span(), text);
    }
    if notes.is_added(port.span().start) {
        let text = format!(
            "{key}: ovn: the helper that makes ports reads no VM that was added at run time, because the daemon writes those; \
             put it into a file of conf.d, and run `vmlane reload`"
        );
        notes.problem(port.span(), text);
    }
    let switched = [
        ("switch", raw.switch.is_some()),
        ("port_group", raw.port_group.is_some()),
        ("promiscuous", raw.promiscuous.is_some()),
        ("mac_changes", raw.mac_changes.is_some()),
        ("forged_transmits", raw.forged_transmits.is_some()),
    ];
    for (name, _) in switched.iter().filter(|(_, given)| *given) {
        let text = format!(
            "{key}: {name} and ovn: the NIC is a port of OVN's, which decides that (ACLs, port security); remove one of them"
        );
        notes.problem(port.span(), text);
    }
    let mtu = raw.mtu.as_ref().and_then(|mtu| u16::try_from(*mtu.get_ref()).ok());
    Some(OvnNic { port: text.clone(), mtu })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;
    use crate::sources::{Source, SourceKind, Sources};

    fn check(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("t.toml"), text).map_err(|error| error.to_string())
    }

    fn vm(name: &str, cid: u32, nic: &str) -> String {
        format!("[[vm]]\nname = {name:?}\ncid = {cid}\nnic = [{{ model = \"virtio-net\", {nic} }}]\n")
    }

    #[test]
    fn each_nic_with_a_logical_port_has_an_uplink_and_a_group_of_its_own() {
        let text = "[[uplink]]\nname = \"lan\"\ntap = \"tap0\"\n".to_owned()
            + &vm("a", 3, "ovn = \"lsp-a\", queues = 4, mtu = 1442")
            + &vm("b", 4, "ovn = \"7e6c/b:1\"");
        let config = check(&text).unwrap();
        assert_eq!(
            config.ovn,
            OvnConfig { database: "/run/openvswitch/db.sock".into(), bridge: "br-int".into() }
        );
        let names: Vec<_> = config.uplinks.iter().map(|uplink| (&*uplink.name, &*uplink.group)).collect();
        assert_eq!(names, [("lan", "default"), ("a/nic0/ovn", "ovn:a/nic0"), ("b/nic0/ovn", "ovn:b/nic0")]);
        let UplinkKind::Tap { interface, queues: Some(4), direct: true } = &config.uplinks[1].kind else {
            panic!("{:?}", config.uplinks)
        };
        assert!(interface.len() == 15 && interface != config.uplinks[2].kind.target());
        let nic = &config.vms[0].nics[0];
        assert_eq!(nic.ovn, Some(OvnNic { port: "lsp-a".into(), mtu: Some(1442) }));
        assert_eq!(nic.policy, POLICY);
        // The helper that opens interfaces reads the same list.
        assert_eq!(Config::uplinks(&Sources::of(Path::new("t.toml"), &text)).unwrap(), config.uplinks);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_way_out() {
        for (text, words) in [
            (vm("a", 3, "ovn = \"x\", port_group = \"default\""), "port_group and ovn"),
            (vm("a", 3, "ovn = \"x\", forged_transmits = false"), "forged_transmits and ovn"),
            (vm("a", 3, "ovn = \"\""), "ovn = \"\" is no logical port's name"),
            (vm("a", 3, "ovn = \"a b\""), "is no logical port's name"),
            (vm("a", 3, "ovn = \"x\"") + &vm("b", 4, "ovn = \"x\""), "is another NIC's port, too (line 4)"),
            ("[ovn]\ndatabase = \"db.sock\"\n".into(), "use the absolute path"),
            ("[ovn]\nbridge = \"br int\"\n".into(), "bridge = \"br int\""),
            ("[ovn]\nsocket = 1\n".into(), "socket = 1: there is no such key"),
        ] {
            let refused = check(&text).unwrap_err();
            assert!(refused.contains(words), "{text}\n{refused}");
        }
        let mut sources = Sources::of(Path::new("t.toml"), "");
        let (path, text) = ("a.toml".into(), vm("a", 3, "ovn = \"x\""));
        sources.0.push(Source { path, text, kind: SourceKind::Vm });
        let refused = Config::check(&sources).unwrap_err().to_string();
        assert!(refused.contains("conf.d"), "{refused}");
    }
}
