//! One guest of a lab as the supervisor holds it: its QEMU or User Mode Linux, its link, its first root.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::{Context, Result, ensure};

use super::event::Event;
use super::link::{Link, Phase};
use super::spawn::spawn;
use super::{daemon, net};
use crate::child::{self, Extra, Handle};
use crate::device::Device;
use crate::first_root;
use crate::plan::{GuestStatus, Plan};
use crate::proto::Setup;
use crate::qemu::{self, Boot};
use crate::spec::GuestSpec;
use crate::uml;

pub struct Machine {
    pub spec: GuestSpec,
    pub link: Arc<Link>,
    pub process: Option<Handle>,
}

impl Machine {
    pub fn new(spec: GuestSpec) -> Self {
        Self { link: Link::new(&spec.name), spec, process: None }
    }

    pub fn status(&self, plan: &Plan) -> GuestStatus {
        let (phase, boot_seconds) = self.link.phase();
        let (state, up) = match phase {
            Phase::Off { .. } => ("off", None),
            Phase::Booting => ("booting", None),
            Phase::Up(up) => ("up", Some(up)),
        };
        let name = &self.spec.name;
        GuestStatus {
            name: name.clone(),
            state: state.to_owned(),
            cid: self.spec.cid,
            group: self.spec.group.clone(),
            kernel: self.spec.kernel.clone(),
            release: up.as_ref().map(|u| u.release.clone()),
            boot_seconds,
            pid: self.process.as_ref().map(|p| p.pid),
            nics: self.spec.nics.clone(),
            machine: self.spec.machine,
            kernel_image: match plan.assets.uml(&self.spec.kernel) {
                Ok(uml) => uml.image(),
                Err(_) => plan.assets.kernel(&self.spec.kernel).map(|k| k.image()).unwrap_or_default(),
            },
            initrd: plan.initrd(&self.spec.kernel),
            console_log: plan.console(name),
            qemu_log: plan.qemu_log(name),
            qmp_socket: plan.qmp(name),
            warnings: up.map(|u| u.warnings).unwrap_or_default(),
        }
    }
}

impl Machine {
    /// Starts its process; `events` is notified when the guest answers, and when the process ends.
    pub fn start(&mut self, plan: &Plan, events: &Sender<Event>, boot: Boot) -> Result<()> {
        let name = &self.spec.name;
        let is_qemu = self.spec.machine.is_qemu();
        let (mut command, log) = if is_qemu {
            (qemu_command(plan, &self.spec, boot)?, plan.qemu_log(name))
        } else {
            ensure!(
                boot == Boot::Kernel,
                "guest {name} has no firmware to boot from the network: it is no QEMU"
            );
            (uml_command(plan, &self.spec)?, plan.console(name))
        };
        let (port, guest_end) = UnixStream::pair().context("cannot make the agent's port")?;
        self.link.attach(port, !is_qemu, setup(plan, &self.spec), {
            let events = events.clone();
            move || {
                let _ = events.send(Event::GuestUp);
            }
        })?;
        command.stdin(Stdio::from(OwnedFd::from(guest_end)));
        let events = events.clone();
        let process = spawn(command, &log, move |pid, status| {
            let _ = events.send(Event::GuestEnded(pid, status));
        })
        .with_context(|| format!("guest {name}"))?;
        self.process = Some(process);
        net::join_taps(plan, &self.spec)
    }
}

fn qemu_command(plan: &Plan, guest: &GuestSpec, boot: Boot) -> Result<Command> {
    let ours = if guest.has_ours() { daemon::qemu_args(plan, guest)? } else { Vec::new() };
    let mut inner: Command = plan.assets.qemu()?.command();
    inner.args(qemu::args(plan, guest, &ours, boot)?);
    Ok(child::protected(&plan.vmlane, &inner))
}

/// It has one processor; on one of the host's it loses no time by moving.
fn uml_command(plan: &Plan, guest: &GuestSpec) -> Result<Command> {
    let uml = plan.assets.uml(&guest.kernel)?;
    if let Err(error) = fs::remove_file(uml::disk(plan, guest))
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error).context("cannot remove what the guest wrote before");
    }
    let mut inner = Command::new(uml.program());
    inner.args(uml::args(plan, guest)?).current_dir(&uml.dir);
    let (key, value) = uml.env();
    let extra = Extra { cpu: child::cpu_for(guest.number), env: vec![format!("{key}={value}")] };
    Ok(child::protected_with(&plan.vmlane, &inner, &extra))
}

fn setup(plan: &Plan, guest: &GuestSpec) -> Setup {
    let hosts = plan.spec.guests().into_iter().filter_map(|g| {
        let address = g.nics.first()?.ipv4.split('/').next()?.to_owned();
        Some((g.name, address))
    });
    Setup {
        nonce: 0,
        hostname: guest.name.clone(),
        nics: guest.nics.clone(),
        hosts: hosts.collect(),
        vmci: guest.devices.contains(&Device::Vmci),
    }
}

/// Writes one first root for each kernel in use.
pub fn write_initrds(plan: &Plan) -> Result<()> {
    let ours = first_root::archive(&plan.assets.root, &plan.vmlane)?;
    for uml in &plan.assets.uml {
        fs::write(plan.initrd(&uml.version), &ours)?; // what it starts with is built in
    }
    for kernel in &plan.assets.kernels {
        first_root::write(kernel, &ours, &plan.initrd(&kernel.version))?;
    }
    Ok(())
}
