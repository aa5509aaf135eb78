//! `vmlane link`.

use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use serde::Serialize;
use vmlane_api::{Client, SwitchPort, call};

use super::control::{Show, Where, json, print, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane link web/nic0 down
  vmlane link web/nic0 up
  vmlane link up0 down                            an uplink: its team uses another one
  vmlane link web/nic0 down --json | jq .guest_notified
  vmlane link list
  vmlane link set web/nic0 down                   the same as the first line

While a link is down, no frame passes the port in either direction; frames are dropped and counted (drop_link_down). The guest of a VMXNET3 card loses its carrier. The guest of a virtio-net card does not, because QEMU does not take the link state from a vhost-user back end: set it in QEMU's monitor as well (set_link NETDEV off). If a keeper runs, the link stays down across restarts of the daemon, until it is set up again or the VM or uplink is removed.";

/// Lists links, and sets one of a NIC or an uplink up or down
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    set: Set,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List all links
    List(Show),
    /// Set a link up or down, as `vmlane link PORT up` does
    Set(Set),
}

#[derive(Debug, clap::Args)]
struct Set {
    /// The NIC, as VM/nicN, or the name of an uplink
    #[arg(value_name = "VM/NIC|UPLINK", required = true, value_parser = port)]
    port: Option<Port>,
    /// Up or down
    #[arg(required = true)]
    state: Option<State>,
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

/// As JSON.
#[derive(Serialize)]
struct Listed {
    links: Vec<Link>,
}

#[derive(Serialize)]
struct Link {
    port: String,
    /// `up` or `down`, as the operator set it.
    link: &'static str,
    /// A guest's driver, or the host's interface, is there, too.
    active: bool,
    switch: String,
}

impl Link {
    fn of(port: SwitchPort) -> Link {
        let link = if port.link_down { "down" } else { "up" };
        Link { port: port.name, link, active: port.active, switch: port.switch }
    }
}

fn list(show: &Show) -> anyhow::Result<ExitCode> {
    let ask = |client: &mut Client| {
        let ports = client.call(&call::Ports {})?.switch;
        Ok(Listed { links: ports.into_iter().map(Link::of).collect() })
    };
    show.report(ask, |listed| {
        let mut rows = vec![row!["PORT", "LINK", "ACTIVE", "SWITCH"]];
        rows.extend(
            listed
                .links
                .iter()
                .map(|link| row![link.port, link.link, if link.active { "yes" } else { "no" }, link.switch]),
        );
        Ok(table(&rows))
    })
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            Some(What::List(show)) => list(&show),
            Some(What::Set(set)) => set.run(),
            None => self.set.run(),
        }
    }
}

impl Set {
    fn run(self) -> anyhow::Result<ExitCode> {
        // Without them clap refuses the command line, but for the verb `list`.
        let (Some(port), Some(state)) = (self.port, self.state) else { bail!("name a port, and up or down") };
        let (mut client, up) = (self.place.connect()?, state == State::Up);
        let of_nic = matches!(port, Port::Nic { .. });
        let set = match port {
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
    use clap::Parser;

    use super::*;

    #[test]
    fn a_nic_is_named_with_its_vm_and_an_uplink_alone() {
        assert_eq!(port("web/nic0"), Ok(Port::Nic { vm: "web".into(), nic: "nic0".into() }));
        assert_eq!(port("up0"), Ok(Port::Uplink("up0".into())));
        assert!(["/nic0", "web/eth0", "web/", ""].iter().all(|text| port(text).is_err()));
    }

    #[test]
    fn the_verb_set_may_be_left_out() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let parsed = |words: &str| Line::try_parse_from(words.split(' ')).map(|line| line.args);
        for words in ["link web/nic0 down", "link set web/nic0 down", "link web/nic0 down --runtime-dir /r"] {
            let Args { what, set } = parsed(words).unwrap();
            let set = if let Some(What::Set(set)) = what { set } else { set };
            assert_eq!(set.state, Some(State::Down), "{words}");
        }
        let listed = parsed("link list --json").unwrap();
        assert!(matches!(listed.what, Some(What::List(Show { json: true, .. }))));
        assert!(["link", "link web/nic0", "link list down"].iter().all(|words| parsed(words).is_err()));
    }
}
