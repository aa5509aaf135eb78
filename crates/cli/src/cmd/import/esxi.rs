//! `vmlane import esxi`: the networks of ESXi hosts, without their VMs.

use std::path::PathBuf;
use std::process::ExitCode;

use vmlane_import::Options;

use super::machines::{commented, configuration, hosts, report};
use crate::cmd::control::print;

const HELP: &str = "The configuration goes to standard output; comments in it report what came along, what is changed and what is left out.
Switches, port groups with VLANs and security, shaping, and teams in their order become [[switch]], [[port_group]], shape and [[team]]. Each uplink is a stub: set its interface to the one of this host that takes
the place of the vmnic in the comment. Networks that were apart stay apart: a switch without uplinks is one for each host, and a network whose VLAN is not known or is private has a switch of its own.

A listing is a file for each host with what these commands print on it, as text or JSON (--formatter=json), with the command in front of its output (a prompt, or `+` as sh -x prints it); a policy without its command is left out:
  esxcli network vswitch standard list
  esxcli network vswitch standard portgroup list, or esxcfg-vswitch -l
  esxcli network vswitch standard policy security|shaping|failover get -v SWITCH
  esxcli network vswitch standard portgroup policy security|shaping|failover get -p PORT-GROUP
  esxcli network vswitch dvs vmware list
  net-dvs -l: VLANs of the distributed port groups in use on the host
  esxcli network nic list

Untried, for lack of a public listing: JSON, `policy shaping get`, `policy failover get`, private VLANs in net-dvs. The report marks what was read from them; compare it with the host.

Examples:
  vmlane import esxi esx1.txt esx2.txt esx3.txt > /etc/vmlane/conf.d/10-networks.toml
  vmlane import vmx web.vmx db.vmx --listing esx1.txt > /etc/vmlane/vmlane.toml
  ssh root@esx1 esxcfg-vswitch -l | vmlane import esxi -";

/// Turns listings of ESXi hosts' networks into a configuration for vmlane.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The listings, one for each host; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print a JSON object: "toml", "vms" (none), "notes"
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let options = Options { hosts: hosts(&self.files)?, ..Options::default() };
        let done = configuration(&[], &options)?;
        print(&if self.json { report(done, Vec::new())? } else { commented(&done) })?;
        Ok(ExitCode::SUCCESS)
    }
}
