//! What an access to a register of ours costs a VMM: two VMs of QEMU's own, without guests, whose vfio-user
//! devices are served by our daemon. QEMU does each access when its test protocol asks for it (`qtest`), so
//! nothing is emulated; an access to the VM's memory through the same socket shows what the method itself
//! takes. The daemon and both QEMUs start with the first of these rows.

mod guest;
mod qtest;

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use vmlane_lab::setup::{self, Progress, Qemu};
use vmlane_testkit::TWO_VMCI;
use vmlane_wire::vmci::Reg;

use crate::report::{Only, Registry, Sample};
use crate::vsock::{Backend, vmlane};
use guest::Guest;
use qtest::Machine;

const MICROSECONDS: &str = "us";
const ROWS: [&str; 3] = ["vfio.ram", "vfio.access", "vfio.notice"];

/// Adds the rows that begin with `only`, if their programs are available; else prints the reason.
pub fn register(registry: &mut Registry, only: &Only) {
    if !ROWS.iter().any(|name| only.wants(name)) {
        return;
    }
    let rig = match Rig::new() {
        Ok(rig) => Rc::new(rig),
        Err(error) => return eprintln!("left out: {}: {error:#}", ROWS.join(", ")),
    };
    let [ram, access, notice] = ROWS;
    let here = rig.clone();
    registry.add(ram, MICROSECONDS, &[], move |length| here.median(length, Pair::ram));
    let here = rig.clone();
    registry.add(access, MICROSECONDS, &[ram], move |length| here.median(length, Pair::access));
    registry.add(notice, MICROSECONDS, &[ram], move |length| rig.median(length, Pair::notice));
}

/// What the rows share.
struct Rig {
    vmlane: PathBuf,
    qemu: Qemu,
    pair: RefCell<Option<Pair>>,
}

impl Rig {
    fn new() -> anyhow::Result<Rig> {
        let vmlane = vmlane()?;
        let qemu = setup::qemu(&Progress(&|line| eprintln!("{line}")))?;
        Ok(Rig { vmlane, qemu, pair: RefCell::default() })
    }

    /// Microseconds of one action, the median of all that `length` has time for.
    fn median(&self, length: Duration, action: fn(&mut Pair) -> anyhow::Result<()>) -> io::Result<Sample> {
        let mut pair = self.pair.borrow_mut();
        let mut run = || {
            if pair.is_none() {
                *pair = Some(Pair::start(&self.vmlane, &self.qemu)?);
            }
            median(length, || action(pair.as_mut().context("no VMs")?))
        };
        run().map_err(|error: anyhow::Error| io::Error::other(format!("{error:#}")))
    }
}

fn median(length: Duration, mut action: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Sample> {
    let (start, mut taken) = (Instant::now(), Vec::new());
    while start.elapsed() < length || taken.is_empty() {
        let begun = Instant::now();
        action()?;
        taken.push(begun.elapsed());
    }
    taken.sort_unstable();
    Ok(Sample { value: taken[taken.len() / 2].as_secs_f64() * 1e6 })
}

/// Two VMs whose drivers are up, and the daemon behind them, which ends last.
struct Pair {
    a: Guest,
    b: Guest,
    _daemon: Backend,
}

impl Pair {
    fn start(vmlane: &Path, qemu: &Qemu) -> anyhow::Result<Pair> {
        let dir = crate::folders::temporary().context("a folder for sockets")?;
        let sockets = ["a", "b"].map(|name| dir.join("run/vm").join(name).join("vmci.sock"));
        let mut daemon = Backend::of(vmlane, &dir, TWO_VMCI, sockets.clone())?;
        let mut guest = |index: usize, cid| {
            let socket = &sockets[index];
            daemon.await_socket(socket)?;
            let machine = Machine::start(qemu, &dir.join(format!("{cid}.qtest")), socket)?;
            Guest::probe(machine).with_context(|| format!("the VM with CID {cid}"))
        };
        let (mut a, mut b) = (guest(0, 3)?, guest(1, 4)?);
        a.prepare_send((3, 4))?;
        b.prepare_receive()?;
        Ok(Pair { a, b, _daemon: daemon })
    }

    fn ram(&mut self) -> anyhow::Result<()> {
        self.a.read_ram().map(drop)
    }

    fn access(&mut self) -> anyhow::Result<()> {
        self.a.read(Reg::ResultLow).map(drop)
    }

    /// What a notice is in Linux: its sender asks for the result twice, its receiver fetches it once
    /// vector 0 was raised.
    fn notice(&mut self) -> anyhow::Result<()> {
        self.a.send()?;
        self.b.await_vector_0()?;
        self.b.receive()
    }
}
