//! `vmlane capture`.

mod file;
mod output;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use vmlane_api::{CaptureLink, CapturePoint, CaptureRequest, ClientError, call};
use vmlane_capture::Reader;

use super::control::Where;
use file::Point;
use output::{Files, Output};

const EXAMPLES: &str = "Examples:
  vmlane capture -w all.pcapng
  vmlane capture web/nic0 lan -s 96 -w heads.pcapng
  vmlane capture --vm web --port 5000 -c 100 -w web.pcapng
  vmlane capture --switch storage -w storage.pcapng
  vmlane capture vsock:web --port 5000 -w streams.pcapng
  vmlane capture lan -w - | tshark -r -
  tcpdump -y EN10MB -ddd 'tcp port 80' | vmlane capture web/nic0 --bpf - -w web.pcapng
  vmlane capture web/nic0 -C 100 -W 10 -w ring.pcapng

Points are VM/NIC, the names of uplinks, and vsock:VM for the streams and datagrams of a VM; without any, all are captured. OUT: what the guest sent, before any decision about it. IN: what was delivered to it, or dropped on the way to it. A packet's comment states why a frame was dropped, the segment size of a super-frame (gso), and how many records were lost just before it.

Needs the permission admin. This program writes the file, not the daemon.";

/// How long the daemon may take to begin or end a capture.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two polls of an empty ring; and between two lines on the terminal.
const SHORTEST: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(10);
const PROGRESS: Duration = Duration::from_millis(500);

/// Record frames at ports of the switch, and what sockets of VMs exchange, as pcapng
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Points to capture: VM/NIC, the name of an uplink, vsock:VM
    #[arg(value_name = "POINT")]
    points: Vec<String>,
    /// File to write; - is standard output
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    file: PathBuf,
    /// All points of this VM (may be given several times)
    #[arg(long, value_name = "VM")]
    vm: Vec<String>,
    /// All ports of this switch (may be given several times)
    #[arg(long, value_name = "SWITCH")]
    switch: Vec<String>,
    /// Bytes of each frame to record
    #[arg(short = 's', long = "snap", value_name = "BYTES", default_value_t = 262_144)]
    snap: u32,
    /// End after so many frames
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Begin another file after so many million bytes
    #[arg(short = 'C', long = "file-size", value_name = "MEGABYTES", value_parser = clap::value_parser!(u64).range(1..))]
    file_size: Option<u64>,
    /// Write so many files at most, then the first one again (with -C)
    #[arg(short = 'W', long = "files", value_name = "COUNT", requires = "file_size", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,
    /// Only frames of this VLAN
    #[arg(long, value_name = "VLAN", value_parser = clap::value_parser!(u16).range(0..=4094))]
    vlan: Option<u16>,
    /// Only frames from or to this address
    #[arg(long, value_name = "MAC")]
    mac: Option<String>,
    /// Only streams and datagrams from or to this CID
    #[arg(long, value_name = "CID")]
    cid: Option<u32>,
    /// Only what comes from or goes to this TCP, UDP or vsock port
    #[arg(long, value_name = "PORT")]
    port: Option<u32>,
    /// Only frames that this packet filter accepts, as printed by tcpdump -y EN10MB -ddd; - is standard input
    #[arg(long, value_name = "FILE")]
    bpf: Option<PathBuf>,
    /// Memory for records that are not written yet, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    buffer: u64,
    /// When the daemon ends, wait for the next one and continue
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    place: Where,
}

