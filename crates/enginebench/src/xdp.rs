//! AF_XDP uplinks on veth pairs: frames that come in by one interface leave by another, through the switch and through a loop
//! without one. Each burst is put onto the wire first; what is measured is the forwarding side's time alone, its system calls and
//! what the kernel does in them included. Needs root.

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_host::uplink::xdp::{Xdp, XdpFiles, XdpHold, XdpOptions};
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{BURST, ChecksumStatus, FramePort, Frames, Layers, PortStats, RxFrame, Token};
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode};
use vmlane_wire::ethernet::Mac;

use crate::baseline::Cpus;
use crate::report::{Registry, Sample};

/// Frames that are on the wire at once.
const FRAMES: usize = 256;
/// Bytes of a frame without its check sequence.
const BYTES: usize = 60;
/// How long a burst may take.
const PATIENCE: Duration = Duration::from_secs(5);
const PLAIN: &str = "xdp.loop.64";

/// Adds the rows. The bar is a ratio of 0.8.
pub fn register(registry: &mut Registry) {
    registry.add(PLAIN, "Mframes/s", &[], |length| {
        let mut rig = Rig::new()?;
        let [(mut from, _from), (mut to, _to)] = rig.inner()?;
        rig.measure(length, || forward(&mut from, &mut to))
    });
    registry.add("uplink.xdp.64", "Mframes/s", &[PLAIN], |length| {
        let mut rig = Rig::new()?;
        let [(from, _from), (to, _to)] = rig.inner()?;
        let (switch, mut worker) = Switch::unstarted(Settings { poll: true, ..Settings::default() });
        for (number, end) in [from, to].into_iter().enumerate() {
            // Nothing goes from one uplink to another, so the second one is a VM's port to the switch.
            let port = switch.add_port(spec(number)).expect("a switch with room");
            switch.attach(port, Box::new(end));
        }
        worker.step();
        rig.measure(length, || {
            worker.step();
        })
    });
}

fn spec(number: usize) -> PortSpec {
    PortSpec {
        name: format!("up{number}"),
        group: "test".into(),
        mac: Mac([0x52, 0x54, 0, 1, 0, number as u8]),
        vlan: VlanMode::Untagged,
        policy: Policy { promiscuous: true, mac_changes: true, forged_transmits: true },
        traffic: Traffic::default(),
        uplink: number == 0,
        direct: false,
        notify: false,
    }
}

/// What `xdpsock` does, with our port: whatever comes in by one interface leaves by the other.
fn forward(from: &mut Xdp, to: &mut Xdp) {
    let mut tokens = [Token(0); BURST];
    let count = from.fetch(&mut tokens);
    for token in &tokens[..count] {
        let frame = from.frame(*token);
        let copy = whole(frame.head, frame.spans);
        let _ = to.deliver(&[copy]);
    }
    from.finish(&tokens[..count]);
    let now = Instant::now();
    from.flush(now);
    to.flush(now);
    to.tick(now);
}

/// A frame to which nothing is to be done.
fn whole<'a>(head: &'a [u8], spans: &'a Spans) -> RxFrame<'a> {
    RxFrame {
        head,
        body: spans,
        body_at: head.len(),
        body_len: spans.len() - head.len(),
        tag: None,
        layers: Layers::default(),
        checksum: ChecksumStatus::Unknown,
        aggregate: None,
        partial_checksum: None,
    }
}

type End = (Xdp, XdpHold);

/// Two veth pairs. Frames are sent into the first one's far end, and come out at the second one's.
struct Rig {
    names: [String; 4],
    source: End,
    sink: End,
    spans: Spans,
}

