//! `vmlane attach`: how a VMM attaches a VM of the configuration. The options and the output for a VMM are
//! those of the older command that this VMM has of its own (`qemu-args` and so on).

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as ClapArgs, Command, Error, FromArgMatches, ValueEnum};

use super::{cloud_hypervisor_args, firecracker_config, libvirt_xml, proxmox_args, qemu_args};

const EXAMPLES: &str = r#"Examples:
  vmlane attach web --for qemu
  eval "qemu-system-x86_64 -machine q35 $(vmlane attach web --for qemu) web.qcow2"
  vmlane attach web --for libvirt > web.xml && virsh define web.xml
  virsh dumpxml --inactive web | vmlane attach web --for libvirt --into - > web.xml
  qm set 100 --machine q35 --memory 2048 --numa 0 --args "$(vmlane attach web --for proxmox --mem 2048)"
  eval "cloud-hypervisor --kernel vmlinux --disk path=web.raw $(vmlane attach web --for cloud-hypervisor)"
  jq -s '.[0] * .[1]' machine.json <(vmlane attach fn1 --for firecracker) > whole.json

With --for qemu, the arguments depend on QEMU's version and accelerator. What is not named is that of this host: the
version of the program that VMLANE_QEMU names or of qemu-system-x86_64 in PATH, and KVM if /dev/kvm can be opened. A
line on standard error states what was found.

Each VMM has an older command with the same output, whose --help explains what that VMM needs: qemu-args, libvirt-xml,
proxmox-args, cloud-hypervisor-args, firecracker-config."#;

/// A program that attaches VMs, with a command of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Vmm {
    Qemu,
    Libvirt,
    Proxmox,
    CloudHypervisor,
    Firecracker,
}

/// The options of the VMM's own command.
#[derive(Debug)]
pub enum Args {
    Qemu(qemu_args::Args),
    Libvirt(libvirt_xml::Args),
    Proxmox(proxmox_args::Args),
    CloudHypervisor(cloud_hypervisor_args::Args),
    Firecracker(firecracker_config::Args),
}

impl Vmm {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn arguments(self) -> Vec<Arg> {
        let command = Command::new("attach");
        let command = match self {
            Vmm::Qemu => qemu_args::Args::augment_args(command),
            Vmm::Libvirt => libvirt_xml::Args::augment_args(command),
            Vmm::Proxmox => proxmox_args::Args::augment_args(command),
            Vmm::CloudHypervisor => cloud_hypervisor_args::Args::augment_args(command),
            Vmm::Firecracker => firecracker_config::Args::augment_args(command),
        };
        command.get_arguments().cloned().collect()
    }
}

/// The options of all VMMs.
struct Known(Vec<(Vmm, Vec<Arg>)>);

impl Known {
    fn new() -> Known {
        Known(Vmm::value_variants().iter().map(|vmm| (*vmm, vmm.arguments())).collect())
    }

    /// The VMMs that take an option. Firecracker's command takes the memory's size as the others do, and has
    /// no use for it.
    fn takers(&self, option: &str) -> Vec<Vmm> {
        let has = |(_, arguments): &&(Vmm, Vec<Arg>)| arguments.iter().any(|one| one.get_id() == option);
        let vmms = self.0.iter().filter(has).map(|(vmm, _)| *vmm);
        vmms.filter(|vmm| (*vmm, option) != (Vmm::Firecracker, "mem")).collect()
    }

    /// The option, with the names of the VMMs that take it if others do not.
    fn shown(&self, argument: &Arg) -> Arg {
        let vmms = self.takers(argument.get_id().as_str());
        if vmms.len() == self.0.len() {
            return argument.clone();
        }
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        argument.clone().help(format!("{help} [for: {}]", names(&vmms)))
    }
}

fn names(vmms: &[Vmm]) -> String {
    vmms.iter().map(|vmm| vmm.name()).collect::<Vec<_>>().join(", ")
}

impl ClapArgs for Args {
    fn augment_args(command: Command) -> Command {
        let vmm = Arg::new("for").long("for").value_name("VMM").required(true);
        let vmm = vmm.help("The program that runs the VM").value_parser(clap::value_parser!(Vmm));
        let mut all = vec![vmm];
        let known = Known::new();
        for argument in known.0.iter().flat_map(|(_, arguments)| arguments) {
            if !all.iter().any(|other| other.get_id() == argument.get_id()) {
                all.push(known.shown(argument));
            }
        }
        let of_all = |arg: Arg| if arg.get_id() == "json" { arg.help("Print a JSON object") } else { arg };
        command.args(all.into_iter().map(of_all)).after_help(EXAMPLES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Args::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Args, Error> {
        let missing = || Error::raw(ErrorKind::MissingRequiredArgument, "--for VMM is missing\n");
        let vmm = *matches.get_one::<Vmm>("for").ok_or_else(missing)?;
        refuse_others(vmm, matches)?;
        Ok(match vmm {
            Vmm::Qemu => Args::Qemu(qemu_args::Args::from_arg_matches(matches)?.for_this_host()),
            Vmm::Libvirt => Args::Libvirt(libvirt_xml::Args::from_arg_matches(matches)?),
            Vmm::Proxmox => Args::Proxmox(proxmox_args::Args::from_arg_matches(matches)?),
            Vmm::CloudHypervisor => {
                Args::CloudHypervisor(cloud_hypervisor_args::Args::from_arg_matches(matches)?)
            }
            Vmm::Firecracker => Args::Firecracker(firecracker_config::Args::from_arg_matches(matches)?),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Args::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An option that is given and that the VMM does not take is an error of usage.
fn refuse_others(vmm: Vmm, matches: &ArgMatches) -> Result<(), Error> {
    let given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let known = Known::new();
    for id in matches.ids().map(clap::Id::as_str).filter(given).filter(|id| *id != "for") {
        let vmms = known.takers(id);
        if !vmms.contains(&vmm) {
            let (name, vmms) = (vmm.name(), names(&vmms));
            let text = format!("--{id} is not an option of `vmlane attach --for {name}`, but for {vmms}\n");
            return Err(Error::raw(ErrorKind::UnknownArgument, text));
        }
    }
    Ok(())
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Args::Qemu(args) => args.run(),
            Args::Libvirt(args) => args.run(),
            Args::Proxmox(args) => args.run(),
            Args::CloudHypervisor(args) => args.run(),
            Args::Firecracker(args) => args.run(),
        }
    }
}
