//! Our switch in testpmd's place: two uplinks to ports of one bridge of Open vSwitch. What the bridge sends to one of them, the
//! switch sends back by the other, so the same frames go round and round, half of them each way. Either switch learns the
//! addresses where the other sends them from. Frames are counted by our switch. Open vSwitch listens for the first uplink, and
//! connects to the second one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use vmlane_host::uplink::vhost_user::{Entrance, Peers, VhostUser, connect, listen};
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    BURST, ChecksumStatus, FramePort, Frames, Layers, Network, PortId, PortStats, RxFrame, Transport,
};
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode};

use super::ovs::{Listens, Ovs};
use super::testpmd::{BURSTS, STARTS, WARM_UP};
use super::{MACS, Rig, window};
use crate::baseline::Cpus;

const PATIENCE: Duration = Duration::from_secs(30);

/// Frames per second that come in by both uplinks.
pub fn frames(rig: &Rig, bytes: usize, length: Duration) -> anyhow::Result<f64> {
    let ovs = Ovs::start(rig, [Listens::Ovs, Listens::Other])?;
    let (switch, mut worker) = Switch::unstarted(Settings { poll: true, ..Settings::default() });
    let switch = Arc::new(switch);
    let cpus = Cpus::allowed();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            let measured = measure(&switch, &ovs.sockets(), bytes, length);
            // Whatever happened, the worker's loop ends.
            done.store(true, Ordering::Relaxed);
            measured
        });
        // Open vSwitch polls on the first one, as beside testpmd.
        let _placed = cpus.pin(1);
        while !done.load(Ordering::Relaxed) {
            (0..64).for_each(|_| _ = worker.step());
        }
        measuring.join().map_err(|_| anyhow::anyhow!("the measuring thread panicked"))?
    })
}

fn measure(
    switch: &Arc<Switch>,
    sockets: &[PathBuf; 2],
    bytes: usize,
    length: Duration,
) -> anyhow::Result<f64> {
    for _ in 0..STARTS {
        let ports = [0, 1].map(|number| switch.add_port(spec(number)).expect("a switch with room"));
        let first = Arc::new(FirstFrames { switch: switch.clone(), bytes, ports, waiting: Mutex::default() });
        let path = sockets[0].clone();
        let connect = Box::new(move || connect(&path).map_err(|error| error.to_string()));
        let (socket, name) = listen(&sockets[1], None)?;
        let peers = [Peers::Connect(connect), Peers::Accept(Entrance::new(socket, None)?)];
        let start = |(peers, port)| VhostUser::start(("ovs", 1500), peers, first.clone(), port);
        let uplinks: Vec<_> = peers.into_iter().zip(ports).map(start).collect::<Result<_, _>>()?;
        let deadline = Instant::now() + PATIENCE;
        while !ports.iter().all(|port| switch.ports().iter().any(|view| view.id == *port && view.attached)) {
            if Instant::now() > deadline {
                bail!("Open vSwitch takes no connection");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(WARM_UP);
        let rate = |time: Duration| {
            let count = || ports.map(|port| switch.stats(port).tx_frames.get());
            let (before, begin) = (count(), Instant::now());
            std::thread::sleep(time);
            let (after, seconds) = (count(), begin.elapsed().as_secs_f64());
            [0, 1].map(|port| (after[port] - before[port]) as f64 / seconds)
        };
        let moves = rate(Duration::from_millis(50)).iter().all(|&rate| rate > 0.0);
        let measured = moves.then(|| rate(window(length)).iter().sum());
        drop(uplinks);
        name.remove();
        ports.iter().for_each(|port| _ = switch.remove_port(*port));
        if let Some(measured) = measured {
            return Ok(measured);
        }
    }
    bail!("frames did not go round, {STARTS} times")
}

/// A port that is no uplink to the switch, which sends nothing from one uplink to another.
fn spec(number: usize) -> PortSpec {
    PortSpec {
        name: format!("ovs-{number}"),
        group: "test".into(),
        mac: Default::default(),
        vlan: VlanMode::Untagged,
        // As of an uplink: it gets frames to unknown addresses, and no copies of others.
        policy: Policy::default(),
        traffic: Traffic { floods: Some(0), ..Traffic::default() },
        uplink: false,
        direct: false,
        notify: false,
    }
}

/// The switch, and the frames that go round in it: sent once both uplinks are connected.
struct FirstFrames {
    switch: Arc<Switch>,
    bytes: usize,
    ports: [PortId; 2],
    waiting: Mutex<Vec<(PortId, Box<dyn FramePort>)>>,
}

impl FirstFrames {
    /// Sends what testpmd sends first, to Open vSwitch by one port: to the other one's address.
    fn send(&self, port: PortId, end: &mut dyn FramePort) -> anyhow::Result<()> {
        let number = usize::from(port == self.ports[1]);
        let frame = datagram(MACS[1 - number], MACS[number], self.bytes);
        let len = (self.bytes as u64).next_multiple_of(4096);
        let request = MapRequest { guest: 0, len, offset: 0, fd: memfd("first", len)?, writable: true };
        let mut body = Spans::new(MemoryMap::default().map(request)?, true);
        body.push(0, frame.len())?;
        body.write(0, &frame);
        const HEAD: usize = 42;
        let frame = RxFrame {
            head: &frame[..HEAD],
            body: &body,
            body_at: HEAD,
            body_len: frame.len() - HEAD,
            tag: None,
            layers: Layers {
                network: Network::V4,
                transport: Transport::Udp,
                fragment: false,
                network_at: 14,
                transport_at: 34,
            },
            checksum: ChecksumStatus::Good,
            aggregate: None,
            partial_checksum: None,
        };
        for _ in 0..BURSTS {
            let refused = end.deliver(&[frame; BURST]).err();
            refused.map_or(Ok(()), |refused| bail!("refused: {:?}", refused.reason))?;
        }
        end.flush(Instant::now());
        Ok(())
    }
}

/// A datagram of `len` bytes without a checksum.
fn datagram(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&[8, 0]);
    let total = (len - 14) as u16;
    let ip = &mut frame[14..34];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    (ip[8], ip[9]) = (64, 17);
    ip[12..20].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
    let mut sum = vmlane_mem::Sum::default();
    sum.add(ip);
    ip[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
    let udp = &mut frame[34..42];
    udp[..4].copy_from_slice(&[0, 9, 0, 9]);
    udp[4..6].copy_from_slice(&(total - 20).to_be_bytes());
    frame
}

impl Frames for FirstFrames {
    fn attach(&self, port: PortId, end: Box<dyn FramePort>) {
        let mut waiting = self.waiting.lock();
        waiting.push((port, end));
        if waiting.len() < self.ports.len() {
            return;
        }
        // It loses what comes before it has made its own half of the port.
        std::thread::sleep(WARM_UP);
        for (port, mut end) in waiting.drain(..) {
            if let Err(error) = self.send(port, &mut *end).context("the first frames") {
                eprintln!("{error:#}");
            }
            self.switch.attach(port, end);
        }
    }

    fn detach(&self, port: PortId) {
        self.waiting.lock().retain(|(waits, _)| *waits != port);
        self.switch.detach(port);
    }

    fn refresh(&self, port: PortId) {
        self.switch.refresh(port);
    }

    fn kick(&self, port: PortId) {
        self.switch.kick(port);
    }

    fn announce(&self, port: PortId) {
        self.switch.announce(port);
    }

    fn stats(&self, port: PortId) -> Arc<PortStats> {
        self.switch.stats(port)
    }
}
