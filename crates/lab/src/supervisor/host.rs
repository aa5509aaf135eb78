//! The test hosts of a lab: network namespaces behind the daemon's uplinks.
//!
//! One uplink leads to one host. Several are shared out between two, as in the papers: the first half of them to the
//! first host. Each uplink is a network of its own, with an address of its host in it.

use std::path::Path;

use anyhow::{Context, Result};

use crate::spec::LabSpec;
use crate::supervisor::net::{ip, tag};

/// Test hosts at the most.
const MOST: u32 = 2;

/// The address of a test host in network `net`.
pub fn ipv4(net: u32) -> String {
    format!("10.{}.0.254/24", 77 + net)
}

/// The same, IPv6.
pub fn ipv6(net: u32) -> String {
    format!("fd{}::fe/64", 77 + net)
}

/// The interface of uplink number `uplink`.
pub fn tap(lab: &str, uplink: u32) -> String {
    let number = if uplink == 0 { String::new() } else { uplink.to_string() };
    format!("vl{}u{number}", tag(lab))
}

/// The namespace of a test host, as `ip netns` knows it.
pub fn namespace(lab: &str, host: u32) -> String {
    let second = if host == 0 { "" } else { "h2" };
    format!("vl{}{second}", tag(lab))
}

/// What `lab exec` calls a test host.
pub fn name(host: u32) -> &'static str {
    if host == 0 { "host" } else { "host2" }
}

/// How many test hosts a lab with so many uplinks has.
pub fn count(uplinks: u32) -> u32 {
    uplinks.min(MOST)
}

/// The host behind an uplink.
pub fn of_uplink(uplink: u32, uplinks: u32) -> u32 {
    if uplinks < 2 { 0 } else { uplink * count(uplinks) / uplinks }
}

/// The uplinks of a host.
pub fn uplinks_of(host: u32, uplinks: u32) -> Vec<u32> {
    (0..uplinks).filter(|&uplink| of_uplink(uplink, uplinks) == host).collect()
}

/// The bridge that joins QEMU's own cards of a network to the test host.
fn bridge(net: u32) -> String {
    format!("net{net}")
}

/// Moves the interfaces, which the daemon has made, into the namespaces of their hosts.
pub fn prepare(spec: &LabSpec) -> Result<()> {
    remove(&spec.name);
    for host in 0..count(spec.uplinks) {
        let namespace = namespace(&spec.name, host);
        ip(&["netns", "add", &namespace]).context("an uplink needs a network namespace, and so root")?;
        let inside = |words: &[&str]| ip(&[&["-n", namespace.as_str()], words].concat());
        inside(&["link", "set", "lo", "up"])?;
        let bridges = spec.host_bridges();
        for net in spec.host_networks(host) {
            let interface = if bridges.contains(&net) {
                inside(&["link", "add", &bridge(net), "type", "bridge"])?;
                bridge(net)
            } else {
                let tap = tap(&spec.name, net);
                ip(&["link", "set", &tap, "netns", &namespace])?;
                tap
            };
            inside(&["address", "add", &ipv4(net), "dev", &interface])?;
            inside(&["-6", "address", "add", &ipv6(net), "dev", &interface, "nodad"])?;
            inside(&["link", "set", &interface, "up"])?;
        }
    }
    Ok(())
}

/// Puts a TAP interface, which a QEMU has made, on the bridge of its network at the test host.
pub fn join(lab: &str, net: u32, tap: &str) -> Result<()> {
    let namespace = namespace(lab, 0);
    ip(&["link", "set", tap, "netns", &namespace])?;
    ip(&["-n", &namespace, "link", "set", tap, "master", &bridge(net), "up"])
}

/// Removes the namespaces, also those of a supervisor that was killed. Their interfaces end with the daemon.
pub fn remove(lab: &str) {
    for host in 0..MOST {
        let namespace = namespace(lab, host);
        if Path::new("/run/netns").join(&namespace).exists() {
            let _ = ip(&["netns", "delete", &namespace]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_are_shared_out_between_two_hosts() {
        let hosts = |uplinks| (0..uplinks).map(|uplink| of_uplink(uplink, uplinks)).collect::<Vec<_>>();
        assert_eq!(hosts(1), [0]);
        assert_eq!(hosts(2), [0, 1]);
        assert_eq!(hosts(4), [0, 0, 1, 1]);
        for uplinks in 1..=4 {
            let shared: Vec<u32> = (0..count(uplinks)).flat_map(|host| uplinks_of(host, uplinks)).collect();
            assert_eq!(shared, (0..uplinks).collect::<Vec<_>>());
        }
    }
}
