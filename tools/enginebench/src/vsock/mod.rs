//! virtio-vsock between siblings: two synthetic guests, CID 3 and CID 4, whose devices are served by our
//! daemon or by vhost-device-vsock. Either is a process of its own with its defaults, started anew for each
//! sample; the guests' driver is the same. Rows with a VMCI guest or a program of the host at the other end:
//! `mixed.rs`.

mod backend;
mod guest;
mod many;
mod mixed;
mod nics;
mod ring;
mod traffic;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use crate::report::{GBITS, Only, ROUND_TRIPS, Registry, Sample};
use anyhow::Context as _;
use vmlane_lab::setup::{Progress, vhost_device_vsock};

pub use backend::{Backend, vmlane};
pub use nics::{Nic, mac};

use guest::Guest;

/// vhost-device-vsock cuts no packet to its receiver's buffers. This is the longest write that its siblings
/// exchange without hanging.
const FITS: usize = 3720;
const THEIRS: &str = "vhost-device-vsock";

/// Adds the rows that begin with `only`, if their programs are available; else returns the reason.
pub fn register(registry: &mut Registry, only: &Only) {
    mixed::register(registry);
    if let Err(error) = many::register(registry) {
        eprintln!("left out: the rows of many VMs: {error:#}");
    }
    let ours = ["stream.64k", "stream.3720", "rr.1"].map(|row| format!("virtio.vsock.{row}"));
    let theirs = ["stream.3720", "rr.1"].map(|row| format!("{THEIRS}.{row}"));
    if !ours.iter().chain(&theirs).any(|name| only.wants(name)) {
        return;
    }
    let rig = match Rig::new() {
        Ok(rig) => Rc::new(rig),
        Err(error) => return eprintln!("left out: {}: {error:#}", ours.join(", ")),
    };
    let other = match vhost_device_vsock::ensure(&Progress(&|line| eprintln!("{line}"))) {
        Ok(program) => Some(program),
        Err(error) => {
            eprintln!("left out: {}: {error:#}", theirs.join(", "));
            None
        }
    };
    let beside = |index: usize| other.iter().map(|_| theirs[index].as_str()).collect::<Vec<_>>();
    let [long, fitting, round_trips] = ours.each_ref();
    let here = rig.clone();
    registry.add(long, GBITS, &["vmci.stream.64k"], move |length| {
        between(here.ours(), |guests| traffic::stream(guests, 64 << 10, length))
    });
    let here = rig.clone();
    registry.add(fitting, GBITS, &beside(0), move |length| {
        between(here.ours(), |guests| traffic::stream(guests, FITS, length))
    });
    let here = rig.clone();
    registry.add(round_trips, ROUND_TRIPS, &beside(1), move |length| {
        between(here.ours(), |guests| traffic::round_trips(guests, length))
    });
    let Some(program) = other else { return };
    let (there, started) = (rig.clone(), program.clone());
    registry.add(&theirs[0], GBITS, &[], move |length| {
        between(there.theirs(&started), |guests| traffic::stream(guests, FITS, length))
    });
    registry.add(&theirs[1], ROUND_TRIPS, &[], move |length| {
        between(rig.theirs(&program), |guests| traffic::round_trips(guests, length))
    });
}

/// Two guests of a back end that ends with the sample.
fn between(
    backend: anyhow::Result<Backend>,
    run: impl FnOnce([Guest; 2]) -> anyhow::Result<Sample>,
) -> io::Result<Sample> {
    let run = || {
        let mut backend = backend?;
        run(backend.guests()?)
    };
    run().map_err(|error| io::Error::other(format!("{error:#}")))
}

/// What all rows here share.
struct Rig {
    vmlane: PathBuf,
    /// Sockets, logs and a configuration.
    dir: PathBuf,
}

impl Rig {
    fn new() -> anyhow::Result<Rig> {
        let vmlane = vmlane()?;
        let dir = crate::folders::temporary().context("a folder for sockets")?;
        Ok(Rig { vmlane, dir })
    }

    fn ours(&self) -> anyhow::Result<Backend> {
        Backend::ours(&self.vmlane, &self.dir.join("ours"))
    }

    fn theirs(&self, program: &std::path::Path) -> anyhow::Result<Backend> {
        Backend::theirs(program, &self.dir.join("theirs"))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
