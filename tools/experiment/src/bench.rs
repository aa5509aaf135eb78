//! A lab in which runs are made: its servers, its clients, and who is still alive.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vmlane_api::{Client, CounterList, Stats, VmStats, call};

use crate::factors::{Factors, Moderation, Peer, Tool};
use crate::host::Cpu;
use crate::plan::Plan;
use crate::rows::{Counters, Row};
use crate::steps::{Boot, Step, shaper};
use crate::synchronized_start::{StartGroup, StartMethod};
use crate::tool;
use vmlane_lab::test_host;
use vmlane_lab::{Device, Guest, Lab, Running};
use vmlane_lab::{GuestStatus, Status};

/// What a run may take beyond its length, and each further client of it.
const TIMEOUT: Duration = Duration::from_secs(30);
const LONGER_TIMEOUT: Duration = Duration::from_secs(4);
/// Of a log that goes into a row.
const LOG_BYTES: usize = 4000;

/// A lab that is up.
pub struct Bench {
    lab: Lab,
    status: Status,
    like: Factors,
    program: PathBuf,
    guest_script: String,
    /// By guest (or `host`) and tool.
    servers: BTreeMap<(String, Tool), Vec<Running>>,
    /// The networks that each test host has an address in.
    host_networks: Vec<Vec<u32>>,
    /// The servers on the test hosts, by number.
    hosts: BTreeMap<u32, HostServer>,
    /// Guests that were seen dead.
    dead: Vec<String>,
    /// The cards' last setting.
    moderated: Option<Moderation>,
}

/// Ends with its owner.
struct HostServer(Child);

impl Drop for HostServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One client with whom it talks.
struct Flow {
    guest: String,
    server: String,
    /// An IP address, or a CID.
    to: String,
    /// Among the clients of one server.
    place: usize,
}

impl Bench {
    pub fn new(lab: Lab, boot: &Boot, program: &Path) -> Result<Bench> {
        let status = lab.status()?;
        let spec = boot.spec("");
        let host_networks = (0..test_host::count(spec.uplinks)).map(|host| spec.host_networks(host));
        let bench = Bench {
            host_networks: host_networks.collect(),
            lab,
            status,
            like: boot.like.clone(),
            program: program.to_owned(),
            guest_script: boot.guest_script(),
            servers: BTreeMap::new(),
            hosts: BTreeMap::new(),
            dead: Vec::new(),
            moderated: None,
        };
        for guest in &bench.status.guests {
            bench.set_guest(&guest.name)?;
        }
        bench.set_hosts()?;
        Ok(bench)
    }

    /// Sets when interrupts are held back, which may differ from run to run.
    fn moderate(&mut self, factors: &Factors) -> Result<()> {
        if self.moderated == factors.moderation {
            return Ok(());
        }
        self.moderated = factors.moderation;
        self.status.guests.iter().try_for_each(|guest| self.set_moderation(guest))
    }

    fn set_moderation(&self, guest: &GuestStatus) -> Result<()> {
        let words = match self.moderated {
            None => "adaptive-rx on".to_owned(),
            Some(Moderation::Off) => "adaptive-rx off rx-usecs 0".to_owned(),
            Some(Moderation::Rate(rate)) => format!("adaptive-rx off rx-usecs {}", 1_000_000 / rate),
        };
        for (card, _) in (0..).zip(&guest.nics).filter(|(_, nic)| nic.device.starts_with("vmxnet3")) {
            // The driver of an older revision refuses; the card stays as it is.
            let line = format!("ethtool -C eth{card} {words} || ethtool -i eth{card}");
            self.lab.guest(&guest.name).sh(&line).context("the moderation of interrupts")?;
        }
        Ok(())
    }

    pub fn down(self) -> Result<()> {
        drop(self.servers);
        drop(self.hosts);
        self.lab.down()
    }

