//! A change of one run-time setting, typed: what a remedy shows as a command, and what a proof does without
//! one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Mtu {
        interface: String,
        mtu: u32,
    },
    /// By ethtool's short names, such as tso, or the kernel's.
    Features {
        interface: String,
        features: BTreeMap<String, bool>,
    },
    Ring {
        interface: String,
        ring: RingSide,
        descriptors: u32,
    },
    Queues {
        interface: String,
        combined: u32,
    },
    /// All queues in turn in the table by which received frames are spread, as drivers do by default.
    Spread {
        interface: String,
        queues: u32,
    },
    /// How long an interrupt for received frames may wait.
    Moderation {
        interface: String,
        rx_us: u32,
    },
    Sysctl {
        name: String,
        value: String,
    },
    Affinity {
        interrupt: u32,
        cpus: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingSide {
    Rx,
    Tx,
}

impl RingSide {
    pub fn name(self) -> &'static str {
        match self {
            RingSide::Rx => "rx",
            RingSide::Tx => "tx",
        }
    }
}

impl Change {
    pub fn feature(interface: &str, feature: &str, on: bool) -> Change {
        Change::Features { interface: interface.to_owned(), features: [(feature.to_owned(), on)].into() }
    }

    /// The command that does the same.
    pub fn command(&self) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match self {
            Change::Mtu { interface, mtu } => {
                words(&["ip", "link", "set", "dev", interface, "mtu", &mtu.to_string()])
            }
            Change::Features { interface, features } => {
                let mut command: Vec<String> = words(&["ethtool", "-K", interface]);
                for (name, on) in features {
                    command.extend([name.clone(), if *on { "on" } else { "off" }.to_owned()]);
                }
                command
            }
            Change::Ring { interface, ring, descriptors } => {
                words(&["ethtool", "-G", interface, ring.name(), &descriptors.to_string()])
            }
            Change::Queues { interface, combined } => {
                words(&["ethtool", "-L", interface, "combined", &combined.to_string()])
            }
            Change::Spread { interface, queues } => {
                words(&["ethtool", "-X", interface, "equal", &queues.to_string()])
            }
            Change::Moderation { interface, rx_us } => {
                words(&["ethtool", "-C", interface, "rx-usecs", &rx_us.to_string()])
            }
            Change::Sysctl { name, value } => words(&["sysctl", "-w", &format!("{name}={value}")]),
            Change::Affinity { interrupt, cpus } => {
                words(&["sh", "-c", &format!("echo {cpus} > /proc/irq/{interrupt}/smp_affinity_list")])
            }
        }
    }

    /// Whether both can be made of the same setting.
    pub fn joins(&self, other: &Change) -> bool {
        match (self, other) {
            (Change::Features { features: one, .. }, Change::Features { features: two, .. }) => {
                one.keys().all(|name| !two.contains_key(name))
            }
            (Change::Ring { ring: one, .. }, Change::Ring { ring: two, .. }) => one != two,
            _ => false,
        }
    }

    /// Whether the kernel's feature of that name belongs to ethtool's short one.
    pub fn is_feature(short: &str, name: &str) -> bool {
        match short {
            "tso" => name.starts_with("tx-tcp") && name.ends_with("-segmentation"),
            "gso" => name == "tx-generic-segmentation",
            "gro" => name == "rx-gro",
            "lro" => name == "rx-lro",
            "sg" => name == "tx-scatter-gather",
            "tx" => name.starts_with("tx-checksum-"),
            "rx" => name == "rx-checksum",
            other => name == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_that_a_reader_would_type() {
        let eth0 = || "eth0".to_owned();
        for (change, line) in [
            (Change::Mtu { interface: eth0(), mtu: 9000 }, "ip link set dev eth0 mtu 9000"),
            (Change::feature("eth0", "tso", true), "ethtool -K eth0 tso on"),
            (
                Change::Ring { interface: eth0(), ring: RingSide::Tx, descriptors: 512 },
                "ethtool -G eth0 tx 512",
            ),
            (Change::Queues { interface: eth0(), combined: 2 }, "ethtool -L eth0 combined 2"),
            (Change::Spread { interface: eth0(), queues: 2 }, "ethtool -X eth0 equal 2"),
            (Change::Moderation { interface: eth0(), rx_us: 50 }, "ethtool -C eth0 rx-usecs 50"),
        ] {
            assert_eq!(change.command().join(" "), line);
        }
        assert!(
            Change::is_feature("tso", "tx-tcp-ecn-segmentation") && !Change::is_feature("tso", "tx-tcp_x")
        );
        assert!(
            Change::is_feature("tx", "tx-checksum-ip-generic")
                && Change::is_feature("rx-gro-hw", "rx-gro-hw")
        );
    }
}
