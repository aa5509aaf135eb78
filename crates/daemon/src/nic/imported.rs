//! Listings of ESXi hosts, imported: on the switches that their configuration makes, each card reaches those
//! that it reached, and no others. What it reached is in `cards.txt` beside each listing, written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vmlane_guestsim::memory_port::Wire;
use vmlane_import::{Host, Machine, Options, configuration, host, vmx};
use vmlane_port::{Filter, Offload};
use vmlane_switch::{Settings, Worker};
use vmlane_wire::ethernet::{Mac, Tci};

use super::*;
use crate::uplink::teams;

/// Cards of each port group: those of one reach each other.
const CARDS: usize = 2;
/// Guests that tag use these beside all that a listing has.
const OTHER_VLAN: u16 = 1234;
/// A host behind the uplinks.
const OUTSIDE: Mac = Mac([2, 0, 0, 0, 0, 99]);
/// A frame's type: one for experiments.
const TYPE: [u8; 2] = [0x88, 0xb5];

/// A line of `cards.txt`.
#[derive(Clone, Debug)]
struct Place {
    /// As a `.vmx` file names it; with `=`, a port group of vmlane.
    network: String,
    switch: String,
    /// 0: untagged. None: nothing reaches it.
    vlans: Option<BTreeSet<u16>>,
    is_trunk: bool,
}

impl Place {
    fn of(line: &str) -> Place {
        let [network, switch, vlans] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
        let numbers = || vlans.split(' ').map(|vlan| vlan.parse().unwrap()).collect::<BTreeSet<u16>>();
        let carried = match vlans {
            "trunk" => Some((0..4095).collect()),
            "apart" => None,
            _ => Some(numbers()),
        };
        let is_trunk = carried.as_ref().is_some_and(|vlans| vlans.len() > 1);
        Place { network: network.into(), switch: switch.into(), vlans: carried, is_trunk }
    }

    /// On one switch, frames of one VLAN.
    fn reaches(&self, other: &Place) -> bool {
        let (Some(one), Some(two)) = (&self.vlans, &other.vlans) else { return false };
        self.switch == other.switch && one.intersection(two).next().is_some()
    }

    /// Whether frames of a VLAN reach it; 0: untagged.
    fn carries(&self, vlan: u16) -> bool {
        self.vlans.as_ref().is_some_and(|vlans| vlans.contains(&vlan))
    }

    /// The tags of its guest's frames.
    fn tags(&self, all: &BTreeSet<u16>) -> Vec<Option<Tci>> {
        let tags = all.iter().map(|vlan| Some(Tci(*vlan)));
        if self.is_trunk { [None].into_iter().chain(tags).collect() } else { vec![None] }
    }
}

/// A case: its listings, its cards, and the uplinks of each switch, which are a team if there are several.
struct Case {
    name: String,
    hosts: Vec<Host>,
    places: Vec<Place>,
    uplinks: BTreeMap<String, Vec<String>>,
}

impl Case {
    fn read(folder: &Path) -> Case {
        let text = std::fs::read_to_string(folder.join("cards.txt")).unwrap();
        let lines = || text.lines().filter(|line| !line.starts_with('#'));
        let uplinks = lines().filter_map(|line| line.strip_prefix("uplinks | ")?.split_once(" | "));
        let names = |all: &str| all.split(' ').map(str::to_owned).collect();
        let hosts = (1..).map(|number| format!("esx{number}")).map_while(|name| {
            let text = std::fs::read(folder.join(format!("{name}.txt"))).ok()?;
            Some(host(&name, text).unwrap())
        });
        Case {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            hosts: hosts.collect(),
            places: lines().filter(|line| !line.starts_with("uplinks")).map(Place::of).collect(),
            uplinks: uplinks.map(|(switch, all)| (switch.to_owned(), names(all))).collect(),
        }
    }

    /// Their VMs, of one card each, in the order of the places.
    fn config(&self) -> Config {
        let mut machines = Vec::new();
        let mut later = String::new();
        for (at, place) in self.places.iter().enumerate() {
            for number in 0..CARDS {
                let name = vm_name(at, number);
                match place.network.strip_prefix('=') {
                    Some(group) => {
                        let _ = writeln!(
                            later,
                            "[[vm]]\nname = \"{name}\"\nvsock = \"none\"\nnic = [{{ model = \"vmxnet3\", port_group = \"{group}\" }}]"
                        );
                    }
                    None => machines.push(machine(&name, &place.network)),
                }
            }
        }
        let done = configuration(&machines, &Options { hosts: self.hosts.clone(), ..Options::default() });
        for place in self.places.iter().filter(|place| place.vlans.is_none()) {
            let name = place.network.rsplit(' ').next().unwrap();
            let mut notes = done.notes.iter().map(ToString::to_string);
            let is_reported = notes.any(|note| note.contains(name) && note.contains("a switch of its own"));
            assert!(is_reported, "{}: nothing reaches {name}, without a line", self.name);
        }
        Config::parse(Path::new("imported.toml"), &(done.toml + &later)).unwrap()
    }

