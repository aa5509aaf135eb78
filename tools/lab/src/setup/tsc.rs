//! The host's time-stamp counter, which guests under TCG read as their own.
//!
//! A guest that calibrates it while the host is busy can be wrong by a factor of ten, and its clock
//! with it; so it is given. Within 1 % is enough: the guest's kernel refines it later.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// The counter's frequency in kHz, if this host reports it somewhere.
pub fn khz() -> Option<u32> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    from_log(&kernel_log()).or_else(|| from_cpuinfo(&cpuinfo)).or_else(|| {
        let base = "/sys/devices/system/cpu/cpu0/cpufreq/base_frequency";
        fs::read_to_string(base).ok()?.trim().parse().ok()
    })
}

/// The kernel's log as far as it can be read without waiting: one record a read.
fn kernel_log() -> String {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let Ok(mut file) = File::options().read(true).custom_flags(nonblock).open("/dev/kmsg") else {
        return String::new();
    };
    let mut text = String::new();
    let mut record = [0; 8192];
    while let Ok(length) = file.read(&mut record) {
        text += &String::from_utf8_lossy(&record[..length]);
        if length == 0 || text.contains("Refined TSC") {
            break;
        }
    }
    text
}

fn from_log(log: &str) -> Option<u32> {
    let after = |mark: &str| log.split(mark).nth(1).and_then(mhz);
    after("tsc: Refined TSC clocksource calibration:").or_else(|| after("tsc: Detected"))
}

/// A virtual machine's "cpu MHz" is the counter's; on bare metal it is the clock of the moment.
fn from_cpuinfo(text: &str) -> Option<u32> {
    let value = |key: &str| {
        let line = text.lines().find(|l| l.starts_with(key))?;
        Some(line.split_once(':')?.1)
    };
    let virtual_machine = value("flags")?.split_whitespace().any(|f| f == "hypervisor");
    if virtual_machine { value("cpu MHz").and_then(mhz) } else { None }
}

/// `" 2596.130 MHz ..."` in kHz.
fn mhz(text: &str) -> Option<u32> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number > 100.0).then_some((number * 1000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_knows_best() {
        let log = "6,1,64,-;tsc: Detected 2600.000 MHz processor\n\
                   6,9,99,-;tsc: Refined TSC clocksource calibration: 2596.131 MHz\n";
        assert_eq!(from_log(log), Some(2_596_131));
        assert_eq!(from_log("6,1,64,-;tsc: Detected 2600.000 MHz processor\n"), Some(2_600_000));
        assert_eq!(from_log("nothing"), None);
    }

    #[test]
    fn cpuinfo_counts_in_virtual_machines_only() {
        let text = "model name\t: x\ncpu MHz\t\t: 2596.130\nflags\t\t: fpu tsc";
        assert_eq!(from_cpuinfo(text), None);
        assert_eq!(from_cpuinfo(&format!("{text} hypervisor\n")), Some(2_596_130));
    }
}
