//! `vmlane wire`.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use vmlane_api::{Client, Wire, WireEnd, WireImpairment, call};

use super::control::{Show, Where, only, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane wire list
  vmlane wire list --watch 1
  vmlane wire show l1
  vmlane wire list --json | jq -r '.wires[] | select(.carrier | not) | .name'
  vmlane wire set l1 delay_us=10000 jitter_us=1000
  vmlane wire set l1 --to db/nic0 loss=1 loss_burst=3 rate=100M
  vmlane wire set l1 loss=0                       ends that, and leaves the rest
  vmlane wire cut l1
  vmlane wire join l1

A wire ([[wire]] in the configuration) joins two cards, or a card and an uplink, directly: every frame passes to the other end as it is, and to no one else. CARRIER: frames pass; otherwise, why not, or which end is not up. A>B, B>A: frames that were sent to the end B, to the end A. Below the table: what happens to frames on their way to an end, with counts.
Keys: delay_us, jitter_us (microseconds), loss, reorder, duplicate, corrupt (percent), loss_burst (frames), rate (bits in a second); as impair in the configuration, 0 ends each. What is set lasts until the next reload or the daemon's end. A wire that is cut has no carrier and drops frames (drop_link_down). If a keeper runs, it stays cut across restarts of the daemon, until it is joined.";

/// Shows, impairs and cuts wires, which join two ports directly
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
    /// Show one wire
    Show(One),
    /// Delay, lose, reorder, duplicate or corrupt frames on a wire, or limit its rate, until the next reload
    Set(Set),
    /// Let no frame pass, as if the cable were unplugged
    Cut(Named),
    /// End a cut
    Join(Named),
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the wire
    name: String,
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Name of the wire
    name: String,
    /// Change only what happens to frames on their way to this end (VM/nicN, or an uplink)
    #[arg(long, value_name = "END")]
    to: Option<String>,
    /// What to change; the rest stays
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<String>,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// Name of the wire
    name: String,
    #[command(flatten)]
    place: Where,
}

/// Understands `KEY=VALUE`: a line of TOML.
fn setting(text: &str) -> Result<String, String> {
    let (key, value) = text
        .split_once('=')
        .filter(|(key, value)| {
            !value.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        })
        .ok_or_else(|| "write KEY=VALUE, such as delay_us=10000 or loss=0.5".to_owned())?;
    let number = value.parse().ok().filter(|number: &f64| number.is_finite());
    Ok(match (value.parse::<i64>(), number) {
        (Ok(whole), _) => format!("{key} = {whole}"),
        (_, Some(number)) => format!("{key} = {number:?}"),
        _ => format!("{key} = {value:?}"),
    })
}

/// As JSON.
#[derive(Serialize)]
struct Listed {
    wires: Vec<Wire>,
}

/// All wires, or the one of a name.
fn list(show: &Show, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let ask = |client: &mut Client| {
        let mut wires = client.call(&call::Ports {})?.wires;
        only(&mut wires, name, "wire", |wire| &wire.name)?;
        Ok(Listed { wires })
    };
    show.report(ask, |listed| Ok(wires(&listed.wires)))
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::List(List { show }) => return list(&show, None),
            What::Show(One { name, show }) => return list(&show, Some(&name)),
            What::Set(Set { name, to, settings, place }) => {
                let impair = settings.join("\n");
                place.connect()?.call(&call::WireSet { wire: name, to, impair })?;
            }
            What::Cut(Named { name, place }) => {
                place.connect()?.call(&call::WireCut { wire: name, cut: true })?;
            }
            What::Join(Named { name, place }) => {
                place.connect()?.call(&call::WireCut { wire: name, cut: false })?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A table of wires, and a line for each direction in which something happens to frames.
pub fn wires(wires: &[Wire]) -> String {
    let mut rows = vec![row!["WIRE", "A", "B", "CARRIER", "A>B", "B>A"]];
    for wire in wires {
        let [a, b] = &wire.ends[..] else { continue };
        let down: Vec<&str> = wire.ends.iter().filter(|end| !end.up).map(|end| end.port.as_str()).collect();
        let carrier = match &down[..] {
            _ if wire.cut => "no: cut".to_owned(),
            [] => "yes".to_owned(),
            down => format!("no: {} down", down.join(", ")),
        };
        rows.push(row![wire.name, a.port, b.port, carrier, b.frames, a.frames]);
    }
    let impaired = wires.iter().flat_map(|wire| wire.ends.iter().filter_map(|end| impaired(&wire.name, end)));
    table(&rows) + &impaired.collect::<String>()
}

/// As [`Set`] has it, with counts.
fn impaired(wire: &str, end: &WireEnd) -> Option<String> {
    let WireEnd { port, waiting, lost, reordered, duplicated, corrupted, full, .. } = end;
    let WireImpairment { delay_us, jitter_us, loss, loss_burst, reorder, duplicate, corrupt, rate } =
        end.impair.as_ref()?;
    let keys = [
        ("delay_us", *delay_us as f64),
        ("jitter_us", *jitter_us as f64),
        ("loss", *loss),
        ("loss_burst", f64::from(*loss_burst)),
        ("reorder", *reorder),
        ("duplicate", *duplicate),
        ("corrupt", *corrupt),
        ("rate", *rate as f64),
    ];
    let keys = keys.iter().filter(|(_, value)| *value > 0.0).map(|(key, value)| format!(" {key}={value}"));
    let counts = [
        ("on their way", u64::from(*waiting)),
        ("lost", *lost),
        ("reordered", *reordered),
        ("duplicated", *duplicated),
        ("corrupted", *corrupted),
        ("dropped for a full queue", *full),
    ];
    let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    Some(format!("{wire} to {port}:{}: {}\n", keys.collect::<String>(), counts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_is_listed_with_the_end_that_is_down_and_the_frames_of_each_way() {
        let end = |port: &str, up, frames| WireEnd { port: port.into(), up, frames, ..WireEnd::default() };
        let wire = |name: &str, b_up| Wire {
            name: name.into(),
            cut: false,
            carrier: b_up,
            ends: vec![end("a/nic0", true, 7), end("b/nic0", b_up, 12)],
        };
        let mut late = wire("l3", false);
        late.cut = true;
        let [_, b] = &mut late.ends[..] else { panic!("two ends") };
        b.impair = Some(WireImpairment {
            delay_us: 10_000,
            jitter_us: 0,
            loss: 0.5,
            loss_burst: 0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            rate: 100_000_000,
        });
        (b.waiting, b.lost) = (3, 4);
        let text = wires(&[wire("l1", true), wire("l2", false), late]);
        for line in [
            "l1    a/nic0  b/nic0  yes",
            "l2    a/nic0  b/nic0  no: b/nic0 down   12    7",
            "l3    a/nic0  b/nic0  no: cut ",
            "\nl3 to b/nic0: delay_us=10000 loss=0.5 rate=100000000: 3 on their way, 4 lost, 0 reordered, ",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }

    #[test]
    fn settings_are_numbers_without_quotes_and_other_values_with() {
        for (text, line) in [
            ("delay_us=10000", "delay_us = 10000"),
            ("loss=.5", "loss = 0.5"),
            ("loss=1.", "loss = 1.0"),
            ("rate=100M", "rate = \"100M\""),
            ("loss=nan", "loss = \"nan\""),
            ("loss=1\n[[vm]]", "loss = \"1\\n[[vm]]\""),
        ] {
            assert_eq!(setting(text).as_deref(), Ok(line));
        }
        assert!(["loss", "loss=", "a b=3", "[[vm]]=3"].iter().all(|text| setting(text).is_err()));
    }
}