    /// What is written by hand is what the tables of port groups have, where a listing has some.
    fn check_places(&self, folder: &Path) {
        let text = std::fs::read_to_string(folder.join("esx1.txt")).unwrap();
        for line in text.lines() {
            let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
            let [name, switch, clients, vlan] = cells[..] else { continue };
            let (Ok(_), Ok(vlan)) = (clients.parse::<u16>(), vlan.parse::<u16>()) else { continue };
            let place = self.places.iter().find(|place| place.network == name);
            let place = place.unwrap_or_else(|| panic!("{}: no card in {name}", self.name));
            // Other hosts have another one of its name.
            if place.vlans.is_some() {
                assert_eq!((place.switch.as_str(), &place.vlans), (switch, &Some([vlan].into())), "{line}");
            }
        }
    }

    /// All VLANs of its cards, and one that is none's.
    fn vlans(&self) -> BTreeSet<u16> {
        let few =
            self.places.iter().filter_map(|place| place.vlans.as_ref()).filter(|vlans| vlans.len() < 100);
        few.flatten().copied().filter(|vlan| *vlan > 0).chain([OTHER_VLAN]).collect()
    }
}

fn vm_name(place: usize, number: usize) -> String {
    format!("vm{place}-{number}")
}

/// A VM with a card in a network, as its `.vmx` file has it.
fn machine(name: &str, network: &str) -> Machine {
    let keys = match network.split_once(" dvportgroup-") {
        Some((switch, group)) => {
            format!(
                "ethernet0.dvs.switchId = \"{switch}\"\nethernet0.dvs.portgroupId = \"dvportgroup-{group}\"\n"
            )
        }
        None => format!("ethernet0.networkName = \"{network}\"\n"),
    };
    let card = "ethernet0.present = \"TRUE\"\nethernet0.virtualDev = \"vmxnet3\"\n";
    vmx(format!("config.version = \"8\"\ndisplayName = \"{name}\"\n{card}{keys}")).unwrap()
}

/// A port of the running switch.
struct Port {
    id: PortId,
    mac: Mac,
    wire: Wire,
}

/// The switch of a configuration, with a port over plain memory for each card and each uplink.
struct Bench {
    workers: Vec<Worker>,
    switch: Switch,
}

impl Bench {
    fn new() -> Bench {
        let settings = Settings { hold: Duration::from_secs(3600), ..Settings::default() };
        let (switch, workers) = Switch::unstarted_workers(settings);
        Bench { workers, switch }
    }

    fn port(&mut self, spec: PortSpec) -> Port {
        let (mac, is_uplink) = (spec.mac, spec.uplink);
        let (wire, end) = Wire::new(mac);
        if is_uplink {
            wire.change_filter(|filter| *filter = Filter::open());
        }
        let id = self.switch.add_port(spec).unwrap();
        self.switch.attach(id, end);
        self.switch.refresh(id);
        self.run();
        Port { id, mac, wire }
    }

    /// Makes the uplinks of each team one.
    fn join(&mut self, config: &Config, uplinks: &[(String, Port)]) {
        let port = |name: &str| uplinks.iter().find(|(other, _)| other == name).map(|(_, port)| port.id);
        let teams = config.teams.iter().map(|team| teams::spec(team, port)).collect();
        self.switch.set_teams(teams);
        self.run();
    }

    /// Rounds until nothing moves.
    fn run(&mut self) {
        for _ in 0..10_000 {
            self.workers.iter_mut().for_each(|worker| assert!(worker.step()));
            if !self.workers.iter().any(|worker| worker.moved()) {
                return;
            }
        }
        panic!("frames never come to rest");
    }
}

#[test]
fn a_card_reaches_under_vmlane_what_it_reached_under_esxi_and_nothing_else() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/hosts");
    let folders = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    assert_eq!(folders.len(), 8);
    for folder in folders {
        let case = Case::read(&folder);
        case.check_places(&folder);
        check(&case);
    }
}