    fn set_guest(&self, guest: &str) -> Result<()> {
        if !self.guest_script.is_empty() {
            self.lab.guest(guest).sh(&self.guest_script).context("the plan's settings of the guest")?;
        }
        Ok(())
    }

    /// Sets the test hosts' ends of the uplinks: offloads, and a rate for what the hosts send. What guests
    /// send they shape themselves (see the boot's script): a kernel without policing can do no more.
    fn set_hosts(&self) -> Result<()> {
        let Factors { to, uplinks, rate, host_offloads, .. } = &self.like;
        if *to != Peer::Host || rate.is_none() && host_offloads.is_empty() {
            return Ok(());
        }
        for uplink in 0..*uplinks {
            let tap = test_host::tap(&self.status.name, uplink);
            let mut lines: Vec<String> = Vec::new();
            lines.extend(rate.map(|rate| shaper(&tap, rate)));
            let offload = |(name, state): &(String, String)| format!("ethtool -K {tap} {name} {state}");
            lines.extend(host_offloads.iter().map(offload));
            for line in lines {
                let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
                let host = test_host::of_uplink(uplink, *uplinks);
                let output = self.lab.host_command_on(host, &argv)?.output();
                let output = output.context("cannot run ip (iproute2)")?;
                let message = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "an uplink cannot be set by `{line}`: {}", message.trim());
            }
        }
        Ok(())
    }

    /// What the lab adds to a row.
    pub fn describe(&self, row: &mut Row) {
        row.accelerator = self.status.accelerator.clone();
        row.setup.qemu = self.status.qemu_version.clone();
        let release = self.status.guests.first().and_then(|guest| guest.release.clone());
        row.setup.guest_kernel = release.unwrap_or_default();
    }

    /// One run.
    ///
    /// # Errors
    /// A client that failed, a guest that died, a result that never came.
    pub fn measure(&mut self, step: &Step, plan: &Plan, row: &mut Row, stop: &AtomicBool) -> Result<()> {
        self.dead.clear();
        let factors = &step.factors;
        self.moderate(factors)?;
        let flows = self.flows(factors)?;
        for flow in &flows {
            self.serve(&flow.server, factors)?;
        }
        let mut commands: Vec<(Guest, Vec<String>)> = Vec::new();
        for flow in &flows {
            let of = tool::clients(factors, plan, &flow.to, flow.place);
            commands.extend(of.into_iter().map(|argv| (self.lab.guest(&flow.guest), argv)));
        }
        let more = LONGER_TIMEOUT * commands.len() as u32;
        let timeout = Duration::from_secs_f64(2.0 * (plan.seconds + plan.warmup)) + TIMEOUT + more;
        let processes = self.processes();
        let method = if factors.tool == Tool::Vmlane { StartMethod::Barrier } else { StartMethod::Script };
        // The log of the guest that died is of more use than that of its peer.
        let group = StartGroup::gather(method, commands, TIMEOUT + more, stop)
            .or_else(|error| self.check_alive().and(Err(error)))?;
        let counted = self.counters(&factors.device)?;
        let (cpu, begin) = (Cpu::sample(&processes), Instant::now());
        let ends = group.go(timeout, stop, &mut || self.check_alive());
        row.wall_seconds = (begin.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        if let (Some(before), Some(after)) = (cpu, Cpu::sample(&processes)) {
            let used = after.since(&before);
            (row.host_cpu_seconds, row.host_other_cpu_seconds) = (Some(used.total()), Some(used.other));
            row.host_cpu_by_process = used.served;
        }
        if let (Some(before), Ok(Some(after))) = (counted, self.counters(&factors.device)) {
            row.counters = moved(&before, &after);
            let clients = flows.iter().map(|flow| flow.guest.as_str()).collect();
            row.packets_per_second = packets_per_second(row, clients);
        }
        let ends = ends.or_else(|error| self.check_alive().and(Err(error)))?;
        let mut all = Vec::new();
        for output in &ends.outputs {
            if !output.success() {
                let _ = self.check_alive();
                bail!(
                    "exit code {}: {} {}",
                    output.exit.shell_code(),
                    output.stderr().trim(),
                    output.stdout().trim()
                );
            }
            all.push(tool::read(factors, &output.stdout())?);
        }
        let started: Vec<_> = all.iter().map(|measured| measured.report["started_at_ns"].as_u64()).collect();
        if let Some((skew, uncertainty)) = ends.starts.skew_ms(&started) {
            let rounded = |ms: f64| Some((ms * 100.0).round() / 100.0);
            (row.skew_ms, row.skew_known_to_ms) = (rounded(skew), rounded(uncertainty));
        }
        let measured = tool::sum(all);
        row.throughput_bps = measured.throughput_bps;
        row.transactions_per_second = measured.transactions_per_second;
        row.rtt_us = measured.rtt_us;
        row.report = measured.report;
        Ok(())
    }

    /// Who talks to whom.
    fn flows(&self, factors: &Factors) -> Result<Vec<Flow>> {
        let guests = &self.status.guests;
        let mut flows = Vec::new();
        if factors.to == Peer::Host {
            let device = factors.device.to_string();
            for (place, guest) in guests.iter().enumerate() {
                for nic in guest.nics.iter().filter(|nic| nic.device == device) {
                    let (ip, host) = (factors.ip, test_host::of_uplink(nic.network, self.like.uplinks));
                    let to =
                        if ip == 6 { test_host::ipv6(nic.network) } else { test_host::ipv4(nic.network) };
                    let server = test_host::name(host).to_owned();
                    flows.push(Flow { guest: guest.name.clone(), server, to: plain(&to), place });
                }
            }
            return Ok(flows);
        }
        for pair in guests.chunks_exact(2) {
            for (place, to) in addresses(&pair[1], factors)?.into_iter().enumerate() {
                flows.push(Flow { guest: pair[0].name.clone(), server: pair[1].name.clone(), to, place });
            }
        }
        Ok(flows)
    }

    /// Makes sure that the server answers.
    fn serve(&mut self, server: &str, factors: &Factors) -> Result<()> {
        if let Some(host) =
            (0..test_host::count(self.like.uplinks)).find(|&host| test_host::name(host) == server)
        {
            return self.serve_on_host(host);
        }
        let key = (server.to_owned(), factors.tool);
        if self.servers.contains_key(&key) {
            return Ok(());
        }
        let guest = self.status.guests.iter().find(|guest| guest.name == server).context("no such guest")?;
        let mut listen = vec!["0.0.0.0".to_owned()];
        listen.extend(guest.nics.iter().map(|nic| plain(&nic.ipv6)));
        let vsock = guest.cid.is_some();
        let mut running = Vec::new();
        for (argv, mark) in tool::servers(factors.tool, vsock, &listen, self.like.nics as usize) {
            running.push(start_server(&self.lab.guest(server), &argv, mark)?);
        }
        self.servers.insert(key, running);
        Ok(())
    }

    fn serve_on_host(&mut self, host: u32) -> Result<()> {
        if let Some(server) = self.hosts.get_mut(&host)
            && matches!(server.0.try_wait(), Ok(None))
        {
            return Ok(());
        }
        let program = self.program.display().to_string();
        let addresses = |net: &u32| {
            let (ipv4, ipv6) = (test_host::ipv4(*net), test_host::ipv6(*net));
            [format!("tcp:{}", plain(&ipv4)), format!("tcp:[{}]", plain(&ipv6))]
        };
        let of_host = self.host_networks.get(host as usize).into_iter().flatten();
        let listen: Vec<String> = of_host.flat_map(addresses).collect();
        let mut argv = vec![program, "bench".into(), "server".into()];
        listen.iter().for_each(|address| argv.extend(["--listen".into(), address.clone()]));
        let mut command = self.lab.host_command_on(host, &argv)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start the server on a test host")?;
        let stdout = child.stdout.take().context("the server has no output")?;
        self.hosts.insert(host, HostServer(child));
        // One line a listener.
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
        for address in listen {
            let line = lines.next().transpose()?;
            let line =
                line.with_context(|| format!("the server on a test host ended before it had {address}"))?;
            ensure!(line.contains("listening"), "the server on a test host printed {line:?}");
        }
        Ok(())
    }

    /// The processes that serve the guests, by name.
    fn processes(&self) -> Vec<(String, u32)> {
        let daemon = self.status.daemon.as_ref().and_then(|daemon| Some(("daemon".to_owned(), daemon.pid?)));
        let guests = self.status.guests.iter().filter_map(|guest| Some((guest.name.clone(), guest.pid?)));
        daemon.into_iter().chain(guests).collect()
    }

    fn counters(&self, device: &Device) -> Result<Option<Stats>> {
        if *device != Device::Vmci && !device.is_on_switch() {
            return Ok(None);
        }
        Ok(Some(Client::connect(&self.lab.daemon_runtime_dir())?.call(&call::Stats {})?))
    }

    /// An error when a guest or the daemon is gone.
    fn check_alive(&mut self) -> Result<()> {
        let status = self.lab.status()?;
        self.dead = status
            .guests
            .iter()
            .filter(|guest| guest.state != "up")
            .map(|guest| guest.name.clone())
            .collect();
        if status.daemon.as_ref().is_some_and(|daemon| daemon.pid.is_none()) {
            self.dead.push("daemon".into());
            bail!("the daemon died");
        }
        ensure!(self.dead.is_empty(), "guest {} died during the run", self.dead.join(", "));
        Ok(())
    }

    /// The last lines of the logs of what died; empty if nothing did.
    pub fn last_words(&mut self) -> Option<String> {
        let _ = self.check_alive();
        let log = |name: &String| {
            let read =
                |path: &Path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let guest = self.status.guests.iter().find(|guest| guest.name == *name);
            let qemu = guest.and_then(|guest| read(&guest.qemu_log).ok()).unwrap_or_default();
            let text = read(&self.lab.log(name)).unwrap_or_default() + &qemu;
            let from = text.char_indices().rev().nth(LOG_BYTES).map_or(0, |(at, _)| at);
            format!("==> {name} <==\n{}\n", &text[from..])
        };
        (!self.dead.is_empty()).then(|| self.dead.iter().map(log).collect())
    }

    /// Makes the lab whole again: dead guests are started, servers are new.
    pub fn mend(&mut self) -> Result<()> {
        self.servers.clear();
        self.hosts.clear();
        let status = self.lab.status()?;
        ensure!(status.daemon.as_ref().is_none_or(|daemon| daemon.pid.is_some()), "its daemon is gone");
        for guest in status.guests.iter().filter(|guest| guest.state != "up") {
            if guest.state == "off" {
                self.lab.guest(&guest.name).start().with_context(|| format!("guest {}", guest.name))?;
            } else {
                bail!("guest {} is {}", guest.name, guest.state);
            }
            self.set_guest(&guest.name)?;
        }
        self.status = self.lab.status()?;
        if self.moderated.is_some() {
            self.status.guests.iter().try_for_each(|guest| self.set_moderation(guest))?;
        }
        Ok(())
    }
}

