//! Wires between guests' cards of both models: every kind of frame passes as it is, and what Linux builds of
//! two cables (a bond with LACP, bridges with STP) works and notices when one is cut.

mod netem;

use std::collections::BTreeMap;

use netem::impairments_have_the_shape_of_netem;
use toml::{Table, Value};
use vmlane_tests::traffic::{both, card_up, whole_pings};
use vmlane_tests::{Bed, Configured, TIMEOUT, eventually, json, kept, wait_until};

vmlane_tests::tests! {
    guests in QUEUES {
        every_kind_of_frame_passes_between_guests,
        a_bond_of_two_wires_outlasts_a_cut_of_either,
        bridges_on_two_wires_find_their_loop,
    }
    long in QUEUES { impairments_have_the_shape_of_netem }
}

/// Guests a and b, and the card of each that is an end: 0 is VMXNET3, 1 virtio-net.
type Wire = (u32, u32);
/// Two wires between cards of one model, and two between a card of each.
const ALIKE: [Wire; 2] = [(0, 0), (1, 1)];
const MIXED: [Wire; 2] = [(0, 1), (1, 0)];

/// Joins the cards, which are on the switch again when what this returns is dropped.
fn joined(bed: &Bed, wires: [Wire; 2]) -> Configured<'_> {
    bed.edited(|config| {
        for vm in config["vm"].as_array_mut().unwrap() {
            let nics = vm["nic"].as_array_mut().unwrap().iter_mut().take(2);
            nics.for_each(|nic| drop(nic.as_table_mut().unwrap().remove("port_group")));
        }
        let wire = |(a, b): Wire| {
            let ends = [format!("a/nic{a}"), format!("b/nic{b}")].map(Value::from);
            let keys = [("name", format!("w{a}").into()), ("ends", ends.to_vec().into())];
            Table::from_iter(keys.map(|(key, value): (&str, Value)| (key.to_owned(), value)))
        };
        config.insert("wire".into(), wires.map(wire).to_vec().into());
    })
}

fn read(bed: &Bed, guest: &str, file: &str) -> String {
    bed.guest(guest).sh(&format!("cat {file}")).unwrap().trim().to_owned()
}

fn has_carrier(bed: &Bed, guest: &str, card: u32) -> bool {
    read(bed, guest, &format!("/sys/class/net/eth{card}/carrier")) == "1"
}

fn every_kind_of_frame_passes_between_guests(bed: &Bed) {
    let (mut run, mut passed) = (0, 0);
    for wires in [ALIKE, MIXED] {
        let _joined = joined(bed, wires);
        wait_until("the cards have a carrier", || [0, 1].iter().all(|&card| has_carrier(bed, "a", card)));
        for wire in wires {
            for mode in ["groups", "all"] {
                run += 1;
                passed += frames_pass(bed, wire, run, mode);
            }
            tags_and_long_frames_pass(bed, wire);
        }
    }
    both(
        bed,
        "modprobe -r 8021q; modprobe -r stp llc; ethtool -G eth0 rx 1024 tx 512; ethtool -K eth0 lro on",
    );
    kept(
        "wires",
        &format!(
            "{passed} frames of groups, of every tag and type, to and from any address arrive as they are"
        ),
    );
}

/// From a to b; returns how many.
fn frames_pass(bed: &Bed, (from, to): Wire, run: u32, mode: &str) -> usize {
    let script = |verb: &str, card: u32, more: &str| {
        format!("python3 /t/frames.py {verb} eth{card} {run} {mode} {more}")
    };
    let taker = bed.guest("b").spawn(["sh", "-c", &script("take", to, "")]).unwrap();
    taker.wait_for("listening", TIMEOUT).unwrap();
    let peer = read(bed, "b", &format!("/sys/class/net/eth{to}/address"));
    let sent: BTreeMap<String, String> =
        serde_json::from_str(&bed.guest("a").sh(&script("give", from, &peer)).unwrap()).unwrap();
    let taken = json(&bed.guest("b"), "frames take", &taker.wait().unwrap());
    let taken: BTreeMap<String, String> = serde_json::from_value(taken).unwrap();
    for (name, bytes) in &sent {
        assert_eq!(taken.get(name), Some(bytes), "{name}, from a/nic{from} to b/nic{to}, {mode}");
    }
    sent.len()
}

/// Tags that a guest's own VLAN devices put in, one or two, and packets of the largest MTU.
fn tags_and_long_frames_pass(bed: &Bed, (from, to): Wire) {
    for (guest, number, card) in [("a", 1, from), ("b", 2, to)] {
        let line = format!(
            "ip link set eth{card} mtu 9000; ip link add link eth{card} name outer type vlan proto 802.1ad id 100; \
             ip link add link outer name inner type vlan id 200; ip addr add 10.99.0.{number}/24 dev inner; \
             ip link add link eth{card} name only type vlan id 300; ip addr add 10.98.0.{number}/24 dev only; \
             ip link set outer up; ip link set inner up; ip link set only up"
        );
        bed.guest(guest).sh(&line).unwrap();
    }
    let a = bed.guest("a");
    wait_until("the largest packets pass", || a.sh("ping -q -c 1 -W 2 -M do -s 8972 10.99.0.2").is_ok());
    a.sh("ping -q -c 3 -i 0.2 10.98.0.2").unwrap();
    if from == to {
        whole_pings(bed, from, 9000);
    }
    for (guest, card) in [("a", from), ("b", to)] {
        bed.guest(guest)
            .sh(&format!(
                "ip link del inner; ip link del outer; ip link del only; ip link set eth{card} mtu 1500"
            ))
            .unwrap();
    }
}

