//! Makes and removes the test hosts of a lab.

use std::path::Path;

use anyhow::{Context, Result};

use crate::spec::LabSpec;
use crate::supervisor::spawn::ip;
use crate::test_host::{MOST, count, ipv4, ipv6, namespace, tap};

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