/// `10.77.0.1/24` without the length.
fn plain(address: &str) -> String {
    address.split('/').next().unwrap_or_default().to_owned()
}

/// Where a guest is reached through a device: one address a card.
fn addresses(guest: &GuestStatus, factors: &Factors) -> Result<Vec<String>> {
    let name = &guest.name;
    if factors.device.is_vsock() {
        return Ok(vec![guest.cid.with_context(|| format!("guest {name} has no CID"))?.to_string()]);
    }
    let device = factors.device.to_string();
    let of = guest.nics.iter().filter(|nic| nic.device == device);
    let list: Vec<String> =
        of.map(|nic| plain(if factors.ip == 6 { &nic.ipv6 } else { &nic.ipv4 })).collect();
    ensure!(list.len() == factors.nics as usize, "guest {name} has {} cards {device}", list.len());
    Ok(list)
}

fn start_server(guest: &Guest, argv: &[String], mark: &str) -> Result<Running> {
    // The previous one may still hold the ports for a moment.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let server = guest.spawn(argv.to_vec())?;
        match server.wait_for(mark, Duration::from_secs(20)) {
            Ok(()) => return Ok(server),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("the server in guest {}", guest.name())));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
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
        let of = counters.entry(vm.name.clone()).or_default();
        *of = delta(&vm.vmci, earlier.map(|earlier| &earlier.vmci));
        for name in OF_CARDS {
            let sum = |vm: &VmStats| vm.nics.iter().map(|nic| nic.port.get(name)).sum::<u64>();
            let count = sum(vm).saturating_sub(earlier.map_or(0, sum));
            of.extend((count > 0).then(|| (name.to_owned(), count)));
        }
    }
    counters
}

