//! QEMU's command line for one guest.

use std::path::Path;

use crate::device::{Backend, Device, NicModel};
use crate::plan::Plan;
use crate::proto::PORT;
use crate::setup::Accel;
use crate::spec::GuestSpec;
use crate::supervisor::net;

/// QEMU's arguments; `ours` are those that the daemon's side asks for. Standard input must be a
/// connected socket: it becomes the agent's port.
pub fn args(plan: &Plan, guest: &GuestSpec, ours: &[String]) -> Vec<String> {
    let mut args = machine(plan, guest);
    if !ours.iter().any(|a| a == "-m") {
        args.extend(["-m".into(), plan.spec.mem_mib.to_string()]);
    }
    args.extend(disks(plan, guest));
    args.extend(ours.iter().cloned());
    let nics = plan.spec.devices.iter().filter(|device| device.is_nic());
    for (net, device) in nics.enumerate() {
        if let Device::QemuNic { model, backend } = device {
            args.extend(nic(plan, guest, net, *model, *backend));
        }
    }
    args
}

fn machine(plan: &Plan, guest: &GuestSpec) -> Vec<String> {
    let mut args = words("-nodefaults -no-user-config -display none -machine q35");
    args.extend(plan.assets.accel.args().iter().map(|a| (*a).to_owned()));
    args.extend(["-name".into(), format!("{}-{}", plan.spec.name, guest.name)]);
    args.extend(["-smp".into(), plan.spec.cpus.to_string()]);
    let kernel = plan.assets.kernel(&guest.kernel).map(|k| k.image()).unwrap_or_default();
    args.extend(["-kernel".into(), text(&kernel)]);
    args.extend(["-initrd".into(), text(&plan.initrd(&guest.kernel))]);
    args.extend(["-append".into(), kernel_words(plan)]);

    args.extend(words("-device virtio-rng-pci,romfile= -device virtio-serial-pci,id=ports,romfile="));
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

/// The shared root image, whose writes go to a file that nobody sees, and the kernel's modules.
fn disks(plan: &Plan, guest: &GuestSpec) -> Vec<String> {
    let root = comma(&plan.assets.root.image());
    let modules = plan.assets.kernel(&guest.kernel).map(|k| k.modules()).unwrap_or_default();
    let modules = comma(&modules);
    vec![
        "-drive".into(),
        format!("if=none,id=root,format=raw,snapshot=on,cache=unsafe,file={root}"),
        "-device".into(),
        "virtio-blk-pci,drive=root,romfile=".into(),
        "-drive".into(),
        format!("if=none,id=modules,format=raw,readonly=on,file={modules}"),
        "-device".into(),
        "virtio-blk-pci,drive=modules,romfile=".into(),
    ]
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
    let device = format!("{},netdev={id},mac={mac},romfile=", model.qemu_device());
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
