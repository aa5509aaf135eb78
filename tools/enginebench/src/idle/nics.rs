//! Two NICs of a daemon, of which the first sends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use vmlane_guestsim::attached::AttachedNic;
use vmlane_guestsim::nic::{DriverSpec, NicDriver, TxRequest};

use crate::vsock::{Backend, Nic, mac};

/// As long as a frame may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(30);
const FRAME: usize = 64;
/// The number of the first VM.
const FIRST: u32 = 3;

/// What the NICs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    Virtio,
    /// VMXNET3 with the profile of this name.
    Vmxnet3,
    Full,
}

impl Model {
    /// As `[[vm]]` lists them.
    fn nic(self, mac: &str) -> String {
        let model = match self {
            Model::Virtio => "model = \"virtio-net\"",
            Model::Vmxnet3 => "model = \"vmxnet3\", profile = \"vmxnet3\"",
            Model::Full => "model = \"vmxnet3\", profile = \"full\"",
        };
        format!("{{ {model}, mac = \"{mac}\" }}")
    }

    fn revision(self) -> u8 {
        if self == Model::Full { 7 } else { 6 }
    }
}

/// A daemon with two NICs.
pub struct Pair {
    ends: Ends,
    backend: Backend,
}

enum Ends {
    Virtio(Box<[Nic; 2]>),
    Vmxnet3(Box<[Card; 2]>),
}

/// A VMXNET3 card and its driver.
struct Card {
    registers: AttachedNic,
    driver: NicDriver,
    /// Its doorbells are trapped. Those of others are words of a page that no one is notified of.
    announces: bool,
}

impl Card {
    fn attach(socket: &Path, model: Model) -> anyhow::Result<Card> {
        let registers = AttachedNic::attach(socket, 16 << 20)?;
        let mut driver = NicDriver::probe(&registers, DriverSpec::linux(model.revision()));
        driver.open(&registers);
        Ok(Card { registers, driver, announces: model == Model::Full })
    }
}

/// A daemon with VMs that have a NIC each, and their sockets.
fn daemon<const COUNT: usize>(
    program: &Path,
    model: Model,
    mode: &str,
) -> anyhow::Result<(Backend, [PathBuf; COUNT])> {
    let dir = crate::folders::temporary()?;
    let address = |cid| mac(cid).map(|byte| format!("{byte:02x}")).join(":");
    let numbers: [u32; COUNT] = std::array::from_fn(|at| FIRST + at as u32);
    let vms = numbers.map(|cid| {
        let nic = model.nic(&address(cid));
        format!("[[vm]]\nname = \"v{cid}\"\nvsock = \"none\"\nnic = [ {nic} ]\n")
    });
    let config = format!("[daemon]\nmode = \"{mode}\"\n{}", vms.concat());
    let sockets = numbers.map(|cid| dir.join(format!("run/vm/v{cid}/nic0.sock")));
    let of_two = [&sockets[0], sockets.last().context("a VM")?].map(PathBuf::clone);
    let mut backend = Backend::of(program, &dir, &config, of_two)?;
    sockets.iter().try_for_each(|socket| backend.await_socket(socket))?;
    Ok((backend, sockets))
}

/// A daemon with VMXNET3 cards that announce, whose guests do nothing.
pub struct Idle {
    backend: Backend,
    _cards: Vec<Card>,
}

impl Idle {
    pub fn start<const COUNT: usize>(program: &Path) -> anyhow::Result<Idle> {
        let (backend, sockets) = daemon::<COUNT>(program, Model::Full, "adaptive")?;
        let cards = sockets.iter().map(|socket| Card::attach(socket, Model::Full));
        let cards = cards.collect::<Result<_, _>>()?;
        std::thread::sleep(super::UNTIL_IDLE);
        Ok(Idle { backend, _cards: cards })
    }

    pub fn pid(&self) -> u32 {
        self.backend.pid()
    }
}

impl Pair {
    pub fn start(program: &Path, model: Model, mode: &str) -> anyhow::Result<Pair> {
        let (backend, [a, b]) = daemon(program, model, mode)?;
        let ends = match model {
            Model::Virtio => Ends::Virtio(Box::new([
                Nic::attach(&a, FIRST, FIRST + 1)?,
                Nic::attach(&b, FIRST + 1, FIRST)?,
            ])),
            Model::Vmxnet3 | Model::Full => {
                let card = |socket: &PathBuf| Card::attach(socket, model);
                Ends::Vmxnet3(Box::new([card(&a)?, card(&b)?]))
            }
        };
        std::thread::sleep(super::AFTER_ATTACH);
        Ok(Pair { ends, backend })
    }

    pub fn pid(&self) -> u32 {
        self.backend.pid()
    }

    /// How long a frame takes from the driver's call until it lies in the other guest's memory.
    pub fn one_way(&mut self) -> anyhow::Result<Duration> {
        let start = Instant::now();
        match &mut self.ends {
            Ends::Virtio(nics) => {
                let [from, to] = &mut **nics;
                from.send(0)?;
                to.receive(0)?;
                Ok(start.elapsed())
            }
            Ends::Vmxnet3(cards) => {
                let [from, to] = &mut **cards;
                from.driver.tx[0].reap();
                let frame = [&mac(FIRST + 1)[..], &mac(FIRST), &[0x88, 0xb5], &[0; FRAME - 14]].concat();
                let posted = from.driver.tx[0].send(&frame, &[], &TxRequest::NONE);
                anyhow::ensure!(posted, "the transmit ring is full");
                fence(Ordering::SeqCst);
                if from.announces
                    && let Some(doorbell) = from.driver.doorbell(0)
                {
                    from.registers.post_page(doorbell, 1);
                }
                while to.driver.rx[0].receive().is_none() {
                    if start.elapsed() > TIMEOUT {
                        return Err(anyhow::anyhow!("{TIMEOUT:?}")).context("a frame did not arrive");
                    }
                    std::hint::spin_loop();
                }
                Ok(start.elapsed())
            }
        }
    }
}
