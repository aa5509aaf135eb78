//! Two virtio NICs of a daemon, driven by one thread: a frame there, a frame back. The daemon's worker sleeps
//! as it does in service, and is woken by kicks.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use vmlane_guestsim::Ram;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_wire::virtio::feature;

use crate::report::Sample;

/// Of a ring, and bytes of a buffer.
pub const SIZE: u16 = 64;
pub const BUFFER: usize = 2048;
/// Before a frame: the virtio header, zeros here.
const HEADER: usize = 12;
const FRAME: usize = 64;
/// As long as a frame may be on its way.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A NIC with its driver.
pub struct Nic {
    rx: DriverRing,
    tx: DriverRing,
    kick: RingEvents,
    /// By chain: where its bytes go.
    buffers: Vec<u64>,
    frame: u64,
    ram: Arc<Ram>,
    _rx_events: RingEvents,
    _front: Front,
}

/// The address of VM number `cid`'s NIC.
pub fn mac(cid: u32) -> [u8; 6] {
    let [_, _, high, low] = cid.to_be_bytes();
    [0x52, 0x54, 0, 0, high, low]
}

impl Nic {
    /// Attaches the NIC of VM `cid`, which sends to that of VM `peer`.
    pub fn attach(socket: &Path, cid: u32, peer: u32) -> anyhow::Result<Nic> {
        let ram = Arc::new(Ram::new(4 << 20));
        let mut front = Front::connect(socket, feature::VERSION_1)
            .with_context(|| format!("attaching to {}", socket.display()))?;
        front.set_memory(&ram)?;
        let [mut rx, tx] = [0, 1].map(|_| DriverRing::new(&ram, SIZE, false));
        let buffers: Vec<u64> = (0..SIZE).map(|_| rx.alloc(BUFFER)).collect();
        for &addr in &buffers {
            rx.post(&[into(addr, BUFFER)]);
        }
        rx.mute();
        tx.mute();
        let (rx_events, kick) = (front.start(0, &rx.setup())?, front.start(1, &tx.setup())?);
        let frame = tx.alloc(HEADER + FRAME);
        let bytes = [&[0; HEADER], &mac(peer)[..], &mac(cid), &[0x88, 0xb5], &[0; FRAME - 14]].concat();
        ram.write(frame, &bytes);
        Ok(Nic { rx, tx, kick, buffers, frame, ram, _rx_events: rx_events, _front: front })
    }

    /// Sends frame `number`.
    pub fn send(&mut self, number: u32) -> anyhow::Result<()> {
        while self.tx.take().is_some() {}
        self.ram.write(self.frame + (HEADER + 14) as u64, &number.to_be_bytes());
        self.tx.post(&[out(self.frame, HEADER + FRAME)]);
        fence(Ordering::SeqCst);
        if self.tx.wants_kick() {
            rustix::io::write(self.kick.kick.as_fd(), &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Waits for frame `number`.
    pub fn receive(&mut self, number: u32) -> anyhow::Result<()> {
        let start = Instant::now();
        let (id, len) = loop {
            match self.rx.take() {
                Some(used) => break used,
                None if start.elapsed() > TIMEOUT => bail!("frame {number} did not arrive"),
                None => std::hint::spin_loop(),
            }
        };
        let buffer = self.buffers[usize::from(id)];
        let mut got = [0; 4];
        self.ram.read(buffer + (HEADER + 14) as u64, &mut got);
        if len as usize != HEADER + FRAME || got != number.to_be_bytes() {
            bail!("frame {number} arrived with {len} bytes as {got:?}");
        }
        let posted = self.rx.post(&[into(buffer, BUFFER)]);
        self.buffers[usize::from(posted)] = buffer;
        Ok(())
    }
}

/// A frame there, a frame back, the next one after `pause`.
pub fn round_trips(pair: &mut [Nic; 2], length: Duration, pause: Duration) -> anyhow::Result<Sample> {
    let (mut number, mut talked) = (0u32, Duration::ZERO);
    let start = Instant::now();
    while start.elapsed() < length {
        let began = Instant::now();
        for (from, to) in [(0, 1), (1, 0)] {
            number = number.wrapping_add(1);
            pair[from].send(number)?;
            pair[to].receive(number)?;
        }
        talked += began.elapsed();
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    Ok(Sample::rate(u64::from(number / 2), talked))
}
