//! Cards of guests: their addresses, what they carry between guests, and what the switch counts at them.

use serde_json::Value;
use vmlane_lab::Guest;

use crate::{Bed, TIMEOUT};

/// The IPv4 address of guest number `guest` (from 1) on card `card` (from 0).
pub fn address(card: u32, guest: u32) -> String {
    format!("10.{}.0.{guest}", 77 + card)
}

/// A line of shell that sets card `card` (from 0) of guest number `guest` (from 1) up with its addresses:
/// Linux forgets them with the card's driver, and IPv6's when the card is down. Under User Mode Linux a
/// driver begins with the largest MTU.
pub fn card_up(card: u32, guest: u32) -> String {
    let (net, name) = (77 + card, format!("eth{card}"));
    format!(
        "ip addr replace 10.{net}.0.{guest}/24 dev {name} && ip addr replace fd{net}::{guest}/64 dev {name} nodad && \
         ip link set {name} mtu 1500 up"
    )
}

/// A line of shell that loads the driver of a guest's first `cards` cards anew: all their settings are then
/// as at the start.
pub fn reload_cards(module: &str, cards: u32, guest: u32) -> String {
    let there = format!("until [ -e /sys/class/net/eth{} ]; do sleep 0.05; done", cards - 1);
    let up: Vec<String> = (0..cards).map(|card| card_up(card, guest)).collect();
    format!("rmmod {module} && modprobe {module} && {there} && {}", up.join(" && "))
}

/// The same for a guest's only card, a VMXNET3.
pub fn reload_card(guest: u32) -> String {
    reload_cards("vmxnet3", 1, guest)
}

/// A line of shell in guests a and b.
pub fn both(bed: &Bed, line: &str) {
    ["a", "b"].iter().for_each(|name| drop(bed.guest(name).sh(line).unwrap()));
}

/// What the switch has counted at card `card` of a guest.
pub fn port(bed: &Bed, guest: &str, card: usize, counter: &str) -> u64 {
    let stats = bed.stats();
    let vms = stats["vms"].as_array().expect("a list of VMs");
    let vm = vms.iter().find(|vm| vm["name"] == guest).unwrap_or_else(|| panic!("no VM {guest}"));
    vm["nics"][card]["port"][counter].as_u64().unwrap_or_else(|| panic!("no counter {counter} in {vm}"))
}

/// Whether an address answers a guest within a second.
pub fn pings(bed: &Bed, from: &str, address: &str) -> bool {
    bed.guest(from).sh(&format!("ping -q -c 1 -W 1 {address}")).is_ok()
}

/// Packets as long as the MTU pass from a to b on this card.
pub fn whole_pings(bed: &Bed, card: u32, mtu: u32) {
    let (ipv4, ipv6) = (address(card, 2), format!("fd{}::2", 77 + card));
    let ping = "ping -q -c 3 -i 0.2 -M do -s";
    let line = format!("{ping} {} {ipv4} && {ping} {} {ipv6}", mtu - 28, mtu - 48);
    bed.guest("a").sh(&line).unwrap();
}

/// Carries so many random mebibytes over TCP to a guest's address, and compares.
pub fn file(from: &Guest, to: &Guest, address: &str, mib: u32) {
    let listen = "exec socat -d -d -u TCP-LISTEN:5001,reuseaddr CREATE:/dev/shm/out";
    let listening = to.spawn(["sh", "-c", listen]).unwrap();
    from.sh(&format!("head -c {mib}M /dev/urandom >/dev/shm/in")).unwrap();
    listening.wait_for("listening on", TIMEOUT).unwrap();
    let sum = |guest: &Guest, file: &str, first: &str| {
        guest.sh(&format!("{first} sha256sum </dev/shm/{file} && rm /dev/shm/{file}")).unwrap()
    };
    let sent =
        sum(from, "in", &format!("socat -u OPEN:/dev/shm/in TCP:{address}:5001,retry=5,interval=1 &&"));
    assert!(listening.wait().unwrap().success());
    assert_eq!(sent, sum(to, "out", ""), "{mib} MiB, {} to {}", from.name(), to.name());
}

/// A file each way between a and b on this card.
pub fn files(bed: &Bed, card: u32, mib: u32) {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    file(&a, &b, &address(card, 2), mib);
    file(&b, &a, &address(card, 1), mib);
}

/// What an iperf3 that gives JSON has received, in Gbit/s.
pub fn gigabits(json: &str) -> f64 {
    let json: Value = serde_json::from_str(json).unwrap();
    json["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e9
}

/// Gbit/s from one guest to an address and a port of another one.
pub fn iperf(bed: &Bed, [from, to]: [&str; 2], address: &str, port: u32, options: &str) -> f64 {
    let server =
        bed.guest(to).spawn(["iperf3", "-s", "-1", "--forceflush", "-p", &port.to_string()]).unwrap();
    server.wait_for("listening", TIMEOUT).unwrap();
    let text = bed.guest(from).sh(&format!("iperf3 -J -c {address} -p {port} {options}")).unwrap();
    server.wait().unwrap();
    gigabits(&text)
}

/// b forwards between a and c on this card while `work` runs.
pub fn routed<T>(bed: &Bed, card: u32, work: impl FnOnce() -> T) -> T {
    let routes = |verb: &str| {
        for (guest, to) in [("a", 3), ("c", 1)] {
            let line = format!("ip route {verb} {}/32 via {}", address(card, to), address(card, 2));
            bed.guest(guest).sh(&line).unwrap();
        }
    };
    let forward = |on: bool| {
        let (on, redirects) = (u32::from(on), u32::from(!on));
        let line = format!(
            "cd /proc/sys/net/ipv4; echo {on} >ip_forward; \
             for place in all eth{card}; do echo {redirects} >conf/$place/send_redirects; done"
        );
        bed.guest("b").sh(&line).unwrap();
    };
    forward(true);
    routes("add");
    let done = work();
    routes("del");
    forward(false);
    done
}
