//! The machine itself: kernel, processors, and what it runs in.

use std::path::{Path, PathBuf};

use raw_cpuid::{CpuId, Hypervisor};
use serde::{Deserialize, Serialize};

use super::files;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub host: String,
    pub kernel: String,
    pub cpus: usize,
    pub cpu_model: String,
    /// By CPUID: "KVM", "VMware", "emulation (QEMU TCG)" ...; none on bare metal.
    pub hypervisor: Option<String>,
    /// The processor is emulated in software.
    pub is_emulated: bool,
    /// cpufreq's, where there is one.
    pub governor: Option<String>,
    pub clock_source: Option<String>,
    /// The clocks that it has, separated by spaces.
    pub clocks: String,
    /// CPUs that are switched off, as a list.
    pub offline: Option<String>,
    /// Bytes.
    pub memory: u64,
    /// What configures its interfaces, as remedies name it: `NetworkManager`, `systemd-networkd`, `ifupdown`.
    pub network: Vec<String>,
}

impl Machine {
    /// Whether its hypervisor is VMware's.
    pub fn is_on_vmware(&self) -> bool {
        self.hypervisor.as_deref() == Some("VMware")
    }

    pub fn read() -> Machine {
        let info = rustix::system::uname();
        let (hypervisor, is_emulated) = hypervisor();
        let cpuinfo = files::text("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let memory = files::text("/proc/meminfo").unwrap_or_default();
        let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = memory.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Machine {
            host: info.nodename().to_string_lossy().into_owned(),
            kernel: info.release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: model.map(|(_, model)| model.to_owned()).unwrap_or_default(),
            is_emulated: is_emulated || is_user_mode_linux(&cpuinfo),
            hypervisor,
            governor: files::line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clock_source: files::line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            clocks: files::line("/sys/devices/system/clocksource/clocksource0/available_clocksource")
                .unwrap_or_default(),
            offline: files::line("/sys/devices/system/cpu/offline"),
            memory: kib.unwrap_or(0).saturating_mul(1024),
            network: network(Path::new("/")),
        }
    }
}

/// By what they leave at `root` while they run, or by what they are to do.
fn network(root: &Path) -> Vec<String> {
    let has = |path: &str| root.join(path).exists();
    let found = [
        ("NetworkManager", has("run/NetworkManager")),
        // The directory above is there without it, too.
        ("systemd-networkd", has("run/systemd/netif/state")),
        ("ifupdown", configures(root.join("etc/network/interfaces"))),
    ];
    found.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name.to_owned()).collect()
}

/// A file of ifupdown, or one beside it, has another interface than the loopback.
fn configures(interfaces: PathBuf) -> bool {
    let beside = interfaces.with_extension("d");
    let others = files::names(&beside, 64).into_iter().map(|name| beside.join(name));
    let mut texts = std::iter::once(interfaces).chain(others).filter_map(files::text);
    texts.any(|text| {
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("iface "));
        names.filter_map(|rest| rest.split_whitespace().next()).any(|name| name != "lo")
    })
}

/// The name of what runs this machine, and whether that emulates its processor.
fn hypervisor() -> (Option<String>, bool) {
    let Some(info) = CpuId::new().get_hypervisor_info() else { return (None, false) };
    let kind = info.identify();
    let name = match kind {
        Hypervisor::KVM => "KVM".to_owned(),
        Hypervisor::VMware => "VMware".to_owned(),
        Hypervisor::HyperV => "Hyper-V".to_owned(),
        Hypervisor::Xen => "Xen".to_owned(),
        Hypervisor::QEMU => "emulation (QEMU TCG)".to_owned(),
        ref other => format!("{other:?}"),
    };
    (Some(name), matches!(kind, Hypervisor::QEMU))
}

fn is_user_mode_linux(cpuinfo: &str) -> bool {
    cpuinfo.lines().any(|line| line.starts_with("vendor_id") && line.contains("User Mode Linux"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_configures_the_network_is_found_by_its_files() {
        type File = (&'static str, &'static str);
        let cases: [(&[File], &[&str]); 6] = [
            (&[], &[]),
            (&[("run/NetworkManager/devices/2", "")], &["NetworkManager"]),
            (&[("run/systemd/netif/links/2", "")], &[]),
            (&[("run/systemd/netif/state", "")], &["systemd-networkd"]),
            (&[("etc/network/interfaces", "auto lo\niface lo inet loopback\n")], &[]),
            (
                &[
                    ("run/NetworkManager/x", ""),
                    ("etc/network/interfaces.d/eth0", "  iface eth0 inet dhcp\n"),
                ],
                &["NetworkManager", "ifupdown"],
            ),
        ];
        for (paths, expected) in cases {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in paths {
                testing::write(root.path(), path, text);
            }
            assert_eq!(network(root.path()), expected, "{paths:?}");
        }
    }
}
