//! The test hosts of a lab, network namespaces behind the daemon's uplinks: their names and addresses.
//!
//! One uplink leads to one host. Several are shared out between two, as in the papers: the first half of them
//! to the first host. Each uplink is a network of its own, with an address of its host in it.

/// Test hosts at the most.
pub(crate) const MOST: u32 = 2;

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

/// Interface names hold 15 characters, so labs are distinguished by a digest.
pub(crate) fn tag(lab: &str) -> String {
    let hash = lab.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("{:06x}", hash & 0xff_ffff)
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
