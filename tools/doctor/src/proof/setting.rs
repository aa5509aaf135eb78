//! The settings that a proof may change: run-time settings of this machine's network, and nothing else.
//!
//! A [`Setting`] is where, its [`Parts`] are how it is set. All of them are read and written alike, part by
//! part, so that what somebody else changed meanwhile can be distinguished from what a proof has changed. The
//! kernel is asked by ioctl and through /proc: machines without `ip`, `ethtool` and `sysctl` are examined,
//! too.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::sys::{Ethtool, Numbers};

/// Parts of a setting that a record keeps.
pub const MOST_PARTS: usize = 256;
/// Characters of a value.
const LONGEST: usize = 256;
/// IPv6 is switched off on an interface below this MTU, and its addresses are gone (RFC 8200, section 5).
const LEAST_IPV6: u32 = 1280;

/// How a setting is set: each of its parts by name.
pub type Parts = BTreeMap<String, String>;

/// Where a setting is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// Of an interface, with what IPv6 takes for it.
    Mtu(String),
    /// Whether each feature was asked for; what is in effect follows from that.
    Features(String),
    Rings(String),
    Channels(String),
    Coalescing(String),
    /// The queue of each entry of the table by which received frames are spread.
    Spread(String),
    /// A name below net.core, or of TCP.
    Sysctl(String),
    /// The CPUs that an interrupt may go to.
    Affinity(u32),
}

impl Setting {
    /// The one that a change is about.
    pub fn of(change: &Change) -> Setting {
        match change {
            Change::Mtu { interface, .. } => Setting::Mtu(interface.clone()),
            Change::Features { interface, .. } => Setting::Features(interface.clone()),
            Change::Ring { interface, .. } => Setting::Rings(interface.clone()),
            Change::Queues { interface, .. } => Setting::Channels(interface.clone()),
            Change::Moderation { interface, .. } => Setting::Coalescing(interface.clone()),
            Change::Spread { interface, .. } => Setting::Spread(interface.clone()),
            Change::Sysctl { name, .. } => Setting::Sysctl(name.clone()),
            Change::Affinity { interrupt, .. } => Setting::Affinity(*interrupt),
        }
    }

    pub fn interface(&self) -> Option<&str> {
        match self {
            Setting::Mtu(name)
            | Setting::Features(name)
            | Setting::Rings(name)
            | Setting::Channels(name)
            | Setting::Coalescing(name)
            | Setting::Spread(name) => Some(name),
            Setting::Sysctl(_) | Setting::Affinity(_) => None,
        }
    }

    /// What a report calls it.
    pub fn name(&self) -> String {
        match self {
            Setting::Mtu(interface) => format!("MTU of {interface}"),
            Setting::Features(interface) => format!("features of {interface}"),
            Setting::Rings(interface) => format!("rings of {interface}"),
            Setting::Channels(interface) => format!("queues of {interface}"),
            Setting::Coalescing(interface) => format!("interrupt moderation of {interface}"),
            Setting::Spread(interface) => format!("RSS table of {interface}"),
            Setting::Sysctl(name) => name.clone(),
            Setting::Affinity(interrupt) => format!("CPUs of interrupt {interrupt}"),
        }
    }

    /// Whether it may be touched at all. What is read from a file is not believed.
    pub fn check(&self) -> Result<(), String> {
        let known = match self {
            Setting::Sysctl(name) => is_known_sysctl(name),
            Setting::Affinity(interrupt) => *interrupt < 1 << 20,
            other => other.interface().is_some_and(is_interface),
        };
        if known { Ok(()) } else { Err(format!("{self:?} is no setting that a proof changes")) }
    }

    /// How it is set now.
    pub fn read(&self) -> io::Result<Parts> {
        let numbers = |interface: &str, which| {
            let list = Ethtool::open()?.numbers(interface, which)?;
            Ok(list.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect())
        };
        match self {
            Setting::Mtu(interface) => {
                let mut parts = one("mtu", Ethtool::open()?.mtu(interface)?.to_string());
                parts.extend(file(&ipv6_mtu(interface)).ok().map(|value| ("ipv6".to_owned(), value)));
                Ok(parts)
            }
            Setting::Features(interface) => {
                let list = Ethtool::open()?.features(interface)?.into_iter();
                let list = list.filter(|feature| feature.changeable);
                Ok(list.map(|feature| (feature.name, on_or_off(feature.wanted).to_owned())).collect())
            }
            Setting::Rings(interface) => numbers(interface, Numbers::Rings),
            Setting::Channels(interface) => numbers(interface, Numbers::Channels),
            Setting::Coalescing(interface) => numbers(interface, Numbers::Coalescing),
            Setting::Spread(interface) => {
                let table = Ethtool::open()?.indirection(interface)?;
                if table.len() > MOST_PARTS {
                    return Err(io::Error::other("its table has more entries than a record keeps"));
                }
                Ok(table.iter().enumerate().map(|(at, queue)| (at.to_string(), queue.to_string())).collect())
            }
            Setting::Sysctl(name) => Ok(one("value", file(&sysctl(name))?)),
            Setting::Affinity(interrupt) => Ok(one("cpus", file(&affinity(*interrupt))?)),
        }
    }

