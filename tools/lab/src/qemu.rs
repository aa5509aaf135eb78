//! QEMU's command line for one guest.

use std::path::Path;

use anyhow::{Result, bail};

use crate::device::{Backend, Device, NicModel};
use crate::machine::Machine;
use crate::plan::Plan;
use crate::proto::PORT;
use crate::setup::Accel;
use crate::spec::GuestSpec;
use crate::supervisor::net;
use crate::vhost_device_vsock;

/// Where a guest gets its kernel from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// From QEMU, which was given it.
    Kernel,
    /// From the network: iPXE, the NIC's boot ROM, drives the device and loads it.
    Network,
}

/// The boot ROM of a vmxnet3, which comes with QEMU's firmware.
const ROM: &str = "pxe-vmxnet3.rom";

/// QEMU's arguments; `ours` are those that the daemon's side asks for. Standard input must be a
/// connected socket: it becomes the agent's port.
///
/// # Errors
/// A guest without a NIC of ours cannot boot from the network.
pub fn args(plan: &Plan, guest: &GuestSpec, ours: &[String], boot: Boot) -> Result<Vec<String>> {
    let mut args = machine(plan, guest);
    let mut ours = ours.to_vec();
    match boot {
        Boot::Kernel => args.extend(kernel(plan, guest)),
        // Without a display the BIOS and its ROMs speak on the serial console.
        Boot::Network => {
            args.extend(words("-machine graphics=off"));
            give_rom(&mut ours, &guest.name)?;
        }
    }
    if guest.machine == Machine::Microvm && !ours.iter().any(|a| a.starts_with("virtio-mmio.")) {
        args.extend(words("-global virtio-mmio.force-legacy=false"));
    }
    if !ours.iter().any(|a| a == "-m") {
        args.extend(["-m".into(), plan.spec.mem_mib.to_string()]);
    }
    args.extend(disks(plan, guest));
    args.extend(ours);
    if guest.devices.contains(&Device::VhostDeviceVsock) {
        args.extend(vhost_device_vsock::qemu_args(
            plan,
            guest,
            !args.iter().any(|a| a.starts_with("memory-backend-memfd")),
        ));
    }
    let nics = guest.devices.iter().filter(|device| device.is_nic());
    for (net, device) in nics.enumerate() {
        if let Device::QemuNic { model, backend } = device {
            args.extend(nic(plan, guest, net, *model, *backend));
        }
    }
    Ok(args)
}

/// The first NIC gets a boot ROM and is what the BIOS boots from.
fn give_rom(ours: &mut [String], guest: &str) -> Result<()> {
    for word in ours {
        let Ok(mut device) = serde_json::from_str::<serde_json::Value>(word) else { continue };
        if device["socket"]["path"].as_str().is_some_and(|path| path.ends_with("/nic0.sock")) {
            device["romfile"] = ROM.into();
            device["bootindex"] = 0.into();
            *word = device.to_string();
            return Ok(());
        }
    }
    bail!("guest {guest} has no vmxnet3 of vmlane's to boot from: bring the lab up with --device vmxnet3")
}

fn kernel(plan: &Plan, guest: &GuestSpec) -> Vec<String> {
    let kernel = plan.assets.kernel(&guest.kernel).map(|k| k.image()).unwrap_or_default();
    let initrd = plan.initrd(&guest.kernel);
    let words = ["-kernel", &text(&kernel), "-initrd", &text(&initrd), "-append", &kernel_words(plan)];
    words.map(str::to_owned).to_vec()
}

fn machine(plan: &Plan, guest: &GuestSpec) -> Vec<String> {
    let mut args = words("-nodefaults -no-user-config -display none");
    args.extend(words(match guest.machine {
        Machine::Q35 => "-machine q35",
        // Debian's kernels find virtio-mmio devices by ACPI and not by words of their command line.
        Machine::Microvm | Machine::Uml => "-machine microvm,acpi=on,rtc=on,auto-kernel-cmdline=off",
    }));
    args.extend(plan.assets.accel.args().iter().map(|a| (*a).to_owned()));
    if let Some(cpu) = plan.spec.cpu.as_deref().or(plan.assets.accel.cpu()) {
        args.extend(["-cpu".to_owned(), cpu.to_owned()]);
    }
    args.extend(["-name".into(), format!("{}-{}", plan.spec.name, guest.name)]);
    args.extend(["-smp".into(), plan.spec.cpus.to_string()]);
    args.extend(virtio(guest, "virtio-rng", ""));
    args.extend(virtio(guest, "virtio-serial", ",id=ports"));
    args.extend(words("-chardev socket,id=agent,fd=0"));
    args.extend(words(&format!("-device virtserialport,bus=ports.0,chardev=agent,name={PORT}")));
    let console = comma(&plan.console(&guest.name));
    args.extend(["-chardev".into(), format!("file,id=console,append=on,path={console}")]);
    args.extend(words("-serial chardev:console"));
    let qmp = comma(&plan.qmp(&guest.name));
    args.extend(["-qmp".into(), format!("unix:{qmp},server=on,wait=off")]);
    args
}

