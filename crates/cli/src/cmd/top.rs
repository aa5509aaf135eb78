//! `vmlane top`: live traffic.
//!
//! On a terminal, `screen.rs` asks the daemon and reads keys, `app.rs` is the state that keys change, `views.rs` makes a table of two
//! looks at the daemon, and `draw.rs` draws it. Elsewhere, tables or JSON follow each other.

mod app;
mod draw;
mod rates;
mod screen;
mod table;
mod views;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use vmlane_api::{Status, call};

use self::rates::{Rates, rates};
use super::control::{Where, bytes, is_terminal, json, print, seconds};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane top
  vmlane top --interval 0.5 --count 10
  vmlane top --once
  vmlane top --json | jq -r '[.seconds, .bytes_per_second] | @tsv'

On a terminal, keys choose what is shown: v VMs, n network (cards and uplinks), w workers. < and >
choose the column to sort by, r reverses it, f or / filters rows, h shows all keys, q quits. `vmlane stats` counts queues of
cards, `vmlane ports` lists connections, `vmlane route status` other hosts. Without a terminal, with --once and with --json, a table or an object follows the other.

SENT and RECEIVED are bytes per second in the guest's sockets (VMCI's streams, virtio-vsock's packets). NOTICES are datagrams that announce bytes or room, in
either direction. ACCESSES are trapped register accesses. LOAD is the share of the time in which a worker had work.";

/// Shows live traffic per VM, card, queue, connection and worker
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
        let mut before = self.place.connect()?.call(&call::Stats {})?;
        let mut left = if self.once { Some(1) } else { self.count };
        while left != Some(0) {
            std::thread::sleep(self.interval);
            let mut client = self.place.connect()?;
            let (status, now) = (client.call(&call::Status {})?, client.call(&call::Stats {})?);
            let rates = rates(&before, &now, &status);
            let text = if self.json { json(&rates)? } else { plain(&rates, &status) };
            if !print(&text)? {
                break;
            }
            before = now;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }
}

fn plain(rates: &Rates, status: &Status) -> String {
    let speed = |value: f64| format!("{}/s", bytes(value));
    let mut rows = vec![row![
        "VM",
        "CID",
        "READY",
        "CONNECTIONS",
        "SENT",
        "RECEIVED",
        "NOTICES",
        "DATAGRAMS",
        "INTERRUPTS",
        "ACCESSES",
        "FRAMES OUT",
        "FRAMES IN",
        "ON WIRE",
        "DROPS"
    ]];
    for vm in &rates.vms {
        rows.push(row![
            vm.name,
            vm.cid.map_or_else(|| "-".into(), |cid| cid.to_string()),
            if vm.ready { "yes" } else { "no" },
            vm.connections,
            speed(vm.sent_per_second),
            speed(vm.received_per_second),
            format!("{:.0}/s", vm.notices_per_second),
            format!("{:.0}/s", vm.datagrams_per_second),
            format!("{:.0}/s", vm.interrupts_per_second),
            format!("{:.0}/s", vm.accesses_per_second),
            format!("{:.0}/s", vm.frames_sent_per_second),
            format!("{:.0}/s", vm.frames_received_per_second),
            speed(vm.frame_bytes_per_second),
            format!("{:.0}/s", vm.drops_per_second),
        ]);
    }
    format!(
        "vmlane {}, up {:.0} s: {} in all\n{}\n",
        status.daemon,
        status.uptime_seconds,
        speed(rates.bytes_per_second),
        super::control::table(&rows)
    )
}