    /// Sets these parts and leaves the others as they are.
    pub fn write(&self, parts: &Parts) -> io::Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let part = |name: &str| parts.get(name).map(String::as_str);
        match self {
            Setting::Mtu(interface) => {
                if let Some(mtu) = part("mtu") {
                    Ethtool::open()?.set_mtu(interface, number(mtu)?)?;
                }
                // The kernel has just made it that of the interface.
                match part("ipv6").filter(|mtu| file(&ipv6_mtu(interface)).is_ok_and(|now| now != *mtu)) {
                    Some(mtu) => fs::write(ipv6_mtu(interface), mtu),
                    None => Ok(()),
                }
            }
            Setting::Features(interface) => {
                let ethtool = Ethtool::open()?;
                let mut features = ethtool.features(interface)?;
                features.retain(|feature| feature.changeable && part(&feature.name).is_some());
                features.iter_mut().for_each(|feature| feature.wanted = part(&feature.name) == Some("on"));
                ethtool.set_wanted(interface, &features)
            }
            Setting::Rings(interface) => write_numbers(interface, Numbers::Rings, parts),
            Setting::Channels(interface) => write_numbers(interface, Numbers::Channels, parts),
            Setting::Coalescing(interface) => write_numbers(interface, Numbers::Coalescing, parts),
            Setting::Spread(interface) => {
                let ethtool = Ethtool::open()?;
                let mut table = ethtool.indirection(interface)?;
                for (at, entry) in table.iter_mut().enumerate() {
                    if let Some(queue) = part(&at.to_string()) {
                        *entry = number(queue)?;
                    }
                }
                ethtool.set_indirection(interface, &table)
            }
            Setting::Sysctl(name) => fs::write(sysctl(name), part("value").unwrap_or_default()),
            Setting::Affinity(interrupt) => fs::write(affinity(*interrupt), part("cpus").unwrap_or_default()),
        }
    }

    /// What a change makes of it: the parts that it sets.
    pub fn target(&self, change: &Change, now: &Parts) -> Result<Parts, String> {
        Ok(match change {
            Change::Mtu { mtu, .. } => {
                if *mtu < LEAST_IPV6 && now.contains_key("ipv6") {
                    return Err(format!(
                        "an MTU of {mtu} takes its IPv6 addresses away from the interface: try it by hand"
                    ));
                }
                one("mtu", mtu.to_string())
            }
            Change::Features { features, .. } => {
                let wanted = |name: &String| {
                    let (_, on) = features.iter().find(|(short, _)| Change::is_feature(short, name))?;
                    Some((name.clone(), on_or_off(*on).to_owned()))
                };
                now.keys().filter_map(wanted).collect()
            }
            Change::Ring { ring, descriptors, .. } => one(ring.name(), descriptors.to_string()),
            Change::Queues { combined, .. } => one("combined", combined.to_string()),
            Change::Spread { queues, .. } => {
                let queue = |at: &String| at.parse().unwrap_or(0_u32) % (*queues).max(1);
                now.keys().map(|at| (at.clone(), queue(at).to_string())).collect()
            }
            Change::Moderation { rx_us, .. } => one("rx-usecs", rx_us.to_string()),
            Change::Sysctl { value, .. } => one("value", value.clone()),
            Change::Affinity { cpus, .. } => one("cpus", cpus.clone()),
        })
    }
}

/// Whether names and values are such as this module writes.
pub fn check_parts(parts: &Parts) -> Result<(), String> {
    let plain = |text: &str| text.len() <= LONGEST && text.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    match parts.iter().find(|(name, value)| !plain(name) || !plain(value)) {
        Some((name, value)) => Err(format!("{name:?} = {value:?} is no value of a setting")),
        None => Ok(()),
    }
}

fn one(name: &str, value: String) -> Parts {
    [(name.to_owned(), value)].into()
}