/// What the switch counts of a VM's cards, tx and rx as the VM has them.
const OF_CARDS: [&str; 4] = ["tx_frames", "tx_bytes", "rx_frames", "rx_bytes"];

/// Frames a second on the cards of the clients' VMs, the way the test's bytes go; none where nothing was
/// counted.
fn packets_per_second(row: &Row, clients: BTreeSet<&str>) -> Option<f64> {
    let names: &[&str] = match row.test.as_str() {
        "stream" => &["tx_frames"],
        "maerts" => &["rx_frames"],
        "bidir" => &["tx_frames", "rx_frames"],
        _ => return None,
    };
    let of = |vm: &&str| names.iter().filter_map(|name| row.counters.get(*vm)?.get(*name)).sum::<u64>();
    let frames: u64 = clients.iter().map(of).sum();
    (frames > 0 && row.wall_seconds > 0.0).then(|| (frames as f64 / row.wall_seconds).round())
}
#[cfg(test)]
mod tests {
    use vmlane_api::NicStats;

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
                vsock: CounterList::default(),
                session: CounterList::default(),
                nics: vec![NicStats {
                    name: "a".into(),
                    device: CounterList::default(),
                    port: [("tx_frames", sent), ("rx_frames", resets), ("drops", sent)].into_iter().collect(),
                    session: CounterList::default(),
                    queues: vec![],
                }],
                bounds: vec![],
            }],
            ..Stats::default()
        };
        let counters = moved(&stats(10, 1), &stats(15, 1));
        let of_a = [("tx_frames".to_owned(), 5), ("wrote_sent".to_owned(), 5)];
        assert_eq!(counters["a"], of_a.into_iter().collect());
        assert_eq!(counters["workers"]["bytes"], 5);
    }

    #[test]
    fn packets_are_those_of_the_clients_the_way_the_bytes_go() {
        let card = |tx: u64, rx: u64| [("tx_frames".to_owned(), tx), ("rx_frames".to_owned(), rx)].into();
        let counters = Counters::from([("a".to_owned(), card(4000, 40)), ("b".to_owned(), card(40, 4000))]);
        for (test, vms, rate) in [
            ("stream", vec!["a"], Some(2000.0)),
            ("maerts", vec!["a"], Some(20.0)),
            ("bidir", vec!["a"], Some(2020.0)),
            ("stream", vec!["a", "b", "a"], Some(2020.0)),
            ("rr", vec!["a"], None),
            ("stream", vec!["c"], None),
        ] {
            let row =
                Row { test: test.into(), counters: counters.clone(), wall_seconds: 2.0, ..Row::default() };
            assert_eq!(packets_per_second(&row, vms.into_iter().collect()), rate, "{test}");
        }
    }
}
