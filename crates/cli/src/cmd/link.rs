//! `vmlane link`.

use std::process::ExitCode;

use clap::ValueEnum;

use vmlane_api::call;

use super::control::{Where, json, print};

const EXAMPLES: &str = "Examples:
  vmlane link web/nic0 down
  vmlane link web/nic0 up
  vmlane link up0 down                            an uplink: its team uses another one
  vmlane link web/nic0 down --json | jq .guest_notified
  vmlane ports                                    LINK shows which are down

While a link is down, no frame passes the port in either direction; frames are dropped and counted (drop_link_down). The guest of a VMXNET3 card loses its carrier. The guest of a virtio-net card does not, because QEMU does not take the link state from a vhost-user back end: set it in QEMU's monitor as well (set_link NETDEV off). If a keeper runs, the link stays down across restarts of the daemon, until it is set up again or the VM or uplink is removed.";

/// Sets the link of a NIC or an uplink up or down
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The NIC, as VM/nicN, or the name of an uplink
    #[arg(value_name = "VM/NIC|UPLINK", value_parser = port)]
    port: Port,
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

#[derive(Clone, Debug, PartialEq, Eq)]
enum Port {
    Nic { vm: String, nic: String },
    Uplink(String),
}

/// Understands `VM/nicN`, and a name without a slash.
fn port(text: &str) -> Result<Port, String> {
    match text.rsplit_once('/') {
        Some((vm, nic)) if !vm.is_empty() && nic.starts_with("nic") => {
            Ok(Port::Nic { vm: vm.to_owned(), nic: nic.to_owned() })
        }
        None if !text.is_empty() => Ok(Port::Uplink(text.to_owned())),
        _ => {
            Err("write VM/nicN, such as web/nic0, or the name of an uplink; `vmlane ports` lists them".into())
        }
    }
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (mut client, up) = (self.place.connect()?, self.state == State::Up);
        let of_nic = matches!(self.port, Port::Nic { .. });
        let set = match self.port {
            Port::Nic { vm, nic } => client.call(&call::Link { vm, nic, up })?,
            Port::Uplink(uplink) => client.call(&call::LinkUplink { uplink, up })?,
        };
        if self.json {
            print(&json(&set)?)?;
        } else if of_nic && !set.guest_notified && !up {
            print(&format!(
                "{}: no frame passes. Its guest is not notified: QEMU takes no link state from a vhost-user back end\n",
                set.port
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::{Port, port};

    #[test]
    fn a_nic_is_named_with_its_vm_and_an_uplink_alone() {
        assert_eq!(port("web/nic0"), Ok(Port::Nic { vm: "web".into(), nic: "nic0".into() }));
        assert_eq!(port("up0"), Ok(Port::Uplink("up0".into())));
        assert!(["/nic0", "web/eth0", "web/", ""].iter().all(|text| port(text).is_err()));
    }
}