fn check(case: &Case) {
    let config = case.config();
    let mut bench = Bench::new();
    let cards = case.places.iter().enumerate().flat_map(|(at, _)| (0..CARDS).map(move |number| (at, number)));
    let cards: Vec<(usize, Port)> = cards
        .map(|(at, number)| {
            let name = vm_name(at, number);
            let vm = config.vms.iter().find(|vm| vm.name == name).unwrap();
            (at, bench.port(port_spec(&config, vm, (0, &vm.nics[0]))))
        })
        .collect();
    let uplinks: Vec<(String, Port)> =
        config.uplinks.iter().map(|uplink| (uplink.name.clone(), bench.port(uplink_spec(uplink)))).collect();
    bench.join(&config, &uplinks);
    let names: BTreeSet<&String> = uplinks.iter().map(|(name, _)| name).collect();
    assert_eq!(names, case.uplinks.values().flatten().collect(), "{}", case.name);
    let vlans = case.vlans();
    let mut pairs = 0;
    for (number, (from, sender)) in cards.iter().enumerate() {
        let place = &case.places[*from];
        for (other, (to, receiver)) in cards.iter().enumerate().filter(|(other, _)| *other != number) {
            let target = &case.places[*to];
            let expected = place.reaches(target);
            for tag in place.tags(&vlans) {
                sender.wire.send(&frame(receiver.mac, sender.mac), Offload::None, tag);
            }
            bench.run();
            let reached = receiver.wire.received().iter().any(|frame| frame.bytes[..6] == receiver.mac.0);
            let what =
                format!("{}: from {} {number} to {} {other}", case.name, place.network, target.network);
            assert_eq!(reached, expected, "{what}");
            pairs += 1;
        }
        leaves(&mut bench, case, (place, sender), &uplinks);
    }
    let entered = uplinks.iter().map(|uplink| enters(&mut bench, case, uplink, &cards)).sum::<usize>();
    assert_eq!(pairs, cards.len() * (cards.len() - 1));
    println!(
        "{}: {} cards, {pairs} pairs, {} uplinks, {entered} frames through them",
        case.name,
        cards.len(),
        uplinks.len()
    );
}

/// What a card sends to all leaves through one of its switch's uplinks, with the tags of its VLANs, and
/// through none of another switch.
fn leaves(bench: &mut Bench, case: &Case, (place, sender): (&Place, &Port), uplinks: &[(String, Port)]) {
    let vlans = case.vlans();
    uplinks.iter().for_each(|(_, port)| drop(port.wire.received()));
    for tag in place.tags(&vlans) {
        sender.wire.send(&frame(Mac([0xff; 6]), sender.mac), Offload::None, tag);
    }
    bench.run();
    let left = uplinks.iter().flat_map(|(name, port)| {
        let frames = port.wire.received();
        frames.into_iter().map(move |frame| (name, frame.tag.map_or(0, |tag| tag.0 & 0xfff)))
    });
    let left: Vec<(&String, u16)> = left.collect();
    let its = case.uplinks.get(&place.switch);
    let carried = place.vlans.iter().flatten().copied();
    let sent = carried.filter(|vlan| *vlan == 0 || vlans.contains(vlan) || !place.is_trunk);
    let expected: Vec<u16> = sent.filter(|_| its.is_some()).collect();
    let mut tags: Vec<u16> = left.iter().map(|(_, tag)| *tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, expected, "{}: from {}: {left:?}", case.name, place.network);
    let ways: BTreeSet<&String> = left.iter().map(|(name, _)| *name).collect();
    assert!(ways.len() <= 1 && ways.iter().all(|way| its.unwrap().contains(way)), "{}: {left:?}", case.name);
}

/// What comes in through an uplink, tagged, reaches the cards of its switch that are in the VLAN, and no
/// others, whichever of a team's links it is. Returns how many frames.
fn enters(bench: &mut Bench, case: &Case, (name, uplink): &(String, Port), cards: &[(usize, Port)]) -> usize {
    let mut count = 0;
    for (at, card) in cards {
        let place = &case.places[*at];
        let is_its = case.uplinks.get(&place.switch).is_some_and(|all| all.contains(name));
        for vlan in case.vlans().into_iter().chain([0]) {
            let tag = (vlan > 0).then_some(Tci(vlan));
            uplink.wire.send(&frame(card.mac, OUTSIDE), Offload::None, tag);
            bench.run();
            let reached: Vec<usize> = cards
                .iter()
                .enumerate()
                .filter(|(_, (_, port))| {
                    port.wire.received().iter().any(|frame| frame.bytes[6..12] == OUTSIDE.0)
                })
                .map(|(at, _)| at)
                .collect();
            let own = cards.iter().position(|(_, other)| other.mac == card.mac);
            let expected: Vec<usize> = own.filter(|_| is_its && place.carries(vlan)).into_iter().collect();
            assert_eq!(reached, expected, "{}: through {name}, VLAN {vlan}, to {}", case.name, place.network);
            count += 1;
        }
    }
    count
}

fn frame(to: Mac, from: Mac) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    frame.extend(TYPE);
    frame.resize(64, 7);
    frame
}