pub fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn number(text: &str) -> io::Result<u32> {
    text.parse().map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn write_numbers(interface: &str, which: Numbers, parts: &Parts) -> io::Result<()> {
    let values = parts.iter().map(|(name, value)| Ok((name.as_str(), number(value)?)));
    Ethtool::open()?.set_numbers(interface, which, &values.collect::<io::Result<Vec<_>>>()?)
}

/// The words of a small file.
fn file(path: &str) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn sysctl(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

fn ipv6_mtu(interface: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{interface}/mtu")
}

fn affinity(interrupt: u32) -> String {
    format!("/proc/irq/{interrupt}/smp_affinity_list")
}

/// The stack's own: a name that leads nowhere else.
fn is_known_sysctl(name: &str) -> bool {
    ["net.core.", "net.ipv4.tcp_"].iter().any(|prefix| {
        name.strip_prefix(prefix).is_some_and(|rest| {
            !rest.is_empty()
                && rest.len() < 64
                && rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
    })
}

fn is_interface(name: &str) -> bool {
    crate::question::is_interface(name) && name.chars().all(|c| c.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_the_network_are_touched() {
        for bad in [
            Setting::Sysctl("kernel.core_pattern".to_owned()),
            Setting::Sysctl("net.core.../../kernel/core_pattern".to_owned()),
            Setting::Sysctl("net.ipv4.tcp_".to_owned()),
            Setting::Sysctl("net.ipv4.ip_forward".to_owned()),
            Setting::Mtu("../lo".to_owned()),
            Setting::Mtu("..".to_owned()),
            Setting::Features("a-name-that-is-too-long".to_owned()),
            Setting::Rings("eth 0".to_owned()),
            Setting::Affinity(u32::MAX),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        for good in [
            Setting::Sysctl("net.ipv4.tcp_rmem".to_owned()),
            Setting::Sysctl("net.core.rmem_max".to_owned()),
            Setting::Channels("eth0.10".to_owned()),
            Setting::Affinity(30),
        ] {
            assert!(good.check().is_ok(), "{good:?}");
        }
        assert!(check_parts(&one("value", "4096 16384 4194304".to_owned())).is_ok());
        assert!(check_parts(&one("value", "1\n2".to_owned())).is_err());
        assert!(check_parts(&one("value", "1".repeat(300))).is_err());
    }

    #[test]
    fn a_change_sets_what_it_names_and_nothing_else() {
        let now: Parts = [
            ("rx-gro", "off"),
            ("tx-tcp-segmentation", "off"),
            ("tx-tcp6-segmentation", "off"),
            ("tx-checksum-ipv4", "on"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let change =
            Change::Features { interface: "eth0".to_owned(), features: [("tso".to_owned(), true)].into() };
        let setting = Setting::of(&change);
        let target = setting.target(&change, &now).unwrap();
        assert_eq!(target.keys().collect::<Vec<_>>(), ["tx-tcp-segmentation", "tx-tcp6-segmentation"]);
        assert!(target.values().all(|value| value == "on"));
        let small = Change::Mtu { interface: "eth0".to_owned(), mtu: 576 };
        let with_ipv6 =
            Parts::from([("mtu".to_owned(), "1500".to_owned()), ("ipv6".to_owned(), "1500".to_owned())]);
        assert!(Setting::of(&small).target(&small, &with_ipv6).unwrap_err().contains("IPv6"));
        assert!(Setting::of(&small).target(&small, &one("mtu", "1500".to_owned())).is_ok());
        let table: Parts = (0..12).map(|at: u32| (at.to_string(), "0".to_owned())).collect();
        let spread = Change::Spread { interface: "eth0".to_owned(), queues: 2 };
        let target = Setting::of(&spread).target(&spread, &table).unwrap();
        assert_eq!((target["0"].as_str(), target["9"].as_str(), target["10"].as_str()), ("0", "1", "0"));
    }

    #[test]
    fn the_loopback_is_read() {
        let lo = || "lo".to_owned();
        assert!(Setting::Mtu(lo()).read().unwrap().contains_key("mtu"));
        assert_eq!(Setting::Features(lo()).read().unwrap()["tx-tcp-segmentation"], "on");
        let sack = Setting::Sysctl("net.ipv4.tcp_sack".to_owned()).read().unwrap();
        assert!(sack["value"].parse::<u32>().is_ok(), "{sack:?}");
        assert!(Setting::Rings(lo()).read().is_err());
        assert!(Setting::Mtu("no-such-if".to_owned()).read().is_err());
    }
}
