//! virtio NICs under a driver from elsewhere: DPDK's testpmd has two virtio-user ports and forwards what one
//! receives out of the other, to the first one's address, so the same frames go round and round through the
//! switch: ours, or Open vSwitch with DPDK. Both are polled on the first CPU, testpmd on the second; frames
//! are counted by testpmd.

mod ours;
mod ovs;
mod testpmd;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::baseline::Cpus;
use crate::report::{GBITS, Only, Registry, Sample};
use anyhow::{Context as _, ensure};
use vmlane_lab::setup::{Progress, dpdk};

const MFRAMES: &str = "Mframes/s";
/// The frames of a row, in testpmd's rings.
#[derive(Clone, Copy)]
struct Load {
    /// Of a frame, without check sequence.
    bytes: usize,
    /// The rings' layout.
    packed: bool,
}

/// Names of the rows.
const ROWS: [(&str, Load); 3] = [
    ("64", Load { bytes: 64, packed: false }),
    ("1500", Load { bytes: 1500, packed: false }),
    ("64.packed", Load { bytes: 64, packed: true }),
];
/// The addresses of testpmd's ports.
const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 1, 0], [0x52, 0x54, 0, 0, 1, 1]];

/// Adds the rows that begin with `only`, if their programs are available; else returns the reason.
pub fn register(registry: &mut Registry, only: &Only) {
    let names =
        ROWS.iter().flat_map(|(row, _)| ["virtio.frames", "ovs.frames"].map(|by| format!("{by}.{row}")));
    if !names.clone().any(|name| only.wants(&name)) {
        return;
    }
    let rig = match Rig::new() {
        Ok(rig) => Rc::new(rig),
        Err(error) => {
            let names = names.collect::<Vec<_>>().join(", ");
            return eprintln!("left out: {names}: {error:#}");
        }
    };
    for (row, load) in ROWS {
        let (unit, value): (_, fn(f64, usize) -> f64) = if load.bytes == 64 {
            (MFRAMES, |frames, _| frames / 1e6)
        } else {
            (GBITS, |frames, bytes| frames * bytes as f64 * 8.0 / 1e9)
        };
        let value = move |frames| value(frames, load.bytes);
        let ovs = format!("ovs.frames.{row}");
        let here = rig.clone();
        registry.add(&format!("virtio.frames.{row}"), unit, &[&ovs], move |length| {
            sample(ours::frames(&here, load, length), value)
        });
        let there = rig.clone();
        registry.add(&ovs, unit, &[], move |length| sample(ovs::frames(&there, load, length), value));
    }
}

fn sample(frames: anyhow::Result<f64>, value: impl Fn(f64) -> f64) -> io::Result<Sample> {
    let frames = frames.map_err(|error| io::Error::other(format!("{error:#}")))?;
    Ok(Sample { value: value(frames) })
}

/// What all rows here share.
struct Rig {
    dpdk: dpdk::Dpdk,
    /// Sockets and Open vSwitch's database.
    dir: PathBuf,
    /// Of the switch and of testpmd.
    cpus: [usize; 2],
}

impl Rig {
    fn new() -> anyhow::Result<Rig> {
        let cpus = Cpus::allowed().numbers();
        let [switch, driver, ..] = cpus[..] else {
            anyhow::bail!("two CPUs are needed, one for each side");
        };
        ensure!(rustix::process::geteuid().is_root(), "Open vSwitch runs as root only");
        let dpdk = dpdk::ensure(&Progress(&|line| eprintln!("{line}")))?;
        let dir = crate::folders::temporary().context("a folder for sockets")?;
        Ok(Rig { dpdk, dir, cpus: [switch, driver] })
    }

    fn sockets(&self) -> [PathBuf; 2] {
        ["vh0", "vh1"].map(|name| self.dir.join(name))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// How long a sample is at least: programs are asked for their counters over a pipe.
fn window(length: Duration) -> Duration {
    length.max(Duration::from_millis(400))
}
