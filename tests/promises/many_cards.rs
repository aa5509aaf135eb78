//! VMs with many cards: a guest with as many as a VM may have, and what each costs the daemon.

use std::fmt::Write as _;
use std::path::Path;

use vmlane_guestsim::attached::AttachedNic;
use vmlane_guestsim::nic::{DriverSpec, NicDriver};
use vmlane_guestsim::virtio_nic::Nic;
use vmlane_lab::LabSpec;
use vmlane_testkit::Daemon;
use vmlane_tests::alone::{daemon, private_memory};
use vmlane_tests::traffic::address;
use vmlane_tests::{Bed, kept, lab, open_many_files, wait_until};

vmlane_tests::tests! {
    guests { a_card_costs_the_daemon_little_memory }
    long { a_guest_with_64_cards_reaches_all_their_networks }
}

/// As many as a VM may have, VMXNET3 and virtio-net in turns.
const CARDS: u32 = 64;
const DEVICES: [&str; 2] = ["vmxnet3", "virtio-net"];
/// So many have no PCI Express port of vmlane's choice.
const FIRST: u32 = 10;

fn a_guest_with_64_cards_reaches_all_their_networks() {
    open_many_files();
    let devices = DEVICES.repeat(CARDS as usize / 2);
    let bed = Bed::up(&LabSpec { cpus: 2, boot_seconds: 900, ..lab("cards", &devices) });
    for guest in ["a", "b"] {
        cards_are_as_configured(&bed, guest);
    }
    let a = bed.guest("a");
    let silent = |card: &u32| a.sh(&format!("ping -q -c 3 -i 0.2 -W 5 {}", address(*card, 2))).is_err();
    let silent: Vec<u32> = (0..CARDS).filter(silent).collect();
    assert!(silent.is_empty(), "networks without an answer: {silent:?}");
    kept(
        "nics",
        &format!(
            "a guest of two processors with {CARDS} cards of both models: all {CARDS} networks are reached"
        ),
    );
    bed.finish();
}

/// Each has its model's driver; the first ones are on the bus in their order, the others in the slots of
/// their numbers. The lab has named them by their addresses.
fn cards_are_as_configured(bed: &Bed, guest: &str) {
    let line = format!(
        "for card in $(seq 0 {}); do path=$(readlink -f /sys/class/net/eth$card/device); \
         case $path in */virtio*) path=${{path%/*}};; esac; \
         echo $(basename $path) $(basename $(readlink /sys/class/net/eth$card/device/driver)) \
         $(cat /sys/bus/pci/slots/$card/address 2>/dev/null); done",
        CARDS - 1
    );
    let shown = bed.guest(guest).sh(&line).unwrap();
    let cards: Vec<Vec<&str>> = shown.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(cards.len(), CARDS as usize, "{shown}");
    for (card, words) in (0..).zip(&cards) {
        let driver = if card % 2 == 0 { "vmxnet3" } else { "virtio_net" };
        assert_eq!(words[1], driver, "{guest}/nic{card}:\n{shown}");
        // A slot has the address of its functions without their number.
        let is_there =
            card < FIRST || words.get(2).is_some_and(|slot| !slot.is_empty() && words[0].starts_with(slot));
        assert!(is_there, "{guest}/nic{card} is not in slot {card}:\n{shown}");
    }
    assert!(cards[..FIRST as usize].is_sorted_by_key(|words| words[0]), "{shown}");
}

/// VMs, and the cards of each.
const VMS: u32 = 40;
const OF_VM: u32 = 10;
/// KiB that one may cost.
const MOST: u64 = 200;

/// A VM's card whose driver is up.
enum Card {
    Vmxnet3 { _registers: AttachedNic, _driver: Box<NicDriver> },
    Virtio { _nic: Box<Nic> },
}

impl Card {
    fn attach(number: u32, socket: &Path) -> Card {
        if number % 2 == 1 {
            let mut nic = Box::new(Nic::new(false));
            nic.attach(socket);
            return Card::Virtio { _nic: nic };
        }
        let registers = AttachedNic::attach(socket, 16 << 20);
        let registers = registers.unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        let mut driver = Box::new(NicDriver::probe(&registers, DriverSpec::linux(7)));
        driver.open(&registers);
        Card::Vmxnet3 { _registers: registers, _driver: driver }
    }
}

fn a_card_costs_the_daemon_little_memory() {
    open_many_files();
    let alone = daemon("");
    alone.start();
    let without = private_memory(alone.pid());
    drop(alone);
    let mut config = String::new();
    for vm in 0..VMS {
        let nics: Vec<String> =
            (0..OF_VM).map(|card| format!("{{ model = \"{}\" }}", DEVICES[card as usize % 2])).collect();
        writeln!(config, "[[vm]]\nname = \"v{vm}\"\nvsock = \"none\"\nnic = [ {} ]", nics.join(", "))
            .unwrap();
    }
    let daemon = daemon(&config);
    daemon.start();
    let socket = |vm: u32, card: u32| daemon.socket(&format!("v{vm}"), &format!("nic{card}.sock"));
    let cards = (0..VMS).flat_map(|vm| (0..OF_VM).map(move |card| (vm, card)));
    let _cards: Vec<Card> = cards.map(|(vm, card)| Card::attach(card, &socket(vm, card))).collect();
    wait_until("all drivers are up", || active(&daemon) == VMS * OF_VM);
    let each = (private_memory(daemon.pid()) - without) / u64::from(VMS * OF_VM);
    assert!(each < MOST, "a card costs {each} KiB, and {MOST} is the most");
    kept(
        "nics",
        &format!("{VMS} VMs with {OF_VM} cards each, drivers up: {each} KiB of the daemon's memory a card"),
    );
}

/// Ports of the switch that have a driver.
fn active(daemon: &Daemon) -> u32 {
    let ports = daemon.json(&["ports"]);
    let ports = ports["switch"].as_array().expect("a list");
    ports.iter().filter(|port| port["active"] == true).count() as u32
}
