//! Makes the runs of a sweep in a lab that is up: a server in guest b, one client after the other in
//! guest a, a row for each.
//!
//! A run that fails is a row that says so, and the sweep goes on; a device that only fails is given
//! up, because every failure may cost its whole deadline.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vmlane_api::{Client, CounterList, Stats};
use vmlane_bench::Report;

use super::host::Cpu;
use super::plan::{Step, Sweep};
use super::rows::{Counters, Row, Setup, VERSION, Writer};
use crate::plan::Status;
use crate::{Device, Guest, Lab, Output, Running};

/// What a run may take beyond its length.
const PATIENCE: Duration = Duration::from_secs(30);
/// Failures in a row after which a device's other runs are not tried.
const GIVE_UP: u32 = 3;

/// What a sweep tells whoever watches.
pub enum News<'a> {
    Starts {
        step: &'a Step,
        number: usize,
        of: usize,
        left: Option<Duration>,
    },
    Ended(&'a Row),
    /// All rows of one combination.
    Combination(&'a [Row]),
}

/// A sweep under way.
pub struct Runner<'a> {
    lab: &'a Lab,
    sweep: &'a Sweep,
    setup: Setup,
    /// Set from outside: no more runs.
    stop: &'a AtomicBool,
    status: Status,
    server: Option<Running>,
    failures: BTreeMap<String, u32>,
}

