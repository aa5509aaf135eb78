//! `vmlane link`.

use std::process::ExitCode;

use clap::ValueEnum;

use super::control::{Where, json, print};

const EXAMPLES: &str = "Examples:
  vmlane link web/nic0 down
  vmlane link web/nic0 up
  vmlane link web/nic0 down --json | jq .guest_told
  vmlane ports                                    LINK says which are down

While a link is down, no frame passes the port in either direction; frames are dropped and counted (drop_link_down). The
guest of a VMXNET3 card sees its carrier go and come. The guest of a virtio-net card does not, because QEMU does not take
the state of the link from a vhost-user back end; tell QEMU, too: set_link NETDEV off (monitor). The link stays down when
the daemon is started again while a keeper runs, until it is set up again or the VM is removed.";

/// Sets the link of a NIC up or down
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The NIC, as VM/nicN
    #[arg(value_name = "VM/NIC", value_parser = port)]
    port: (String, String),
    /// Up or down
    state: State,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Where,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    Up,
    Down,
}

/// Understands `VM/nicN`.
fn port(text: &str) -> Result<(String, String), String> {
    match text.rsplit_once('/') {
        Some((vm, nic)) if !vm.is_empty() && nic.starts_with("nic") => Ok((vm.to_owned(), nic.to_owned())),
        _ => Err("write VM/nicN, such as web/nic0; `vmlane ports` lists them".into()),
    }
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (vm, nic) = &self.port;
        let set = self.place.connect()?.set_link(vm, nic, self.state == State::Up)?;
        if self.json {
            print(&json(&set)?)?;
        } else if !set.guest_told && self.state == State::Down {
            print(&format!(
                "{}: no frame passes. Its guest is not told: QEMU takes no link state from a vhost-user back end\n",
                set.port
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::port;

    #[test]
    fn a_nic_is_named_with_its_vm() {
        assert_eq!(port("web/nic0"), Ok(("web".into(), "nic0".into())));
        assert!(["web", "/nic0", "web/eth0", "nic0", ""].iter().all(|text| port(text).is_err()));
    }
}
