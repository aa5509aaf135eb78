//! How a finding is mended: commands for now, as argument vectors, and the same for good, as text for each
//! system that configures networks.

use serde::Serialize;

use crate::change::Change;
use crate::evidence::PathEnd;
use crate::facts::Machine;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    pub what: String,
    /// Until the next boot. Arguments, never a line for a shell.
    pub temporary: Vec<Vec<String>>,
    /// For good.
    pub persistent: Vec<Persistent>,
    /// The same as `temporary`, for a proof; none if it is more than settings.
    pub changes: Vec<Change>,
    /// The machine that it is for, if that is not the finding's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<PathEnd>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Persistent {
    pub system: &'static str,
    pub text: String,
}

impl Persistent {
    /// Whether one of these machines can use it. They run Linux, as all that report facts do; if nothing is
    /// known of them, all that Linux machines may need is for them.
    pub fn is_for(&self, machines: &[&Machine]) -> bool {
        let any =
            |fits: &dyn Fn(&Machine) -> bool| machines.is_empty() || machines.iter().any(|one| fits(one));
        match self.system {
            "Windows" => false,
            "NetworkManager" | "systemd-networkd" | "ifupdown" => any(&|machine| {
                machine.network.is_empty() || machine.network.iter().any(|it| it == self.system)
            }),
            "VMware" => any(&Machine::is_on_vmware),
            "QEMU" | "libvirt" | "vmlane" => any(&|machine| !machine.is_on_vmware()),
            _ => true,
        }
    }
}

impl Remedy {
    pub fn new(what: impl Into<String>) -> Remedy {
        Remedy {
            what: what.into(),
            temporary: Vec::new(),
            persistent: Vec::new(),
            changes: Vec::new(),
            end: None,
        }
    }

    /// With a change of a setting, and its command.
    pub fn change(mut self, change: Change) -> Remedy {
        self.temporary.push(change.command());
        self.changes.push(change);
        self
    }

    pub fn on(mut self, end: PathEnd) -> Remedy {
        self.end = Some(end);
        self
    }

    pub fn run(mut self, words: &[&str]) -> Remedy {
        self.temporary.push(words.iter().map(|word| (*word).to_owned()).collect());
        self
    }

    /// The same, of words that have no space in them.
    pub fn command(self, line: &str) -> Remedy {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }

    pub fn lasting(mut self, system: &'static str, text: impl Into<String>) -> Remedy {
        self.persistent.push(Persistent { system, text: text.into() });
        self
    }

    pub fn sysctl(name: &str, value: &str) -> Remedy {
        let remedy = Remedy::new(format!("set {name}"))
            .change(Change::Sysctl { name: name.to_owned(), value: value.to_owned() })
            .lasting("sysctl.d", format!("/etc/sysctl.d/90-network.conf: {name} = {value}"));
        match name {
            "net.ipv4.tcp_rmem" | "net.ipv4.tcp_window_scaling" | "net.ipv4.tcp_moderate_rcvbuf" => {
                remedy.lasting("Windows", "netsh interface tcp set global autotuninglevel=normal")
            }
            _ => remedy,
        }
    }

    pub fn mtu(interface: &str, mtu: u32) -> Remedy {
        Remedy::new(format!("set the MTU of {interface} to {mtu}"))
            .change(Change::Mtu { interface: interface.to_owned(), mtu })
            .lasting(
                "NetworkManager",
                format!("nmcli connection modify CONNECTION 802-3-ethernet.mtu {mtu}; nmcli connection up CONNECTION"),
            )
            .lasting("systemd-networkd", format!("in the .link or .network file of {interface}: [Link] MTUBytes={mtu}"))
            .lasting("ifupdown", format!("/etc/network/interfaces, below iface {interface}: mtu {mtu}"))
            .lasting(
                "Windows",
                format!(
                    "netsh interface ipv4 set subinterface \"{interface}\" mtu={mtu} store=persistent; for more than 1500 first \
                     PowerShell: Set-NetAdapterAdvancedProperty -Name \"{interface}\" -RegistryKeyword *JumboPacket -RegistryValue {}",
                    mtu.max(1500) + 14
                ),
            )
    }

    /// `networkd` is the key of a .link file; NetworkManager's follows from ethtool's name of the feature.
    pub fn offload(interface: &str, feature: &str, on: bool, networkd: &str, windows: &str) -> Remedy {
        let value = if on { "on" } else { "off" };
        let yes = if on { "yes" } else { "no" };
        let verb = if on { "Enable" } else { "Disable" };
        Remedy::new(format!("switch {feature} of {interface} {value}"))
            .change(Change::feature(interface, feature, on))
            .lasting(
                "NetworkManager",
                format!("nmcli connection modify CONNECTION ethtool.feature-{feature} {value}; nmcli connection up CONNECTION"),
            )
            .lasting("systemd-networkd", format!("in a .link file that matches {interface}: [Link] {networkd}={yes}"))
            .lasting(
                "ifupdown",
                format!("/etc/network/interfaces, below iface {interface}: post-up ethtool -K {interface} {feature} {value}"),
            )
            .lasting("Windows", format!("PowerShell: {verb}-NetAdapter{windows} -Name \"{interface}\""))
    }

    /// A change that systems make when the interface comes up.
    pub fn ethtool(what: impl Into<String>, change: Change) -> Remedy {
        let line = line(&change.command());
        Remedy::new(what).change(change).when_up(&line)
    }

    /// With a command that each system of Linux runs when the interface comes up.
    pub fn when_up(self, line: &str) -> Remedy {
        self.lasting(
            "NetworkManager",
            format!("an executable file in /etc/NetworkManager/dispatcher.d: {line}"),
        )
        .lasting(
            "systemd-networkd",
            format!(
                "a unit that is WantedBy= the interface's .device: [Service] Type=oneshot ExecStart={line}"
            ),
        )
        .lasting("ifupdown", format!("/etc/network/interfaces, below the interface's iface: post-up {line}"))
    }
}

/// A command as a reader types it.
pub fn line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c));
        if plain && !word.is_empty() { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted() {
        let remedy = Remedy::sysctl("net.ipv4.tcp_rmem", "4096 131072 6291456");
        assert_eq!(line(&remedy.temporary[0]), "sysctl -w 'net.ipv4.tcp_rmem=4096 131072 6291456'");
        let hostile = Remedy::mtu("x; rm -rf $HOME'", 1500);
        assert_eq!(line(&hostile.temporary[0]), "ip link set dev 'x; rm -rf $HOME'\\''' mtu 1500");
    }
}
