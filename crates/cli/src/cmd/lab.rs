//! `vmlane lab`: real VMs on this host.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, Subcommand};
use vmlane_lab::device::DeviceFor;
use vmlane_lab::test_host;
use vmlane_lab::{Forward, Lab, LabSpec, Machine, agent, child, supervisor};

#[path = "lab_run.rs"]
mod run;
#[path = "lab_show.rs"]
mod show;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  vmlane lab up demo --device vmci            two VMs with VMCI sockets
  vmlane lab exec demo a -- uname -r          run a command in guest a
  vmlane lab cp demo ./tool b:/usr/bin/       copy a file into guest b
  vmlane lab logs demo a                      the console of guest a
  vmlane lab status demo                      guests, addresses, process ids, paths
  vmlane lab reboot demo a
  vmlane lab kill demo b                      its QEMU, at once
  vmlane lab start demo b                     it keeps its CID and addresses
  vmlane lab list
  vmlane lab setup --kernel 5.10,7.2          fetch kernels beforehand
  vmlane lab down demo                        take everything down

QEMU, kernels and the guests' image are fetched once, from the Debian mirror that apt uses here, \
into ${XDG_CACHE_HOME:-~/.cache}/vmlane. VMLANE_DEBIAN_MIRROR names another mirror; VMLANE_QEMU a \
QEMU to use instead; VMLANE_ACCEL (kvm or tcg) overrides the probe.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch what labs need: QEMU, a root image, kernels
    Setup {
        /// Kernels to fetch: 5.10, 6.1, 6.12, 7.2, 7.2um1 (User Mode Linux), 7.2pci (User Mode Linux with a
        /// PCI bus, built here in ten minutes or more), or all but the last two
        #[arg(long, value_delimiter = ',', default_value = "6.12")]
        kernel: Vec<String>,
        /// Also fetch this older QEMU
        #[arg(long, value_name = "VERSION", value_parser = ["7.2"])]
        qemu: Option<String>,
    },
    /// Boot a lab; returns when every guest answers
    Up(Box<Up>),
    /// Run a command in a guest with its stdin, stdout, stderr and exit code
    Exec {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// A guest of the lab: a, b ..., or a test host of --uplink and --uplinks: host, host2
        guest: String,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Copy a file or directory into a guest, or a file out of one
    ///
    /// One of SOURCE and TARGET is GUEST:PATH.
    #[command(
        after_help = "Examples:\n  vmlane lab cp demo ./tool b:/usr/bin/\n  vmlane lab cp demo a:/var/log/x ./x"
    )]
    Cp {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// What to copy: a path of this host, or GUEST:PATH
        source: String,
        /// Where to: GUEST:PATH, or a path of this host; a directory keeps the source's name
        target: String,
    },
    /// Print the log of a guest's console, of the daemon or of the supervisor
    Logs {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// A guest, "daemon" or "supervisor" [default: all]
        of: Option<String>,
    },
    /// List the labs of this user
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one lab: guests, addresses, process ids, paths
    Status {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Kill a guest at once: its QEMU, or its User Mode Linux
    Kill {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// A guest of the lab: a, b ...
        guest: String,
    },
    /// Boot a guest again that was killed; it keeps its CID and addresses
    Start {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// A guest of the lab: a, b ...
        guest: String,
        /// Boot a kernel from the network (PXE on its first NIC, a vmxnet3)
        #[arg(long)]
        network: bool,
    },
    /// Restart a guest's system; returns when it answers
    Reboot {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// A guest of the lab: a, b ...
        guest: String,
        /// Reset the machine instead of rebooting the guest's system
        #[arg(long)]
        hard: bool,
    },
    /// Send a QMP command to a guest's QEMU and print what it returns
    #[command(after_help = "Examples:\n  vmlane lab qmp demo a query-status\n  vmlane lab qmp demo a stop")]
    Qmp {
        /// The name that the lab was given by `lab up`
        lab: String,
        /// A guest of the lab: a, b ...
        guest: String,
        /// The name of the command, such as query-status
        command: String,
        /// The command's arguments, as JSON
        arguments: Option<String>,
    },
    /// Take a lab down; nothing of it is left running
    Down {
        /// The name that the lab was given by `lab up`
        #[arg(required_unless_present = "all")]
        lab: Option<String>,
        /// All labs of this user
        #[arg(long)]
        all: bool,
    },
    Run(run::Args),
    Draw(run::Draw),
    /// The agent, in a guest
    #[command(hide = true)]
    Agent,
    /// Owns a lab's processes
    #[command(hide = true)]
    Supervise,
    /// Becomes a command that ends with its parent
    #[command(hide = true)]
    Child {
        #[arg(long)]
        cpu: Option<usize>,
        #[arg(long)]
        env: Vec<String>,
        parent: u32,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Devices: vmci, vmxnet3, virtio-net and virtio-vsock are vmlane's; vmci and vmxnet3 need QEMU >= 10.1 and PCI, or \
User Mode Linux with a PCI bus (kernel 7.2pci, which is built once); the virtio devices need neither. vmxnet3 and virtio-net take keys: vmxnet3:mtu=9000,queues=4. qemu-virtio-net, qemu-vmxnet3, \
qemu-e1000 and qemu-e1000e are QEMU's own network cards, for comparison; a socket between the QEMUs joins them, or with \
:tap at the end of the name a bridge of the host (root only). uml-vector is User Mode Linux's own network card, for comparison: a \
bridge of the host joins it, with others and with cards that have :tap (root only, without --uplink).

One guest's devices: a:vmci gives vmci to guest a alone. The first cards of all guests are in one network, their second \
cards in another, whatever the model. Under --machine q35,uml, guests in Debian's User Mode Linux, which has no vmci and no vmxnet3, get virtio-vsock and virtio-net instead, unless the device is for that guest only.

Addresses: guests are named a, b, c ...; their CIDs are 3, 4, 5 ... A guest's first network card has 10.77.0.N/24 and \
fd77::N/64 with N = 1 for a; a second has 10.78.0.N/24 and fd78::N/64, and so on.

Examples:
  vmlane lab up demo --device vmci --device qemu-virtio-net
  vmlane lab up mixed --kernel 5.10,7.2 --device vmci --forward b:5000=a:5000
  vmlane lab up old --qemu 7.2 --device virtio-net --device virtio-vsock
  vmlane lab up tiny --machine microvm --device virtio-net --device virtio-vsock
  vmlane lab up fast --machine uml --device virtio-net --device virtio-vsock
  vmlane lab up pci --machine uml --device vmci --device vmxnet3
  vmlane lab up own --machine uml --device virtio-net --device uml-vector
  vmlane lab up both --machine q35,uml --device vmci --device vmxnet3
  vmlane lab up pair --device a:vmci --device b:virtio-vsock --device vmxnet3
  vmlane lab up dpdk --cpu Nehalem --mem 1024 --device vmxnet3
  vmlane lab up four --guests 4 --mem 1024 --device qemu-e1000e:tap --json")]
struct Up {
    /// A name for the lab, which the other commands take: letters, digits, - and _
    name: String,
    /// How many guests
    #[arg(long, default_value_t = 2)]
    guests: usize,
    /// 5.10, 6.1, 6.12 or 7.2; a list gives one per guest [default: 6.12; under User Mode Linux 7.2um1, or
    /// 7.2pci with vmci or vmxnet3]
    #[arg(long, value_delimiter = ',', value_parser = ["5.10", "6.1", "6.12", "7.2", "7.2um1", "7.2pci"])]
    kernel: Vec<String>,
    /// Processors per guest
    #[arg(long, default_value_t = 1)]
    cpus: u32,
    /// Memory per guest in MiB
    #[arg(long, default_value_t = 512, value_name = "MiB")]
    mem: u32,
    /// A device of every guest or, with a guest's name and a colon before it, of that guest only (may be
    /// given several times)
    #[arg(long, value_name = "[GUEST:]DEVICE")]
    device: Vec<DeviceFor>,
    /// The guests' processor: a value of QEMU's -cpu, such as max [default: QEMU's default, with KVM
    /// the host's]
    #[arg(long, value_name = "MODEL", allow_hyphen_values = true)]
    cpu: Option<String>,
    /// What guests run in: QEMU's q35, QEMU's microvm (virtio devices only, no PCI), or uml, User Mode Linux
    /// (no QEMU; vmlane's own devices and uml-vector only, one processor, kernel 7.2um1 or 7.2pci); a list
    /// gives one per guest [default: q35]
    #[arg(long, value_name = "MACHINE", value_delimiter = ',')]
    machine: Vec<Machine>,
    /// An older QEMU, 7.2 of Debian 12 (virtio devices only) [default: one of 10.1 or later]
    #[arg(long, value_name = "VERSION", value_parser = ["7.2"])]
    qemu: Option<String>,
    /// Isolation group; a list gives one per guest
    #[arg(long, value_delimiter = ',')]
    group: Vec<String>,
    /// GUEST:PORT=GUEST:PORT: forward the first guest's connections to CID 2, PORT to the second guest's PORT
    #[arg(long, value_name = "FROM=TO")]
    forward: Vec<Forward>,
    /// Add a test host in a network namespace, 10.77.0.254, behind an uplink of the switch; `lab exec`
    /// reaches it as guest `host` (root only)
    #[arg(long, conflicts_with = "uplinks")]
    uplink: bool,
    /// 2 to 4 uplinks, each a network of its own (10.77.0.0/24, 10.78.0.0/24 ...), shared out between two
    /// test hosts, `host` and `host2` (.254 in each); card M of guest N is in network N + M, counted round
    /// (root only)
    #[arg(long, value_name = "N", default_value_t = 0)]
    uplinks: u32,
    /// TOML merged over the daemon's generated configuration ([[vm]] entries by name)
    #[arg(long, value_name = "FILE")]
    daemon_config: Option<PathBuf>,
    /// More words for the guests' kernel command lines
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    append: String,
    /// How long the guests may take to boot, in seconds
    #[arg(long, default_value_t = 180, value_name = "SECONDS")]
    boot_timeout: u64,
    /// Print guests, CIDs, addresses, process ids and paths as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Setup { kernel, qemu } => set_up(kernel, qemu.as_deref())?,
            Command::Up(up) => up.run()?,
            Command::Exec { lab, guest, command } => return exec(&lab, &guest, command),
            Command::Cp { lab, source, target } => copy(&lab, &source, &target)?,
            Command::Logs { lab, of } => show::logs(&lab, of.as_deref())?,
            Command::List { json } => show::list(json)?,
            Command::Status { lab, json } => show::status(&Lab::open(&lab)?.status()?, json)?,
            Command::Kill { lab, guest } => Lab::open(&lab)?.guest(&guest).kill()?,
            Command::Start { lab, guest, network: false } => Lab::open(&lab)?.guest(&guest).start()?,
            Command::Start { lab, guest, network: true } => {
                Lab::open(&lab)?.guest(&guest).start_from_network()?;
            }
            Command::Reboot { lab, guest, hard } => Lab::open(&lab)?.guest(&guest).reboot(hard)?,
            Command::Qmp { lab, guest, command, arguments } => {
                let arguments = arguments.as_deref().map(serde_json::from_str).transpose();
                let arguments = arguments.context("the arguments are no JSON")?;
                println!("{}", Lab::open(&lab)?.guest(&guest).qmp(&command, arguments)?);
            }
            Command::Down { lab, all } => down(lab, all)?,
            Command::Run(run) => return run.run(),
            Command::Draw(draw) => draw.run()?,
            Command::Agent => agent::run()?,
            Command::Supervise => supervisor::run()?,
            Command::Child { cpu, env, parent, command } => {
                child::run(parent, &child::Extra { cpu, env }, &command)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn report(line: &str) {
    eprintln!("lab: {line}");
}

fn set_up(mut kernels: Vec<String>, qemu: Option<&str>) -> Result<()> {
    if kernels.iter().any(|k| k == "all") {
        kernels = vmlane_lab::setup::KERNELS.map(|(version, ..)| version.to_owned()).to_vec();
    }
    let assets = vmlane_lab::setup::ensure(&kernels, qemu, &vmlane_lab::setup::Progress(&report))?;
    let mut list: Vec<&str> = assets.kernels.iter().map(|k| k.version.as_str()).collect();
    list.extend(assets.uml.iter().map(|uml| uml.version.as_str()));
    let qemu = assets.qemu.as_ref().map_or("no QEMU".into(), |qemu| format!("QEMU {}", qemu.version));
    println!("ready: {qemu}, accelerator {}, kernels {}", assets.accel.name(), list.join(", "));
    Ok(())
}

impl Up {
    fn run(self) -> Result<()> {
        let mut spec = LabSpec::new(&self.name);
        spec.guests = self.guests;
        spec.kernels = self.kernel;
        spec.cpus = self.cpus;
        spec.mem_mib = self.mem;
        spec.devices = self.device;
        spec.groups = self.group;
        spec.forwards = self.forward;
        spec.uplinks = if self.uplink { 1 } else { self.uplinks };
        spec.daemon_config = self.daemon_config;
        spec.append = self.append;
        spec.boot_seconds = self.boot_timeout;
        spec.machines = self.machine;
        spec.qemu = self.qemu;
        spec.cpu = self.cpu;
        let lab = Lab::up_with(&spec, &std::env::current_exe()?, &report)?;
        let status = lab.status()?;
        lab.detach()?;
        show::status(&status, self.json)
    }
}

fn exec(lab: &str, guest: &str, argv: Vec<String>) -> Result<ExitCode> {
    let lab = Lab::open(lab)?;
    if let Some(host) = (0..2).find(|&host| test_host::name(host) == guest) {
        return on_host(&lab, host, &argv);
    }
    let session = lab.guest(guest).session(argv)?;
    session.feed(std::io::stdin());
    let exit = session.finish(&mut std::io::stdout().lock(), &mut std::io::stderr().lock())?;
    Ok(ExitCode::from(exit.shell_code() as u8))
}

/// Runs a command in the namespace of a test host of the lab.
fn on_host(lab: &Lab, host: u32, argv: &[String]) -> Result<ExitCode> {
    let status = lab.host_command_on(host, argv)?.status().context("cannot run ip (iproute2)")?;
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}

/// `GUEST:PATH` is a path in a guest; a local path with a colon is written with a slash before it.
fn in_guest(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(guest, _)| !guest.contains('/') && !guest.is_empty())
}

fn copy(lab: &str, source: &str, target: &str) -> Result<()> {
    let lab = Lab::open(lab)?;
    match (in_guest(source), in_guest(target)) {
        (None, Some((guest, path))) => {
            let path = if path.is_empty() { "/root/" } else { path };
            lab.guest(guest).cp_to(Path::new(source), path)
        }
        (Some((guest, path)), None) => lab.guest(guest).cp_from(path, Path::new(target)),
        _ => bail!("cp {source} {target}: exactly one of the two is GUEST:PATH, such as a:/root/x"),
    }
}

fn down(lab: Option<String>, all: bool) -> Result<()> {
    let names = match (lab, all) {
        (Some(name), _) => vec![name],
        (None, _) => vmlane_lab::list()?.into_iter().map(|(name, _)| name).collect(),
    };
    for name in names {
        Lab::at(&name)?.down().with_context(|| format!("lab {name}"))?;
    }
    Ok(())
}