/// Gives cards 0 and 1 of a and b to a device of the name `master`, which is made with the line `make` and
/// has the address 10.99.0.N.
fn enslaved(bed: &Bed, make: &str, master: &str) {
    for (guest, number) in [("a", 1), ("b", 2)] {
        let slaves = ["eth0", "eth1"]
            .map(|card| format!("ip link set {card} down; ip link set {card} master {master}; "));
        let line = format!(
            "set -e; {make}; {} ip link set eth0 up; ip link set eth1 up; ip addr add 10.99.0.{number}/24 dev {master}; \
             ip link set {master} up",
            slaves.concat()
        );
        bed.guest(guest).sh(&line).unwrap();
    }
}

/// All is as it was.
fn freed(bed: &Bed, master: &str, modules: &str) {
    for (guest, number) in [("a", 1), ("b", 2)] {
        let cards = [0, 1].map(|card| card_up(card, number)).join(" && ");
        bed.guest(guest)
            .sh(&format!("ip link del {master} && {cards} && modprobe -r {modules}; ethtool -K eth0 lro on"))
            .unwrap();
    }
}

fn reaches(bed: &Bed) -> bool {
    bed.guest("a").sh("ping -q -c 2 -i 0.2 -W 1 10.99.0.2").is_ok()
}

/// Sets the link of one end down while `work` runs, as if that cable was cut.
fn cut(bed: &Bed, card: u32, work: impl FnOnce()) {
    let end = format!("b/nic{card}");
    bed.vmlane(&["link", &end, "down"]);
    work();
    bed.vmlane(&["link", &end, "up"]);
}

/// LACP between the guests. Where VMXNET3's carrier goes, the bond knows at once; a virtio-net card always
/// has one, so that LACP's own messages, or their absence, are what it learns from.
fn a_bond_of_two_wires_outlasts_a_cut_of_either(bed: &Bed) {
    for wires in [ALIKE, MIXED] {
        let _joined = joined(bed, wires);
        enslaved(
            bed,
            "modprobe bonding max_bonds=0; ip link add bond0 type bond mode 802.3ad miimon 100 lacp_rate fast",
            "bond0",
        );
        let of_bond =
            |guest: &str, key: &str| read(bed, guest, &format!("/sys/class/net/bond0/bonding/{key}"));
        let has = |ports: &str| ["a", "b"].iter().all(|guest| of_bond(guest, "ad_num_ports") == ports);
        let addresses = ["a", "b"].map(|guest| read(bed, guest, "/sys/class/net/bond0/address"));
        let whole = || has("2") && reaches(bed);
        wait_until("both wires are in the bond", whole);
        for (guest, other) in [("a", &addresses[1]), ("b", &addresses[0])] {
            assert_eq!(of_bond(guest, "ad_partner_mac"), **other, "the partner of {guest}");
        }
        for wire in wires {
            cut(bed, wire.1, || {
                wait_until("the bond has the other wire alone", || has("1"));
                wait_until("the guests reach each other over it", || reaches(bed));
                assert_eq!(
                    has_carrier(bed, "a", wire.0),
                    wire.0 != 0,
                    "of a/nic{}, cut at the other end",
                    wire.0
                );
            });
            wait_until("both wires are in the bond again", whole);
        }
        freed(bed, "bond0", "bonding");
    }
    kept(
        "wires",
        "LACP bonds of two wires, with VMXNET3 and virtio-net ends: each wire cut, the other one carries on",
    );
}

/// Spanning tree between two bridges: one of the two wires is not used, until the other one is cut.
fn bridges_on_two_wires_find_their_loop(bed: &Bed) {
    let _joined = joined(bed, ALIKE);
    let bridge = "ip link add br0 type bridge stp_state 1 forward_delay 200 hello_time 100 max_age 600";
    enslaved(bed, bridge, "br0");
    let state = |(guest, card)| read(bed, guest, &format!("/sys/class/net/eth{card}/brport/state"));
    let states = || [("a", 0), ("a", 1), ("b", 0), ("b", 1)].map(state);
    const FORWARDS: &str = "3";
    const BLOCKS: &str = "4";
    let settled = eventually("one port blocks and three forward", || {
        let states = states();
        let count = |which: &str| states.iter().filter(|state| *state == which).count();
        (count(FORWARDS) == 3 && count(BLOCKS) == 1).then_some(states)
    });
    let pings = bed.guest("a").sh("ping -c 10 -i 0.2 10.99.0.2").unwrap();
    assert!(!pings.contains("DUP!"), "frames go round: {pings}");
    // The one in use: neither of its ports blocks.
    let used = (0..2).find(|&at| settled[at] != BLOCKS && settled[at + 2] != BLOCKS).expect("one of two");
    cut(bed, ALIKE[used].1, || {
        wait_until("the other wire is used", || {
            states()[1 - used] == FORWARDS && states()[3 - used] == FORWARDS
        });
        wait_until("the guests reach each other over it", || reaches(bed));
    });
    wait_until("one port blocks again", || states().iter().filter(|state| *state == BLOCKS).count() == 1);
    freed(bed, "br0", "bridge stp llc");
    kept(
        "wires",
        "bridges with STP on two wires: one port blocks, no frame comes twice, and it forwards when the other is cut",
    );
}