fn kernel_words(plan: &Plan) -> String {
    let mut line = String::from("console=ttyS0 quiet net.ifnames=0 cryptomgr.notests no_timer_check");
    if plan.assets.accel == Accel::Tcg {
        // What these guard against does not exist in an emulated processor, and costs much there.
        line += " mitigations=off nokaslr";
        if let Some(khz) = plan.assets.tsc_khz {
            // The counter is the host's: known, common to all processors, and steady.
            line += &format!(" tsc=reliable tsc_early_khz={khz}");
        }
    }
    if !plan.spec.append.is_empty() {
        line = format!("{line} {}", plan.spec.append);
    }
    line
}

/// The shared root image, whose writes go to a temporary file of this QEMU, and the kernel's modules.
fn disks(plan: &Plan, guest: &GuestSpec) -> Vec<String> {
    let modules = plan.assets.kernel(&guest.kernel).map(|k| k.modules()).unwrap_or_default();
    let modules = comma(&modules);
    let mut args = vec!["-drive".into(), root_drive(&plan.assets.root.image())];
    args.extend(virtio(guest, "virtio-blk", ",drive=root,serial=root"));
    args.extend(["-drive".into(), format!("if=none,id=modules,format=raw,readonly=on,file={modules}")]);
    args.extend(virtio(guest, "virtio-blk", ",drive=modules,serial=modules"));
    args
}

/// A cached image is complete before it has its name and is never written again, so it needs no lock. QEMU
/// would take a read lock on some bytes and then check whether others hold any of them: a User Mode Linux,
/// which locks the whole file, does, and QEMU would not start ("Failed to get consistent read lock").
fn root_drive(image: &Path) -> String {
    format!("if=none,id=root,format=raw,snapshot=on,cache=unsafe,file.locking=off,file={}", comma(image))
}

/// A virtio device of the lab's own.
fn virtio(guest: &GuestSpec, kind: &str, keys: &str) -> [String; 2] {
    let machine = guest.machine;
    let rom = if machine == Machine::Q35 { ",romfile=" } else { "" };
    ["-device".into(), format!("{}{keys}{rom}", machine.virtio(kind))]
}

fn nic(plan: &Plan, guest: &GuestSpec, net: usize, model: NicModel, backend: Backend) -> Vec<String> {
    let id = format!("net{net}");
    let netdev = match backend {
        Backend::Tap => {
            let tap = net::tap_name(&plan.spec.name, guest.number, net);
            format!("tap,id={id},ifname={tap},script=no,downscript=no")
        }
        Backend::Stream if net::is_direct(plan) => {
            let path = comma(&net::direct_socket(plan, net));
            // Guest a listens; b tries until a is there, also after a restart of either.
            let role = if guest.number == 1 { "server=on" } else { "server=off,reconnect-ms=200" };
            format!("stream,id={id},{role},addr.type=unix,addr.path={path}")
        }
        Backend::Stream => {
            let path = comma(&net::hub_socket(plan, net, guest));
            format!("stream,id={id},server=off,reconnect-ms=200,addr.type=unix,addr.path={path}")
        }
    };
    let mac = guest.nics.get(net).map_or("", |n| n.mac.as_str());
    let device = match guest.machine {
        Machine::Q35 => format!("{},netdev={id},mac={mac},romfile=", model.qemu_device()),
        Machine::Microvm | Machine::Uml => format!("virtio-net-device,netdev={id},mac={mac}"),
    };
    vec!["-netdev".into(), netdev, "-device".into(), device]
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// In QEMU's comma lists a comma of a value is doubled.
fn comma(path: &Path) -> String {
    text(path).replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_image_is_opened_without_locks() {
        let drive = root_drive(Path::new("/cache/a,b/root.img"));
        assert!(drive.contains("snapshot=on") && drive.contains("file.locking=off"), "{drive}");
        assert!(drive.ends_with("file=/cache/a,,b/root.img"), "{drive}");
    }
}
