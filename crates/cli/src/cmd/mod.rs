//! The subcommands; each file owns its flags, its help and its run.

pub mod attach;
pub mod bench;
pub mod capture;
pub mod check;
pub mod cloud_hypervisor_args;
pub mod completions;
pub mod connect;
pub mod control;
pub mod daemon;
pub mod demo;
pub mod doctor;
mod emulator;
mod exit_codes;
pub mod firecracker_config;
pub mod headings;
pub mod helper_args;
pub mod import;
pub mod keeper;
pub mod lab;
pub mod libvirt_hook;
pub mod libvirt_xml;
pub mod link;
pub mod listen;
pub mod man_pages;
pub mod metrics;
pub mod mirror;
pub mod ovn;
mod pipe;
pub mod ports;
pub mod progress;
pub mod proxmox_args;
pub mod qemu_args;
pub mod release;
pub mod reload;
pub mod route;
pub mod run;
pub mod stats;
pub mod status;
#[cfg(test)]
mod tables;
mod target;
pub mod top;
pub mod uplink_helper;
pub mod vm;
mod vm_peer;
mod vm_show;
pub mod wire;

use std::process::ExitCode;

use clap::Subcommand;
use vmlane_daemon::extras::Extras;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the configured VMs until stopped
    Daemon(daemon::Args),
    /// Validate a configuration without applying it
    Check(check::Args),
    /// Convert another program's configuration into one for vmlane
    Import(import::ImportArgs),
    /// Hold descriptors while no daemon runs (started with the daemon)
    Keeper(keeper::Args),
    /// Attach interfaces for a daemon that may not (started by the daemon)
    #[command(hide = true)]
    UplinkHelper(uplink_helper::Args),
    /// Print a completion script for bash, zsh or fish
    Completions(completions::Args),
    /// Write a man page for each command
    #[command(hide = true)]
    ManPages(man_pages::Args),
    /// Print how QEMU, libvirt or another VMM attaches a VM
    Attach(attach::Args),
    /// Print QEMU's arguments for a VM of the configuration
    QemuArgs(qemu_args::Args),
    /// Print a libvirt domain for a VM of the configuration
    LibvirtXml(libvirt_xml::Args),
    /// Print the value of args for a VM of Proxmox VE
    ProxmoxArgs(proxmox_args::Args),
    /// Print Cloud Hypervisor's arguments for a VM of the configuration
    CloudHypervisorArgs(cloud_hypervisor_args::Args),
    /// Print the part of Firecracker's configuration that attaches a VM
    FirecrackerConfig(firecracker_config::Args),
    /// Check a domain that libvirt starts (called by libvirt's hook)
    LibvirtHook(libvirt_hook::Args),
    /// Show the daemon and its VMs
    Status(status::Args),
    /// Show live traffic per VM
    Top(top::Args),
    /// Show stream connections and the ports of the switch
    Ports(ports::Args),
    /// Show the counters of VMs and workers
    Stats(stats::Args),
    /// Record frames and the traffic of VMs' sockets, as pcapng
    Capture(capture::Args),
    /// Print counters as OpenMetrics, or serve them to Prometheus
    Metrics(metrics::Args),
    /// List, show, add and remove VMs while the daemon runs
    Vm(vm::VmArgs),
    /// Make the daemon read its configuration again
    Reload(reload::Args),
    /// Take a VM out of quarantine
    Release(release::Args),
    /// List links, and set one of a NIC or an uplink up or down
    Link(link::Args),
    /// Show, impair and cut wires, which join two ports directly
    Wire(wire::Args),
    /// Copy the frames of some ports of the switch to another port
    Mirror(mirror::Args),
    /// Carry streams to other hosts, and show their state
    Route(route::Args),
    /// Make NICs ports of OVN's integration bridge, show their state
    Ovn(ovn::Args),
    /// Connect standard input and output to a port of a VM
    Connect(connect::Args),
    /// Accept a connection from a VM on a port of this host
    Listen(listen::Args),
    /// Run an unmodified program so that its AF_VSOCK reaches VMs
    Run(run::Args),
    /// Find what makes a network between machines slow or broken
    Doctor(doctor::Args),
    /// Measure throughput and round trips over TCP, vsock and others
    Bench(bench::BenchArgs),
    /// Boot real VMs on this host, run commands in them
    Lab(lab::Args),
    /// Measure sockets and TCP between two VMs, with a report
    Demo(demo::Args),
}

impl Command {
    /// Runs the subcommand. Its exit codes are in [`exit_codes`](super::exit_codes).
    pub fn run(self, extras: Extras) -> anyhow::Result<ExitCode> {
        match self {
            Command::Daemon(args) => args.run(extras),
            Command::Check(args) => args.run(),
            Command::Import(args) => args.run(),
            Command::Keeper(args) => args.run(),
            Command::UplinkHelper(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::ManPages(args) => args.run(),
            Command::Attach(args) => args.run(),
            Command::QemuArgs(args) => args.run(),
            Command::LibvirtXml(args) => args.run(),
            Command::ProxmoxArgs(args) => args.run(),
            Command::CloudHypervisorArgs(args) => args.run(),
            Command::FirecrackerConfig(args) => args.run(),
            Command::LibvirtHook(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Ports(args) => args.run(),
            Command::Stats(args) => args.run(),
            Command::Capture(args) => args.run(),
            Command::Metrics(args) => args.run(),
            Command::Vm(args) => args.run(),
            Command::Reload(args) => args.run(),
            Command::Release(args) => args.run(),
            Command::Link(args) => args.run(),
            Command::Wire(args) => args.run(),
            Command::Mirror(args) => args.run(),
            Command::Route(args) => args.run(),
            Command::Ovn(args) => args.run(),
            Command::Connect(args) => args.run(),
            Command::Listen(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Bench(args) => args.run(),
            Command::Lab(args) => args.run(),
            Command::Demo(args) => args.run(),
        }
    }
}
