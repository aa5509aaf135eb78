//! The machine itself: kernel, processors, and what it runs in.

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
    /// Bytes.
    pub memory: u64,
}

impl Machine {
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
            memory: kib.unwrap_or(0).saturating_mul(1024),
        }
    }
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
