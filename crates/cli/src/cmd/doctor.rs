//! `vmlane doctor`: finds what makes the network between two machines slow or broken.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use vmlane_bench::{Address, Error, IpVersion, Options, Secret, Target};
use vmlane_doctor::{Diagnosis, Plan, examine};

const EXAMPLES: &str = "\
Examples:
  vmlane bench server --doctor --listen tcp:0.0.0.0     in VM b: serve, and tell about this machine
  vmlane doctor --to tcp:10.77.0.2                      in VM a: what is wrong between a and b
  vmlane doctor --to tcp:10.77.0.2 --quick              the same in less than 5 s
  vmlane doctor --to vsock:4 --json                     over vsock, as JSON

It reads the settings and counters of both machines (interfaces, offloads, rings, queues, interrupts, TCP, CPUs, vsock), measures each \
direction alone, and lists what it found, the most important first, with the commands that mend it. It changes nothing; \
run it as root, so that drivers tell everything.

Exit codes: 0 nothing found, 1 findings, 2 usage, 3 the other machine could not be examined. docs/guide/slow-network.md \
explains each finding.";

/// Find what makes the network between two machines slow or broken
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where `vmlane bench server --doctor` runs: tcp:HOST[:PORT] or vsock:CID[:PORT]
    #[arg(long, value_name = "ADDRESS", value_parser = |text: &str| text.parse::<Target>())]
    to: Target,
    /// Less than 5 s instead of less than 30 s: shorter measurements, none of loopbacks and of round trips under load
    #[arg(long)]
    quick: bool,
    /// The secret that the server asks for
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Use IPv4 only, where a name has addresses of both kinds
    #[arg(short = '4', conflicts_with = "v6")]
    v4: bool,
    /// Use IPv6 only
    #[arg(short = '6')]
    v6: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let diagnosis = match self.diagnose() {
            Ok(diagnosis) => diagnosis,
            Err(error) => {
                eprintln!("vmlane: {error}");
                return Ok(ExitCode::from(if error.is_usage() { 2 } else { 3 }));
            }
        };
        let text = if self.json { diagnosis.json() + "\n" } else { diagnosis.text() };
        std::io::stdout().lock().write_all(text.as_bytes())?;
        Ok(ExitCode::from(diagnosis.exit_code()))
    }

    fn diagnose(&self) -> Result<Diagnosis, Error> {
        let known = matches!(self.to.control, Address::Tcp { .. } | Address::Vsock { .. });
        if self.to.datagrams || !known {
            return Err(Error::Usage(format!(
                "address \"{}\": write tcp:HOST[:PORT] or vsock:CID[:PORT]",
                self.to
            )));
        }
        let ip = match (self.v4, self.v6) {
            (true, _) => Some(IpVersion::V4),
            (_, true) => Some(IpVersion::V6),
            _ => None,
        };
        let options = Options { secret: self.secret_file.as_deref().map(Secret::read).transpose()?, ip };
        let plan = if self.quick { Plan::quick() } else { Plan::full() };
        let began = Instant::now();
        let is_seen = std::io::stderr().is_terminal() && !self.json;
        let say = move |what: &str| {
            if is_seen {
                eprintln!("doctor: {what}");
            }
        };
        let evidence = examine(&self.to.control, &options, plan, &say)?;
        Ok(Diagnosis::new(evidence, began.elapsed().as_secs_f64()))
    }
}
