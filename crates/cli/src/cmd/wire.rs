//! `vmlane wire`.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use vmlane_api::{Wire, call};

use super::control::{Show, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane wire list
  vmlane wire list --watch 1
  vmlane wire list --json | jq -r '.wires[] | select(.carrier | not) | .name'

A wire ([[wire]] in the configuration) joins two cards, or a card and an uplink, directly: every frame passes to the other end as it is, and to no one else. CARRIER: frames pass; otherwise, which end is not up. A>B, B>A: frames that arrived at the end B, at the end A.";

/// Shows wires, which join two ports directly
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show all wires with their ends and counts
    List(List),
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    show: Show,
}

/// All of them, as JSON.
#[derive(Serialize)]
struct Listed {
    wires: Vec<Wire>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let What::List(List { show }) = self.what;
        show.report(
            |client| Ok(Listed { wires: client.call(&call::Ports {})?.wires }),
            |listed| Ok(wires(&listed.wires)),
        )
    }
}

/// A table of wires.
fn wires(wires: &[Wire]) -> String {
    let mut rows = vec![row!["WIRE", "A", "B", "CARRIER", "A>B", "B>A"]];
    for wire in wires {
        let [a, b] = &wire.ends[..] else { continue };
        let down: Vec<&str> = wire.ends.iter().filter(|end| !end.up).map(|end| end.port.as_str()).collect();
        let carrier = match &down[..] {
            [] => "yes".to_owned(),
            down => format!("no: {} down", down.join(", ")),
        };
        rows.push(row![wire.name, a.port, b.port, carrier, b.frames, a.frames]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use vmlane_api::WireEnd;

    use super::*;

    #[test]
    fn a_wire_is_listed_with_the_end_that_is_down_and_the_frames_of_each_way() {
        let end = |port: &str, up, frames| WireEnd { port: port.into(), up, frames };
        let wire = |name: &str, b_up| Wire {
            name: name.into(),
            carrier: b_up,
            ends: vec![end("a/nic0", true, 7), end("b/nic0", b_up, 12)],
        };
        let text = wires(&[wire("l1", true), wire("l2", false)]);
        for line in ["l1    a/nic0  b/nic0  yes", "l2    a/nic0  b/nic0  no: b/nic0 down   12    7"] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}
