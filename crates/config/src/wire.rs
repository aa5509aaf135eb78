//! `[[wire]]`: two NICs, or a NIC and an uplink, that are joined directly, by no switch. Both ends have a
//! network of their own.

use std::ops::Range;

use toml::Spanned;
use vmlane_switch::{Impairment, Policy};

use crate::impair;
use crate::notes::{Named, Notes};
use crate::raw::{RawNic, RawUplink, RawWire};

/// The port group of a NIC that is in none.
pub const NO_PORT_GROUP: &str = "-";
/// Nothing is judged on a wire.
pub const POLICY: Policy = Policy { promiscuous: true, mac_changes: true, forged_transmits: true };

/// How the network of a wire begins. No switch is called so.
const PREFIX: &str = "wire:";

/// One `[[wire]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireConfig {
    pub name: String,
    /// `VM/nicN`, or an uplink's name; one at least is a NIC.
    pub ends: [String; 2],
    /// What happens to frames on their way to each of them.
    pub impair: [Impairment; 2],
}

/// What the ends of a wire have in place of a switch. The configuration cannot name it otherwise.
pub fn network(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The name of the wire whose network this is; None: it is a switch.
pub fn of_network(switch: &str) -> Option<&str> {
    switch.strip_prefix(PREFIX)
}

/// All wires, as far as they are known without what is at their ends.
pub fn judge(raws: &[Spanned<RawWire>], notes: &mut Notes<'_>) -> Vec<WireConfig> {
    let mut wires: Vec<WireConfig> = Vec::new();
    for (index, spanned) in raws.iter().enumerate() {
        let raw = spanned.get_ref();
        let Some(name) = notes.name_of(Named::Wire, index, spanned.span(), &raw.name) else { continue };
        if wires.iter().any(|other| other.name == *name.get_ref()) {
            let text = format!("wire: name = {:?} is taken by another one; rename one", name.get_ref());
            notes.conflict(name.span(), &[name.span()], text);
        }
        let key = format!("wire {:?}", name.get_ref());
        let [one, other] = &raw.ends[..] else {
            let text = format!(
                "{key}: ends: there are {}, and a wire has two; write for example ends = [\"a/nic0\", \"b/nic0\"]",
                raw.ends.len()
            );
            notes.problem(raw.ends.get(2).map_or(spanned.span(), Spanned::span), text);
            continue;
        };
        if one.get_ref() == other.get_ref() {
            let text = format!("{key}: ends: {:?} is named twice; name two ends", one.get_ref());
            notes.problem(other.span(), text);
        }
        for end in [one, other] {
            if let Some(before) = of_end(&wires, end.get_ref()) {
                let text = format!(
                    "{key}: ends: {:?} is an end of wire {:?} already; take it out of one",
                    end.get_ref(),
                    before.name
                );
                notes.problem(end.span(), text);
            }
        }
        let ends = [one, other].map(|end| end.get_ref().clone());
        let impair = impair::of_wire(&key, raw, notes);
        wires.push(WireConfig { name: name.get_ref().clone(), ends, impair });
    }
    wires
}

/// The wire that a NIC or an uplink is an end of.
pub fn of_end<'w>(wires: &'w [WireConfig], end: &str) -> Option<&'w WireConfig> {
    wires.iter().find(|wire| wire.ends.iter().any(|other| other == end))
}

/// What an end of a wire cannot have beside it.
fn refuse(
    key: &str,
    wire: &WireConfig,
    keys: &[(&str, Option<Range<usize>>)],
    what: &str,
    notes: &mut Notes<'_>,
) {
    for (name, span) in keys {
        let Some(span) = span else { continue };
        let text = format!(
            "{key}: {name}, and it is an end of wire {:?}, which {what}; remove one of them",
            wire.name
        );
        notes.problem(span.clone(), text);
    }
}

/// A NIC that is an end of `wire`.
pub fn judge_nic(key: &str, spanned: &Spanned<RawNic>, wire: &WireConfig, notes: &mut Notes<'_>) {
    let raw = spanned.get_ref();
    let own = |given: bool| given.then(|| spanned.span());
    let keys = [
        ("switch", raw.switch.as_ref().map(Spanned::span)),
        ("port_group", raw.port_group.as_ref().map(Spanned::span)),
        ("ovn", raw.ovn.as_ref().map(Spanned::span)),
        ("promiscuous", own(raw.promiscuous.is_some())),
        ("mac_changes", own(raw.mac_changes.is_some())),
        ("forged_transmits", own(raw.forged_transmits.is_some())),
    ];
    refuse(key, wire, &keys, "is on no switch and has no policy", notes);
}

