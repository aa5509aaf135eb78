//! The test host of a lab: a network namespace behind the daemon's uplink.

use std::path::Path;

use anyhow::{Context, Result};

use crate::spec::LabSpec;
use crate::supervisor::net::{ip, tag};

/// Its addresses in the network of the first card.
pub const IPV4: &str = "10.77.0.254/24";
pub const IPV6: &str = "fd77::fe/64";

/// The uplink's interface.
pub fn tap(lab: &str) -> String {
    format!("vl{}u", tag(lab))
}

/// The namespace's name, as `ip netns` knows it.
pub fn namespace(lab: &str) -> String {
    format!("vl{}", tag(lab))
}

/// Moves the interface, which the daemon has made, into a namespace of its own.
pub fn prepare(spec: &LabSpec) -> Result<()> {
    let (tap, namespace) = (tap(&spec.name), namespace(&spec.name));
    remove(&spec.name);
    ip(&["netns", "add", &namespace]).context("an uplink needs a network namespace, and so root")?;
    ip(&["link", "set", &tap, "netns", &namespace])?;
    let inside = |words: &[&str]| ip(&[&["-n", namespace.as_str()], words].concat());
    inside(&["address", "add", IPV4, "dev", &tap])?;
    inside(&["-6", "address", "add", IPV6, "dev", &tap, "nodad"])?;
    inside(&["link", "set", "lo", "up"])?;
    inside(&["link", "set", &tap, "up"])
}

/// Removes the namespace, also that of a supervisor that was killed. Its interface ends with the daemon.
pub fn remove(lab: &str) {
    let namespace = namespace(lab);
    if Path::new("/run/netns").join(&namespace).exists() {
        let _ = ip(&["netns", "delete", &namespace]);
    }
}
