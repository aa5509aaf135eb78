//! Configures the guest as the lab requests: name, network cards, modules.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::proto::Setup;
use crate::spec::Nic;

/// How long devices may take to appear after their drivers are loaded.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The same for a network card, which a machine that emulates many guests may show late.
const CARD_TIMEOUT: Duration = Duration::from_secs(60);
const LINK_TIMEOUT: Duration = Duration::from_secs(4);

pub fn apply(setup: &Setup, warnings: &mut Vec<String>) {
    // No wait for duplicate addresses: the lab gives each only once.
    for key in ["all", "default"] {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{key}/accept_dad"), "0");
    }
    let _ = rustix::system::sethostname(setup.hostname.as_bytes());
    let _ = fs::write("/etc/hostname", format!("{}\n", setup.hostname));
    let mut hosts = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for (name, address) in &setup.hosts {
        hosts += &format!("{address} {name}\n");
    }
    let _ = fs::write("/etc/hosts", hosts);
    run(warnings, "ip", &["link", "set", "lo", "up"]);
    load_drivers(warnings);
    configure(&setup.nics, warnings);
    if setup.vmci {
        load_vmci(warnings);
    }
}

/// Sets User Mode Linux's own cards down before a restart: it restarts as the same process and would keep
/// open what a card that is up has open on the host, and its TAP interface would be busy.
pub fn set_own_cards_down() {
    for entry in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let driver = fs::read_link(entry.path().join("device/driver"));
        if driver.is_ok_and(|driver| driver.ends_with("uml-vector")) {
            run(&mut Vec::new(), "ip", &["link", "set", &entry.file_name().to_string_lossy(), "down"]);
        }
    }
}

/// Loads the driver of every PCI and virtio device, as udev would.
fn load_drivers(warnings: &mut Vec<String>) {
    for bus in ["pci", "virtio"] {
        let devices = fs::read_dir(format!("/sys/bus/{bus}/devices")).into_iter().flatten().flatten();
        let aliases: Vec<String> = devices
            .filter(|d| !d.path().join("driver").exists())
            .filter_map(|d| fs::read_to_string(d.path().join("modalias")).ok())
            .map(|alias| alias.trim().to_owned())
            .collect();
        if !aliases.is_empty() {
            let mut args = vec!["-q", "-b", "-a"];
            args.extend(aliases.iter().map(String::as_str));
            // Fails when any device has no driver here, which is normal for a chipset.
            if let Err(error) = Command::new("modprobe").args(&args).output() {
                warnings.push(format!("modprobe: {error}"));
            }
        }
    }
}

/// The transport has no alias: it is loaded by name, once the device has its driver.
fn load_vmci(warnings: &mut Vec<String>) {
    let bound = wait(TIMEOUT, || {
        fs::read_dir("/sys/bus/pci/drivers/vmw_vmci")
            .into_iter()
            .flatten()
            .flatten()
            .any(|e| e.file_name().to_string_lossy().starts_with("0000:"))
            .then_some(())
    });
    if bound.is_none() {
        warnings.push("the driver vmw_vmci did not take the VMCI device; see lab logs".into());
        return;
    }
    run(warnings, "modprobe", &["-b", "vmw_vsock_vmci_transport"]);
    // Kernels >= 5.6 keep this transport by itself; the diagnostics are for ss --vsock.
    let _ = Command::new("modprobe").args(["-q", "vsock_diag"]).output();
}

/// Names the cards eth0, eth1 ... in the lab's order, which need not be the order of their slots.
fn configure(nics: &[Nic], warnings: &mut Vec<String>) {
    let mut present = Vec::new();
    for (index, nic) in nics.iter().enumerate() {
        match wait(CARD_TIMEOUT, || interface(&nic.mac)) {
            Some(name) => present.push((index, nic, name)),
            None => warnings.push(format!("no network card {} ({}) appeared", nic.device, nic.mac)),
        }
    }
    if present.iter().any(|(index, _, name)| *name != format!("eth{index}")) {
        for (index, _, name) in &present {
            run(warnings, "ip", &["link", "set", name, "name", &format!("lab{index}")]);
        }
        for (index, ..) in &present {
            let (from, to) = (format!("lab{index}"), format!("eth{index}"));
            run(warnings, "ip", &["link", "set", &from, "name", &to]);
        }
    }
    for (index, nic, _) in &present {
        let name = format!("eth{index}");
        if let Some(mtu) = nic.mtu {
            run(warnings, "ip", &["link", "set", &name, "mtu", &mtu.to_string()]);
        }
        run(warnings, "ip", &["address", "add", &nic.ipv4, "dev", &name]);
        run(warnings, "ip", &["-6", "address", "add", &nic.ipv6, "dev", &name, "nodad"]);
        run(warnings, "ip", &["link", "set", &name, "up"]);
    }
    for (index, ..) in &present {
        // Some cards take seconds to see their link; without a neighbour there never is one.
        let state = format!("/sys/class/net/eth{index}/operstate");
        wait(LINK_TIMEOUT, || {
            fs::read_to_string(&state).ok().filter(|s| matches!(s.trim(), "up" | "unknown"))
        });
    }
}

fn interface(mac: &str) -> Option<String> {
    fs::read_dir("/sys/class/net").ok()?.flatten().find_map(|entry| {
        let address = fs::read_to_string(entry.path().join("address")).ok()?;
        (address.trim() == mac).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

fn wait<T>(timeout: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = ready() {
            return Some(value);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn run(warnings: &mut Vec<String>, program: &str, args: &[&str]) {
    let line = || format!("{program} {}", args.join(" "));
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            warnings.push(format!("{}: {}", line(), text.trim()));
        }
        Err(error) => warnings.push(format!("{}: {error}", line())),
    }
}