/// An uplink that is an end of `wire`.
pub fn judge_uplink(key: &str, raw: &RawUplink, wire: &WireConfig, notes: &mut Notes<'_>) {
    let keys =
        [("switch", raw.switch.as_ref().map(Spanned::span)), ("vlan", raw.vlan.as_ref().map(Spanned::span))];
    refuse(key, wire, &keys, "is on no switch and passes all tags", notes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::sources::Sources;
    use crate::{Config, Vlan};

    fn check(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("t.toml"), text).map_err(|error| error.to_string())
    }

    fn vm(name: &str, cid: u32, nic: &str) -> String {
        format!(
            "[[vm]]\nname = {name:?}\ncid = {cid}\nnic = [{{ model = \"vmxnet3\", {nic} }}, {{ model = \"virtio-net\" }}]\n"
        )
    }

    fn wire(name: &str, ends: &str) -> String {
        format!("[[wire]]\nname = {name:?}\nends = [{ends}]\n")
    }

    const LAN: &str = "[[uplink]]\nname = \"lan\"\ntap = \"t0\"\n";

    #[test]
    fn both_ends_are_on_the_wire_and_on_no_switch_and_no_other_card_is() {
        let mac = "mac = \"52:54:00:00:00:01\", queues = 1";
        let text = "[[port_group]]\nname = \"default\"\nmulticast = \"snoop\"\nflood_limit = 7\nforged_transmits = false\n"
            .to_owned()
            + LAN
            + &wire("l1", "\"a/nic0\", \"b/nic1\"")
            + &wire("l2", "\"lan\", \"b/nic0\"")
            + &vm("a", 3, mac)
            + &vm("b", 4, mac)
            + &vm("c", 5, mac);
        let config = check(&text).unwrap();
        let nics = config.vms.iter().flat_map(|vm| &vm.nics);
        let places: Vec<_> = nics.map(|nic| (&*nic.switch, &*nic.port_group, nic.wire())).collect();
        let switched = ("default", "default", None);
        let [l1, l2] = [("wire:l1", "-", Some("l1")), ("wire:l2", "-", Some("l2"))];
        assert_eq!(places, [l1, switched, l2, l1, switched, switched]);
        let nic = &config.vms[0].nics[0];
        assert_eq!((nic.policy, nic.traffic), (super::POLICY, Default::default()));
        let lan = &config.uplinks[0];
        assert_eq!((&*lan.switch, lan.wire(), &lan.vlan), ("wire:l2", Some("l2"), &Vlan::TrunkAll));
        let ends = config.wires.iter().map(|wire| wire.ends.each_ref().map(String::as_str));
        assert_eq!(ends.collect::<Vec<_>>(), [["a/nic0", "b/nic1"], ["lan", "b/nic0"]]);
        // The helper that opens interfaces reads the same list.
        assert_eq!(Config::uplinks(&Sources::of(Path::new("t.toml"), &text)).unwrap(), config.uplinks);
    }

    #[test]
    fn a_card_keeps_its_own_shape_and_shares() {
        let shaped = "shares = 300, shape = { in = { average = \"10M\" } }";
        let config = check(&(wire("l", "\"a/nic0\", \"a/nic1\"") + &vm("a", 3, shaped))).unwrap();
        let traffic = config.vms[0].nics[0].traffic;
        assert!(traffic.shares == Some(300) && traffic.shape.input.is_some());
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        let good = wire("l", "\"a/nic0\", \"b/nic0\"");
        let with = |nic: &str| good.clone() + &vm("a", 3, nic) + &vm("b", 4, "queues = 1");
        let both =
            |wires: &str| wires.to_owned() + LAN + &vm("a", 3, "queues = 1") + &vm("b", 4, "queues = 1");
        let lan = |keys: &str| {
            both(&wire("l", "\"a/nic0\", \"lan\"")).replace("\"t0\"\n", &format!("\"t0\"\n{keys}\n"))
        };
        let team = "[[team]]\nname = \"t\"\nuplinks = [\"lan\"]\n";
        let mirror = |from: &str, to: &str| {
            format!("{good}[[mirror]]\nname = \"m\"\nfrom = [\"{from}\"]\nto = \"{to}\"\n")
        };
        let table = [
            ("[[wire]]\nends = [\"a/nic0\", \"b/nic0\"]\n".into(), "wire number 1: name is missing"),
            (both(&wire("a b", "\"a/nic0\", \"b/nic0\"")), "wire: name = \"a b\""),
            (both(&(good.clone() + &wire("l", "\"a/nic1\", \"b/nic1\""))), "name = \"l\" is taken"),
            (both("[[wire]]\nname = \"l\"\n"), "wire \"l\": ends: there are 0, and a wire has two"),
            (both(&wire("l", "\"a/nic0\"")), "ends: there are 1"),
            (both(&wire("l", "\"a/nic0\", \"b/nic0\", \"lan\"")), "ends: there are 3"),
            (both(&wire("l", "\"a/nic0\", \"a/nic0\"")), "\"a/nic0\" is named twice"),
            (
                both(&(good.clone() + &wire("k", "\"lan\", \"b/nic0\""))),
                "wire \"k\": ends: \"b/nic0\" is an end of wire \"l\" already",
            ),
            (
                both(&wire("l", "\"a/nic0\", \"b/nic2\"")),
                "\"b/nic2\" is no NIC and no uplink; name a NIC as VM/nicN",
            ),
            (both(&wire("l", "\"a/nic0\", \"b\"")), "there are a/nic0, a/nic1, b/nic0, b/nic1, lan"),
            (
                both(&wire("l", "\"lan\", \"lan2\""))
                    .replace(LAN, &(LAN.to_owned() + &LAN.replace("lan", "lan2").replace("t0", "t2"))),
                "both are uplinks",
            ),
            (
                with("queues = 1").replace("cid = 4", "cid = 4\ngroup = \"g\""),
                "\"b/nic0\" in group \"g\"; no traffic crosses groups",
            ),
            (with("port_group = \"default\""), "vm \"a\": nic 0: port_group, and it is an end of wire \"l\""),
            (
                with("switch = \"default\""),
                "nic 0: switch, and it is an end of wire \"l\", which is on no switch",
            ),
            (with("forged_transmits = false"), "nic 0: forged_transmits, and it is"),
            (with("ovn = \"x\""), "nic 0: ovn, and it is an end"),
            (
                lan("vlan = 7"),
                "uplink \"lan\": vlan, and it is an end of wire \"l\", which is on no switch and passes all tags",
            ),
            (lan("switch = \"default\""), "uplink \"lan\": switch, and it is"),
            (lan("group = \"g\""), "\"lan\" in group \"g\"; no traffic crosses groups"),
            (lan(team), "team \"t\": uplinks: \"lan\" is an end of wire \"l\""),
            (both(&mirror("lan", "a/nic0")), "to = \"a/nic0\" is an end of wire \"l\""),
            (good.clone() + "[[wire]]\nname = \"x\"\nends = \"a\"\n", "write a list"),
        ];
        for (text, words) in table {
            let error = check(&text).expect_err(words);
            assert!(error.contains(words), "{words}\n{text}\n{error}");
        }
        check(&both(&mirror("a/nic0", "a/nic1"))).unwrap();
        check(&lan("group = \"default\"")).unwrap();
    }

    #[test]
    fn addresses_are_those_of_one_wire() {
        let mac = "mac = \"52:54:00:00:00:01\"";
        let three = vm("a", 3, mac) + &vm("b", 4, mac) + &vm("c", 5, mac);
        check(&(wire("l", "\"a/nic0\", \"b/nic1\"") + &wire("k", "\"b/nic0\", \"c/nic1\"") + &three))
            .unwrap();
        let same = check(&(wire("l", "\"a/nic0\", \"b/nic0\"") + &three)).unwrap_err();
        assert!(same.contains("vm \"b\": nic 0: mac = \"52:54:00:00:00:01\" is taken by VM \"a\""), "{same}");
    }
}
