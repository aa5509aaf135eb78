//! `vmlane doctor`: finds what makes the network between two machines slow or broken.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use vmlane_bench::{Address, Error, Target};
use vmlane_doctor::{Diagnosis, Plan, examine, proof};

use super::bench::Reach;
use super::control::Where;
use super::exit_codes::{NOT_EXAMINED, USAGE};

mod captures;
mod from_host;
mod prove;

const EXAMPLES: &str = "\
Examples:
  vmlane bench server --doctor --listen tcp:0.0.0.0     in VM b: serve, and answer questions about this machine
  vmlane doctor --to tcp:10.77.0.2                      in VM a: what is wrong between a and b
  vmlane doctor --to tcp:10.77.0.2 --quick              the same in less than 5 s
  vmlane doctor --to vsock:4 --json                     over vsock, as JSON
  vmlane doctor --to tcp:10.77.0.2 --prove              try the remedies that are settings of this machine, measure, put back
  vmlane doctor --pcap a.pcap b.pcapng                  what is wrong in captures of one end or of both
  vmlane doctor web db                                  on the host: the switch, QEMU and both VMs
  vmlane doctor lab NAME                                the guests of a lab, and their host
  vmlane doctor --undo                                  restore the settings that a killed proof has left

With --to it reads the settings and counters of both machines (interfaces, offloads, rings, queues, interrupts, queueing disciplines, filters, firewalls, routes, TCP, CPUs, vsock), measures each \
direction alone, and lists what it found, the most important first, with the commands that fix it. A finding is certain if its cause was seen to act meanwhile, likely or possible; what is slow and has no known cause is listed as unexplained. It names what it had no time for and what it could not read (ip, tc and nft read some of it). It changes nothing. Run it as root: drivers report more to root.

With --prove it asks, then changes settings of this machine that last until the next start at most (MTU, offloads, rings, queues, interrupts, \
TCP's), one remedy at a time, measures without and with it in turns, and restores all. A guardian process restores them if this one is interrupted or killed; `vmlane doctor --undo` restores them from a record in /run/vmlane-doctor.

With one or two VMs it reads, on their host, the daemon's counters and status, how QEMU was started, where its threads run, and whether a quota stops them; a VM in which `vmlane bench server --doctor --listen vsock:` runs adds its own settings. While no daemon runs, it reports the devices whose sessions the keeper \
holds for the next one, or has closed, and what to do. With `lab NAME` it examines the way from the lab's first \
guest to its second one, and then their host.

With --pcap it examines the TCP connections in the files, and no machine. A capture at the sending end that contains the connection's first segments is best; 128 bytes of each packet are enough (tcpdump -s 128 -w FILE), 256 in tunnels (VXLAN, Geneve, GRE, IP in IP). Other packets, such as vsock's, are only counted.

Exit codes: 0 nothing found; 1 findings; 2 wrong usage; 3 the other machine or a file could not be examined, or a measurement failed and nothing explains it (a file without a packet that can be), no remedy could be tried, or settings could not be restored. docs/guide/slow-network.md explains each finding.";

/// Find what makes the network between two machines slow or broken
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where `vmlane bench server --doctor` runs: tcp:HOST[:PORT] or vsock:CID[:PORT]
    #[arg(long, value_name = "ADDRESS", value_parser = |text: &str| text.parse::<Target>(), required_unless_present_any = ["undo", "guard", "pcap", "vms"])]
    to: Option<Target>,
    /// One or two VMs of this host's daemon, or "lab" and a lab's name
    #[arg(value_name = "VM", num_args = 0..=2, conflicts_with_all = ["to", "pcap", "prove", "undo", "guard"])]
    vms: Vec<String>,
    #[command(flatten)]
    place: Where,
    /// Examine these captures (pcap, pcapng) instead of machines
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["to", "quick", "prove", "undo", "guard", "secret_file", "vms"])]
    pcap: Vec<PathBuf>,
    /// Take less than 5 s instead of 40 s: measure shorter, without several connections and load
    #[arg(long)]
    quick: bool,
    /// Try each remedy that is a setting of this machine: measure without and with it, and restore it
    #[arg(long)]
    prove: bool,
    /// Do not ask before settings are changed for a proof
    #[arg(long, requires = "prove")]
    yes: bool,
    /// Restore settings after a proof that was killed together with its guardian process
    #[arg(long, conflicts_with_all = ["to", "quick", "prove", "json"])]
    undo: bool,
    /// Make a proof's changes and take them back (started by the doctor)
    #[arg(long, hide = true, conflicts_with_all = ["to", "quick", "prove", "json", "undo"])]
    guard: bool,
    #[command(flatten)]
    reach: Reach,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.guard {
            return Ok(prove::guard());
        }
        if self.undo {
            return Ok(prove::undo());
        }
        if !self.vms.is_empty() {
            return Ok(from_host::examine(&self));
        }
        if !self.pcap.is_empty() {
            return Ok(captures::judge(&self));
        }
        let done = prove::may_prove(&self).and_then(|()| {
            let diagnosis = self.diagnose()?;
            if !self.json {
                print(&diagnosis.text());
            }
            let proven = if self.prove { Some(prove::prove(&self, &diagnosis)?) } else { None };
            Ok((diagnosis, proven.flatten()))
        });
        let (diagnosis, proven) = match done {
            Ok(done) => done,
            Err(error) => {
                eprintln!("vmlane: {error}");
                return Ok(ExitCode::from(if error.is_usage() { USAGE } else { NOT_EXAMINED }));
            }
        };
        let text = match (&proven, self.json) {
            (proven, true) => {
                let shown = proven.as_ref().map(|proven| proof::json(proven, &diagnosis.evidence));
                diagnosis.json_with(shown) + "\n"
            }
            (Some(proven), false) => proof::text(proven, &diagnosis.evidence),
            (None, false) => String::new(),
        };
        print(&text);
        let is_well = proven.as_ref().is_none_or(|proven| proven.is_restored() && proven.error.is_none());
        Ok(ExitCode::from(if is_well { diagnosis.exit_code() } else { NOT_EXAMINED }))
    }

    fn to(&self) -> Result<&Target, Error> {
        self.to.as_ref().ok_or_else(|| Error::Usage("--to is missing".to_owned()))
    }

    /// Reports progress to a terminal.
    fn progress(&self) -> impl Fn(&str) + use<> {
        let is_seen = std::io::stderr().is_terminal() && !self.json;
        move |what: &str| {
            if is_seen {
                eprintln!("doctor: {what}");
            }
        }
    }

    fn diagnose(&self) -> Result<Diagnosis, Error> {
        let to = self.to()?;
        let known = matches!(to.control, Address::Tcp { .. } | Address::Vsock { .. });
        if to.datagrams || !known {
            return Err(Error::Usage(format!("address \"{to}\": write tcp:HOST[:PORT] or vsock:CID[:PORT]")));
        }
        let options = self.reach.options()?;
        let plan = if self.quick { Plan::quick() } else { Plan::full() };
        let began = Instant::now();
        let evidence = examine(&to.control, &options, plan, &self.progress())?;
        Ok(Diagnosis::new(evidence, began.elapsed().as_secs_f64()))
    }
}

/// To the reader, if there still is one: a pipe that was closed must not keep settings from being put back.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