impl Rig {
    fn new() -> io::Result<Rig> {
        let names = ["a", "b", "c", "d"].map(|end| format!("vmlb{}{end}", std::process::id()));
        let made = [[&names[0], &names[1]], [&names[2], &names[3]]].iter().try_for_each(|[far, near]| {
            ip(&["link", "add", far, "type", "veth", "peer", "name", near])?;
            ip(&["link", "set", far, "up"])?;
            ip(&["link", "set", near, "up"])
        });
        let ends = made.and_then(|()| Ok((open(&names[0])?, open(&names[2])?)));
        let (source, sink) = ends.inspect_err(|_| remove(&names))?;
        let map = MemoryMap::default()
            .map(MapRequest { guest: 0, len: 4096, offset: 0, fd: memfd("frame", 4096)?, writable: true })
            .map_err(io::Error::other)?;
        let mut spans = Spans::new(map, true);
        spans.set(0, BYTES).map_err(io::Error::other)?;
        Ok(Rig { names, source, sink, spans })
    }

    /// The ends that are forwarded between.
    fn inner(&self) -> io::Result<[End; 2]> {
        Ok([open(&self.names[1])?, open(&self.names[3])?])
    }

    /// Sends bursts, and has `step` forward them.
    fn measure(&mut self, length: Duration, mut step: impl FnMut()) -> io::Result<Sample> {
        let _placed = Cpus::allowed().pin(0);
        let mut head = [0; BYTES];
        head[..12].copy_from_slice(&[0x52, 0x54, 0, 9, 0, 2, 0x52, 0x54, 0, 9, 0, 1]);
        head[12..14].copy_from_slice(&[0x88, 0xb5]);
        // The switch learns where the destination is.
        let mut back = head;
        back[..6].copy_from_slice(&head[6..12]);
        back[6..12].copy_from_slice(&head[..6]);
        self.sink.0.deliver(&[whole(&back, &self.spans)]).map_err(no_room)?;
        self.sink.0.flush(Instant::now());
        (0..64).for_each(|_| step());
        let (begin, mut busy, mut count) = (Instant::now(), Duration::ZERO, 0);
        while begin.elapsed() < length {
            for _ in 0..FRAMES {
                self.source.0.deliver(&[whole(&head, &self.spans)]).map_err(no_room)?;
            }
            self.source.0.flush(Instant::now());
            while self.source.0.tick(Instant::now()).soon {}
            let (start, mut arrived) = (Instant::now(), 0);
            while arrived < FRAMES {
                let turn = Instant::now();
                (0..FRAMES / BURST).for_each(|_| step());
                busy += turn.elapsed();
                arrived += drain(&mut self.sink.0);
                if start.elapsed() > PATIENCE {
                    return Err(io::Error::other(format!("only {arrived} of {FRAMES} frames came through")));
                }
            }
            count += FRAMES as u64;
        }
        Ok(Sample { value: count as f64 / busy.as_secs_f64() / 1e6 })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        remove(&self.names);
    }
}

/// Takes what has arrived. Returns how many of our frames that was: the kernel sends some of its own.
fn drain(port: &mut Xdp) -> usize {
    let mut tokens = [Token(0); BURST];
    let mut ours = 0;
    loop {
        let count = port.fetch(&mut tokens);
        if count == 0 {
            return ours;
        }
        ours +=
            tokens[..count].iter().filter(|token| port.frame(**token).head[12..14] == [0x88, 0xb5]).count();
        port.finish(&tokens[..count]);
        port.flush(Instant::now());
    }
}

fn open(name: &str) -> io::Result<End> {
    let options = XdpOptions { name: name.to_owned(), queues: None };
    let failed = |error: vmlane_host::uplink::xdp::XdpError| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        io::Error::other(format!("{error}{}", source.unwrap_or_default()))
    };
    let files = XdpFiles::open(&options).map_err(failed)?;
    Xdp::new(&options, files, Arc::new(PortStats::default())).map_err(failed)
}

fn ip(words: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(words).output()?;
    let said =
        || io::Error::other(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)));
    output.status.success().then_some(()).ok_or_else(said)
}

/// A pair goes with one of its ends.
fn remove(names: &[String; 4]) {
    for name in [&names[0], &names[2]] {
        let _ = ip(&["link", "del", name]);
    }
}

fn no_room(refused: vmlane_port::Refused) -> io::Error {
    io::Error::other(format!("a frame was refused: {}", refused.reason.name()))
}
