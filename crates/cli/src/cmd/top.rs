//! `vmlane top`: live traffic.
//!
//! On a terminal, `screen.rs` asks the daemon and reads keys, `app.rs` is the state that keys change,
//! `views.rs` makes a table of two samples of the daemon, and `draw.rs` draws it. Elsewhere, tables or JSON
//! follow each other.

mod app;
mod draw;
pub(super) mod rates;
mod screen;
mod table;
pub(super) mod views;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use self::rates::{Rates, Sample, rates};
use self::screen::sample;
use self::table::megabits;
use self::views::{View, table};
use super::control::{Where, is_terminal, json, print, seconds};

const EXAMPLES: &str = "Examples:
  vmlane top
  vmlane top --interval 0.5 --count 10
  vmlane top --once
  vmlane top --json | jq -r '[.seconds, .bytes_per_second] | @tsv'

On a terminal, keys choose what is shown: v VMs, s sockets, n network (cards and uplinks), w workers. < and > choose the column to sort by, r
reverses it, f or / filters rows, h shows all keys, q quits. See `vmlane stats` for the queues of cards, `vmlane ports` for connections, `vmlane route status` for other hosts. Without a terminal, and with --json, one table or object is printed after the other.

Each column has one unit, in the second line of its heading (frames: per second); --json has bytes. SENT and RECEIVED: in the guest's sockets (VMCI's streams, virtio-vsock's packets). FRAMES, ON WIRE: of all cards of the VM, in both directions. NOTICES: datagrams that announce bytes or room, in
either direction. MOSTLY: why most of the DROPS were dropped. LOAD: the share of time that a worker was busy.";

/// Shows live traffic per VM, card and worker
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    place: Where,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Stop after this many updates
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Print one table, also on a terminal
    #[arg(long, conflicts_with = "count")]
    once: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let interactive = is_terminal() && std::io::stdin().is_terminal();
        if interactive && !self.json && !self.once {
            screen::run(&self.place, self.interval, self.count)?;
        } else {
            self.follow()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints one table or object after the other.
    fn follow(self) -> anyhow::Result<()> {
        let mut before = sample(&self.place)?;
        let mut left = if self.once { Some(1) } else { self.count };
        while left != Some(0) {
            std::thread::sleep(self.interval);
            let now = sample(&self.place)?;
            let rates = rates(&before, &now);
            let text = if self.json { json(&rates)? } else { plain(&before, &now, &rates) };
            if !print(&text)? {
                break;
            }
            before = now;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }
}

/// The first view of the screen.
pub(super) fn plain(before: &Sample, now: &Sample, rates: &Rates) -> String {
    let view = table(View::Vms, before, now);
    let names = view.columns.iter().map(|column| column.name.to_owned()).collect();
    let units = view.columns.iter().map(|column| column.unit.to_owned()).collect();
    let rows = view.rows.iter().map(|row| row.iter().map(ToString::to_string).collect());
    format!(
        "vmlane {}, up {:.0} s: {} Mbit/s in sockets\n{}\n",
        now.status.daemon,
        now.status.uptime_seconds,
        megabits(rates.bytes_per_second),
        super::control::table(&[names, units].into_iter().chain(rows).collect::<Vec<_>>())
    )
}
