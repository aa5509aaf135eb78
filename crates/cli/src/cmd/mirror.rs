//! `vmlane mirror`.

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use vmlane_api::{Client, Mirror, MirrorRequest, call};

use super::control::{Show, Where, bytes, only, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane mirror add web/nic0 --to ids/nic0              everything that web sends and gets
  vmlane mirror add prod --to ids/nic0 --direction in   what the VMs of a port group send: each frame once
  vmlane mirror add lan web/nic0 --to far --vlan 900    to an uplink, tagged (remote SPAN)
  vmlane mirror add prod --to ids/nic0 --snap 128 --name heads
  vmlane mirror list
  vmlane mirror show heads
  vmlane mirror remove heads

Copies go to a NIC whose guest is in promiscuous mode, or to an uplink, even across isolation groups. They never wait: if the destination has no room, they are dropped and counted (`vmlane mirror list`). The originals are not affected.
A mirror that is added here ends with the daemon; [[mirror]] in the configuration lasts. Adding needs the permission admin.";

/// Copies what passes some ports of the switch to another one (SPAN)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show all mirrors with their counts
    List(List),
    /// Show one mirror
    Show(One),
    /// Start a mirror; it lasts until it is removed or the daemon ends
    Add(Add),
    /// End a mirror that was added
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// What to copy: NICs (VM/nicN), uplinks, port groups
    #[arg(required = true, value_name = "FROM")]
    from: Vec<String>,
    /// The NIC or uplink that receives the copies
    #[arg(long, value_name = "PORT")]
    to: String,
    /// Name of the mirror [default: made from its destination]
    #[arg(long)]
    name: Option<String>,
    /// in: what a port sends into the switch; out: what it receives from the switch
    #[arg(long, value_enum, default_value = "both")]
    direction: Direction,
    /// Tag all copies with this VLAN instead of their own
    #[arg(long)]
    vlan: Option<u16>,
    /// Copy so many bytes of each frame at most
    #[arg(long, value_name = "BYTES")]
    snap: Option<u64>,
    #[command(flatten)]
    place: Where,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    In,
    Out,
    Both,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Name of the mirror
    name: String,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the mirror
    name: String,
    #[command(flatten)]
    show: Show,
}

/// As JSON.
#[derive(Serialize)]
struct Listed {
    mirrors: Vec<Mirror>,
}

/// All mirrors, or the one of a name.
fn list(show: &Show, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let ask = |client: &mut Client| {
        let mut mirrors = client.call(&call::Ports {})?.mirrors;
        only(&mut mirrors, name, "mirror", |mirror| &mirror.name)?;
        Ok(Listed { mirrors })
    };
    show.report(ask, |listed| Ok(mirrors(&listed.mirrors)))
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Add(add) => {
                let place = add.place.connect();
                place?.call(&call::MirrorAdd { mirror: request(add) })?;
            }
            What::Remove(Remove { name, place }) => {
                place.connect()?.call(&call::MirrorRemove { name })?;
            }
            What::List(List { show }) => return list(&show, None),
            What::Show(One { name, show }) => return list(&show, Some(&name)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn request(add: Add) -> MirrorRequest {
    let Add { from, to, name, direction, vlan, snap, .. } = add;
    let direction = match direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::Both => "both",
    };
    let name = name.unwrap_or_else(|| format!("to-{}", to.replace('/', "-")));
    MirrorRequest { name, from, to, direction: Some(direction.into()), vlan, snap }
}

/// A table of mirrors.
pub fn mirrors(mirrors: &[Mirror]) -> String {
    let mut rows =
        vec![row!["MIRROR", "FROM", "TO", "DIRECTION", "VLAN", "SNAP", "COPIES", "BYTES", "DROPPED"]];
    for mirror in mirrors {
        let or_none = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        rows.push(row![
            mirror.name,
            mirror.from.join(","),
            mirror.to,
            mirror.direction,
            or_none(mirror.vlan.map(u64::from)),
            or_none(mirror.snap),
            mirror.frames,
            bytes(mirror.bytes as f64),
            mirror.dropped,
        ]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn add(words: &str) -> MirrorRequest {
        match Line::try_parse_from(words.split(' ')).unwrap().args.what {
            What::Add(add) => request(add),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_mirror_is_named_after_its_destination_unless_it_is_given_a_name() {
        let plain = add("mirror add web/nic0 lan --to ids/nic0");
        assert_eq!((plain.name.as_str(), plain.direction.as_deref()), ("to-ids-nic0", Some("both")));
        assert_eq!(plain.from, ["web/nic0", "lan"]);
        let all = add("mirror add prod --to far --name m --direction in --vlan 900 --snap 96");
        assert_eq!((all.name.as_str(), all.vlan, all.snap), ("m", Some(900), Some(96)));
        for words in ["mirror add --to lan", "mirror add web/nic0", "mirror add a --to b --direction x"] {
            assert!(Line::try_parse_from(words.split(' ')).is_err(), "{words}");
        }
    }
}
