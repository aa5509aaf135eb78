//! `vmlane metrics`: what the daemon counts, for Prometheus.
//!
//! A process of its own that asks the daemon at the control socket, where it needs no more than `may =
//! "observe"`; the daemon itself has no network. `families.rs` lists what is shown and under which names,
//! `exporter.rs` asks the daemon, `seen.rs` counts that, `exposition.rs` knows the two text formats,
//! `http.rs` serves them, `listen.rs` finds the sockets to serve at.

mod exporter;
mod exposition;
mod families;
mod http;
mod listen;
mod seen;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use self::exporter::Exporter;
use self::exposition::Format;
use super::control::{Where, print};

const EXAMPLES: &str = "Examples:
  vmlane metrics
  vmlane metrics --format prometheus | promtool check metrics
  vmlane metrics --listen
  vmlane metrics --listen 127.0.0.1:9500
  systemctl enable --now vmlane-metrics.socket

Without --listen, everything is printed once; the exit code is 1 if no daemon answers. With it, GET /metrics is answered
until the process is stopped: as OpenMetrics if the client accepts that, else in Prometheus's text format. `vmlane_up` is 0
while no daemon answers. Sockets that systemd passes (vmlane-metrics.socket) are served without --listen.

The exporter only needs to query the daemon: run it as a user of its own, and allow that user in the daemon's configuration: [[control]] uid = NUMBER, may = \"observe\".

Names, alert rules and a Grafana board: docs/guide/watching.md.";

/// Prints counters and states as OpenMetrics, or serves them to Prometheus
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    place: Where,
    /// Serve http://ADDRESS/metrics [without a value: 127.0.0.1:10977]. A port alone means 127.0.0.1:PORT
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = listen::DEFAULT, value_parser = listen::address)]
    listen: Option<SocketAddr>,
    /// Allow addresses that other hosts can reach: they see the names and traffic of all VMs
    #[arg(long)]
    allow_remote: bool,
    /// Show at most so many VMs; vmlane_vms_left_out counts the others
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    max_vms: usize,
    /// Format without --listen
    #[arg(long, value_enum, default_value = "openmetrics", conflicts_with = "listen")]
    format: Format,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let exporter = Exporter::new(self.place, self.max_vms);
        let listeners = listen::listeners(self.listen, self.allow_remote)?;
        if listeners.is_empty() {
            return once(&exporter, self.format);
        }
        let exporter = Arc::new(exporter);
        let page: Arc<http::Page> = Arc::new(move |accept| {
            let format = Format::wanted(accept);
            (format.content_type(), format.of(&exporter.text()))
        });
        for listener in &listeners {
            let address = listener.local_addr().context("a socket to serve at")?;
            // Nothing is lost if it is closed.
            let _ = writeln!(std::io::stderr(), "serving http://{address}/metrics");
        }
        http::serve(listeners, http::Bounds::default(), &page).context("starting a thread")?;
        Ok(ExitCode::SUCCESS)
    }
}

fn once(exporter: &Exporter, format: Format) -> anyhow::Result<ExitCode> {
    let (text, up) = exporter.scrape();
    print(&format.of(&text))?;
    Ok(if up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