impl<'a> Runner<'a> {
    pub fn new(lab: &'a Lab, sweep: &'a Sweep, setup: Setup, stop: &'a AtomicBool) -> Result<Runner<'a>> {
        let status = lab.status()?;
        Ok(Runner { lab, sweep, setup, stop, status, server: None, failures: BTreeMap::new() })
    }

    /// Makes every run and returns the rows, which are in the file as well. Ends early when stopped.
    pub fn run(mut self, file: &mut Writer, watch: &mut dyn FnMut(&News<'_>)) -> Result<Vec<Row>> {
        let steps = self.sweep.steps();
        let (begin, of) = (Instant::now(), steps.len());
        let mut rows: Vec<Row> = Vec::new();
        let mut first = 0; // row of the present combination
        for (index, step) in steps.iter().enumerate() {
            let left = (index > 0).then(|| begin.elapsed() / index as u32 * (of - index) as u32);
            watch(&News::Starts { step, number: index + 1, of, left });
            let row = self.measure(step);
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            file.add(&row)?;
            watch(&News::Ended(&row));
            rows.push(row);
            if steps.get(index + 1).is_none_or(|next| next.combination != step.combination) {
                watch(&News::Combination(&rows[first..]));
                first = rows.len();
            }
        }
        Ok(rows)
    }

    fn measure(&mut self, step: &Step) -> Row {
        let case = &step.case;
        let mut row = Row {
            version: VERSION,
            device: case.device.to_string(),
            kernel: self.status.guests.first().map(|g| g.kernel.clone()).unwrap_or_default(),
            accelerator: self.status.accelerator.clone(),
            guests: self.status.guests.len() as u32,
            tool: "vmlane-bench".into(),
            test: case.test.name().into(),
            message_bytes: case.message_bytes,
            send_buffer: case.send_buffer,
            sessions: case.sessions,
            run: step.run,
            setup: self.setup.clone(),
            ..Row::default()
        };
        let failures = self.failures.entry(row.device.clone()).or_default();
        if *failures >= GIVE_UP {
            row.failed = Some(format!("not tried: {failures} runs failed one after the other"));
            return row;
        }
        let result = self.try_measure(step, &mut row);
        let failures = self.failures.entry(row.device.clone()).or_default();
        match result {
            Ok(()) => *failures = 0,
            Err(error) => {
                *failures += 1;
                row.failed = Some(format!("{error:#}"));
                // It may be what broke; the next run gets a new one.
                self.server = None;
            }
        }
        row
    }

    fn try_measure(&mut self, step: &Step, row: &mut Row) -> Result<()> {
        if self.server.is_none() {
            self.server = Some(self.start_server()?);
        }
        let to = address(&self.status, &step.case.device)?;
        let argv = step.case.client(&to, self.sweep);
        let patience = Duration::from_secs_f64(self.sweep.seconds + self.sweep.warmup) + PATIENCE;
        let pids = self.pids();
        let counted = self.counters(&step.case.device)?;
        let (cpu, begin) = (Cpu::sample(&pids), Instant::now());
        let output = client(&self.lab.guest("a"), argv, patience, self.stop);
        row.wall_seconds = (begin.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        if let (Some(before), Some(after)) = (cpu, Cpu::sample(&pids)) {
            let (served, other) = after.since(before);
            (row.host_cpu_seconds, row.host_other_cpu_seconds) = (Some(served), Some(other));
        }
        if let (Some(before), Ok(Some(after))) = (counted, self.counters(&step.case.device)) {
            row.counters = moved(&before, &after);
        }
        let output = output?;
        if !output.success() {
            bail!("exit code {}: {}", output.exit.shell_code(), output.stderr().trim());
        }
        let text = output.stdout();
        let report: Report = serde_json::from_str(&text).with_context(|| format!("its output {text:?}"))?;
        row.throughput_bps = report.throughput_bps;
        row.transactions_per_second = report.transactions_per_second;
        row.rtt_us = report.rtt_us;
        row.report = serde_json::from_str(&text)?;
        if row.value().is_none() {
            bail!("the result has no number: {text}");
        }
        Ok(())
    }

    fn start_server(&self) -> Result<Running> {
        let mut argv = vec!["vmlane", "bench", "server", "--listen", "tcp:0.0.0.0"];
        if self.sweep.devices.contains(&Device::Vmci) {
            argv.extend(["--listen", "vsock:"]);
        }
        let listeners = argv.len() / 2 - 1;
        let last = if listeners > 1 { "listening on vsock" } else { "listening on tcp" };
        // The one before it may still hold the ports for a moment.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let server = self.lab.guest("b").spawn(argv.clone())?;
            match server.wait_for(last, Duration::from_secs(10)) {
                Ok(()) => return Ok(server),
                Err(error) if Instant::now() > deadline => return Err(error.context("the server in guest b")),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// The processes that serve the guests.
    fn pids(&self) -> Vec<u32> {
        let daemon = self.status.daemon.as_ref().and_then(|daemon| daemon.pid);
        self.status.guests.iter().filter_map(|guest| guest.pid).chain(daemon).collect()
    }

    fn counters(&self, device: &Device) -> Result<Option<Stats>> {
        if !device.is_ours() {
            return Ok(None);
        }
        Ok(Some(Client::connect(&self.lab.daemon_runtime_dir())?.stats()?))
    }
}

/// Where guest b is reached through a device.
fn address(status: &Status, device: &Device) -> Result<String> {
    let guest = status.guests.iter().find(|guest| guest.name == "b").context("the lab has no guest b")?;
    if *device == Device::Vmci {
        return Ok(format!("vsock:{}", guest.cid.context("guest b has no CID")?));
    }
    let name = device.to_string();
    let nic = guest.nics.iter().find(|nic| nic.device == name);
    let nic = nic.with_context(|| format!("guest b has no {name}"))?;
    Ok(format!("tcp:{}", nic.ipv4.split('/').next().unwrap_or_default()))
}

/// Runs a command to its end, to the deadline, or until stopped; in the last two cases it is ended.
fn client(guest: &Guest, argv: Vec<String>, patience: Duration, stop: &AtomicBool) -> Result<Output> {
    let session = guest.session(argv)?;
    session.feed(std::io::empty());
    let signaller = session.signaller();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut output = Output::default();
        let exit = session.finish(&mut output.stdout, &mut output.stderr);
        // Nobody listens after the deadline.
        let _ = sender.send(exit.map(|exit| Output { exit, ..output }));
    });
    let deadline = Instant::now() + patience;
    loop {
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(output) => return output,
            Err(RecvTimeoutError::Disconnected) => bail!("the client's session ended without a word"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let stopped = stop.load(Ordering::Relaxed);
        if stopped || Instant::now() > deadline {
            signaller.hang_up();
            bail!(if stopped {
                "stopped".to_owned()
            } else {
                format!("no result in {:.0} s", patience.as_secs_f64())
            });
        }
    }
}

/// The counters that moved, and by how much.
fn moved(before: &Stats, after: &Stats) -> Counters {
    let delta = |after: &CounterList, before: Option<&CounterList>| -> BTreeMap<String, u64> {
        let earlier = |name| before.map_or(0, |before| before.get(name));
        after
            .iter()
            .map(|(name, value)| (name.to_owned(), value.saturating_sub(earlier(name))))
            .filter(|(_, value)| *value > 0)
            .collect()
    };
    let mut counters = Counters::new();
    counters.insert("workers".into(), delta(&after.workers, Some(&before.workers)));
    for vm in &after.vms {
        let earlier = before.vms.iter().find(|other| other.name == vm.name);
        counters.insert(vm.name.clone(), delta(&vm.vmci, earlier.map(|earlier| &earlier.vmci)));
    }
    counters
}

#[cfg(test)]
mod tests {
    use vmlane_api::VmStats;

    use super::*;

    #[test]
    fn only_what_moved_is_kept() {
        let stats = |sent, resets| Stats {
            uptime_seconds: 1.0,
            workers: [("bytes", sent)].into_iter().collect(),
            vms: vec![VmStats {
                name: "a".into(),
                cid: Some(3),
                vmci: [("wrote_sent", sent), ("resets", resets)].into_iter().collect(),
                session: CounterList::default(),
                nics: vec![],
            }],
            switch: CounterList::default(),
            uplinks: vec![],
        };
        let counters = moved(&stats(10, 1), &stats(15, 1));
        assert_eq!(counters["a"].iter().collect::<Vec<_>>(), [(&"wrote_sent".to_owned(), &5)]);
        assert_eq!(counters["workers"]["bytes"], 5);
    }
}
