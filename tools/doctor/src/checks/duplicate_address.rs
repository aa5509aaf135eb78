//! Addresses that both ends have.

use std::net::IpAddr;

use crate::capture::Capture;
use crate::facts::{Facts, Interface};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "duplicate-address", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found: Vec<Finding> = evidence.captures.iter().flat_map(of_capture).collect();
    let Some(far) = &evidence.far else { return found };
    for (here, there) in cards(&evidence.near).flat_map(|here| cards(far).map(move |there| (here, there))) {
        let (one, other) = (&here.name, &there.name);
        if here.mac == there.mac && here.mac != "00:00:00:00:00:00" && !here.mac.is_empty() {
            let what = format!("Both machines have the MAC address {}: {one} here, {other} there.", here.mac);
            let remedy = Remedy::new("give one of them another one (in the VMM's configuration)")
                .lasting("VMware", "in the .vmx file: ethernet0.addressType = \"generated\"")
                .lasting("vmlane", "nic = [ { mac = \"...\" } ], or none: each VM gets its own");
            found.push(report(what, format!("/sys/class/net/{one}/address on both")).remedy(remedy));
        }
        let both = here.addresses.iter().filter(|address| there.addresses.contains(address));
        for address in both.filter(|address| !is_local(address)) {
            let what = format!("Both machines have the address {address}: {one} here, {other} there.");
            let shown = address.to_string();
            let remedy =
                Remedy::new("remove it from one of them").run(&["ip", "address", "del", &shown, "dev", one]);
            found.push(report(what, format!("the addresses of {one} and {other}")).remedy(remedy));
        }
    }
    found
}

/// Each machine has those of its own link.
fn is_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

fn of_capture(capture: &Capture) -> Vec<Finding> {
    let conflicts =
        capture.conflicts.iter().map(|conflict| {
            let [one, other] = &conflict.macs;
            let what = format!("Two machines have the address {}: {one} and {other}.", conflict.address);
            let remedy = Remedy::new("find both by their MAC addresses, and give one another address")
                .run(&["arping", "-D", "-c", "3", "-I", "INTERFACE", &conflict.address.to_string()]);
            let seen =
                format!("{}: they claimed it in turn, {} changes (ARP)", capture.file, conflict.changes);
            report(what, seen).remedy(remedy)
        });
    let same = capture.same_mac.iter().map(|(mac, ends, frames)| {
        let what = format!("Two machines have the MAC address {mac}: {ends}.");
        let remedy = Remedy::new("give one of them another one (in the VMM's configuration)");
        report(what, format!("{}: {frames} frames from it to itself", capture.file)).remedy(remedy)
    });
    conflicts.chain(same).collect()
}

/// Cards; bridges and tunnels of containers have the same addresses everywhere.
fn cards(facts: &Facts) -> impl Iterator<Item = &Interface> {
    facts.interfaces.iter().filter(|interface| interface.is_card())
}

fn report(what: String, seen: String) -> Finding {
    let cost = Cost::estimated(0.9, "connections break at random");
    CHECK.broken(what, cost).evidence(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn copies_are_found() {
        let mut evidence = testing::healthy();
        let mac = testing::card(&mut evidence).mac.clone();
        testing::far(&mut evidence).interfaces[0].mac = mac;
        let both = "10.99.0.1".parse().unwrap();
        testing::card(&mut evidence).addresses.push(both);
        testing::far(&mut evidence).interfaces[0].addresses.push(both);
        assert_eq!(examine(&evidence).len(), 2);
    }
}
