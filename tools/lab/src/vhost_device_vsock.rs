//! vhost-device-vsock, whose guests are siblings of each other, to compare with.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::device::Device;
use crate::dirs;
use crate::log_tail::tail;
use crate::plan::Plan;
use crate::spec::GuestSpec;

fn socket(plan: &Plan, guest: &GuestSpec) -> PathBuf {
    plan.peer_runtime().join(format!("{}.sock", guest.name))
}

/// The guests that have such a device.
fn served(plan: &Plan) -> impl Iterator<Item = GuestSpec> {
    plan.spec.guests().into_iter().filter(|guest| guest.devices.contains(&Device::VhostDeviceVsock))
}

/// The command that serves all guests, if the lab has such devices.
pub fn command(plan: &Plan) -> Result<Option<Command>> {
    let Some(program) = &plan.assets.vhost_device_vsock else { return Ok(None) };
    let dir = plan.peer_runtime();
    dirs::make(&dir)?;
    let mut command = Command::new(program);
    for guest in served(plan) {
        let (cid, socket) = (guest.cid.unwrap_or_default(), socket(plan, &guest));
        let host = dir.join(format!("{}.uds", guest.name));
        let vm =
            format!("guest-cid={cid},socket={},uds-path={},groups=default", socket.display(), host.display());
        command.args(["--vm", &vm]);
    }
    command.stdin(Stdio::null());
    Ok(Some(command))
}

/// Waits until it listens for every guest.
pub fn wait(plan: &Plan) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    for guest in served(plan) {
        let socket = socket(plan, &guest);
        // A connection would be the guest's only one: that the file is there has to do.
        while !socket.exists() {
            let log = plan.peer_log();
            ensure!(
                Instant::now() < deadline,
                "vhost-device-vsock does not listen at {} after 20 s:\n{}",
                socket.display(),
                tail(&log)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// What attaches `guest`; `memory` if nothing else shares its memory yet.
pub fn qemu_args(plan: &Plan, guest: &GuestSpec, memory: bool) -> Vec<String> {
    let mut args = Vec::new();
    if memory {
        let object = format!("memory-backend-memfd,id=vmlane-mem,size={}M,share=on", plan.spec.mem_mib);
        args.extend(["-object".to_owned(), object]);
        args.extend(["-machine".to_owned(), "memory-backend=vmlane-mem".to_owned()]);
    }
    let path = socket(plan, guest).display().to_string().replace(',', ",,");
    args.extend(["-chardev".to_owned(), format!("socket,id=peer,path={path}")]);
    let device = guest.machine.virtio("vhost-user-vsock");
    args.extend(["-device".to_owned(), format!("{device},chardev=peer")]);
    args
}