/// Why a part of the capture is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// It was asked for: a signal, a count, a reader that is gone.
    Done,
    /// The daemon ended.
    Daemon,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone()).context("signal handlers")?;
        }
        let request = self.request()?;
        let (mut points, mut ring, mut link) = self.begin(&request)?;
        let files = Files {
            path: self.file.clone(),
            size: self.file_size.map(|size| size * 1_000_000),
            count: self.files,
        };
        let snap = self.snap.min(u32::try_from(vmlane_capture::MAX_RECORD).unwrap_or(u32::MAX));
        let mut output = Output::new(files, points.iter().map(Point::new).collect(), snap)?;
        let outcome = loop {
            let over = self.part(&mut ring, &mut link, &mut output, &interrupted);
            match over {
                Ok(Over::Daemon) if self.wait && !interrupted.load(Ordering::Relaxed) => {
                    eprintln!("vmlane: the daemon ended; waiting for the next one");
                    match self.next_daemon(&request, &points, &interrupted)? {
                        Some((again, next, to)) => (points, ring, link) = (again, next, to),
                        None => break Ok(Over::Done),
                    }
                    output.begin_anew();
                }
                over => break over,
            }
        };
        let closed = output.finish();
        let summary = output.counts();
        match (outcome, closed) {
            (Ok(over), Ok(())) => {
                eprintln!("{summary}");
                if over == Over::Daemon {
                    bail!(
                        "the daemon ended, and the capture with it ({}); --wait goes on with the next one",
                        output.place()
                    );
                }
                Ok(ExitCode::SUCCESS)
            }
            (Err(error), _) | (_, Err(error)) => {
                Err(error.context(format!("{}: {summary}; the file lacks some of these", output.place())))
            }
        }
    }

    fn request(&self) -> anyhow::Result<CaptureRequest> {
        Ok(CaptureRequest {
            points: [self.points.clone(), self.ports_of_switches()?].concat(),
            vms: self.vm.clone(),
            snap: self.snap,
            buffer: self.buffer << 20,
            vlan: self.vlan,
            mac: self.mac.clone(),
            cid: self.cid,
            port: self.port,
            program: self.bpf.as_deref().map(read_program).transpose()?,
        })
    }

    /// The names of all ports of the switches that were named.
    fn ports_of_switches(&self) -> anyhow::Result<Vec<String>> {
        if self.switch.is_empty() {
            return Ok(Vec::new());
        }
        let ports = self.place.connect()?.with_timeout(TIMEOUT).call(&call::Ports {})?.switch;
        if let Some(empty) = self.switch.iter().find(|name| !ports.iter().any(|port| port.switch == **name)) {
            let known: BTreeSet<&str> = ports.iter().map(|port| port.switch.as_str()).collect();
            let known: Vec<&str> = known.into_iter().collect();
            bail!("no port is on a switch {empty:?}; there are ports on: {}", known.join(", "));
        }
        let chosen = ports.into_iter().filter(|port| self.switch.contains(&port.switch));
        Ok(chosen.map(|port| port.name).collect())
    }

    fn begin(&self, request: &CaptureRequest) -> anyhow::Result<(Vec<CapturePoint>, Reader, CaptureLink)> {
        let client = self.place.connect()?.with_timeout(TIMEOUT);
        let (captured, file, link) = client.capture(request.clone())?;
        Ok((captured.points, Reader::new(&file)?, link))
    }

    /// The same capture of a daemon that follows. None: interrupted.
    fn next_daemon(
        &self,
        request: &CaptureRequest,
        points: &[CapturePoint],
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Option<(Vec<CapturePoint>, Reader, CaptureLink)>> {
        // The points as they were: a file names its points at its begin.
        let names = points.iter().map(|point| point.name.clone()).collect();
        let request = CaptureRequest { points: names, vms: Vec::new(), ..request.clone() };
        while !interrupted.load(Ordering::Relaxed) {
            match self.begin(&request) {
                Ok(begun) => return Ok(Some(begun)),
                Err(error)
                    if error.downcast_ref::<ClientError>().is_some_and(|error| error.code().is_none()) =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes records until the capture is over.
    fn part(
        &self,
        ring: &mut Reader,
        link: &mut CaptureLink,
        output: &mut Output,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Over> {
        let (mut pause, mut last_shown) = (SHORTEST, Instant::now());
        let shows = io::stderr().is_terminal();
        loop {
            let mut any = false;
            while let Some(record) = ring.take()? {
                any = true;
                if !output.add(&record)? {
                    return Ok(Over::Done);
                }
                if self.count.is_some_and(|count| output.written() >= count) {
                    link.stop(TIMEOUT);
                    output.count(ring);
                    return Ok(Over::Done);
                }
            }
            output.count(ring);
            if shows && last_shown.elapsed() > PROGRESS {
                last_shown = Instant::now();
                eprint!("\r{} ", output.counts());
                let _ = io::stderr().flush();
            }
            if any {
                pause = SHORTEST;
                continue;
            }
            let ended = link.closed();
            if ended || interrupted.load(Ordering::Relaxed) {
                let over = if !ended && link.stop(TIMEOUT) { Over::Done } else { Over::Daemon };
                while let Some(record) = ring.take()? {
                    if !output.add(&record)? {
                        break;
                    }
                }
                output.count(ring);
                return Ok(over);
            }
            if !output.flush()? {
                return Ok(Over::Done);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }
}

/// A program's text; the daemon checks it.
fn read_program(path: &std::path::Path) -> anyhow::Result<String> {
    let shown = if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
    let mut text = String::new();
    // More than the daemon takes is not worth reading.
    const MOST: u64 = 64 << 10;
    let read = if path.as_os_str() == "-" {
        io::stdin().take(MOST).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MOST).read_to_string(&mut text))
    };
    read.with_context(|| format!("reading the packet filter from {shown}"))?;
    text.parse::<vmlane_capture::Program>().with_context(|| format!("packet filter in {shown}"))?;
    Ok(text)
}
