//! Two NICs of a daemon, of which the first sends.

use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use vmlane_guestsim::attached::AttachedNic;
use vmlane_guestsim::nic::{DriverSpec, NicDriver, TxRequest};

use crate::vsock::{Backend, Nic, mac};

/// As long as a frame may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(30);
const FRAME: usize = 64;

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

impl Pair {
    pub fn start(program: &Path, model: Model, mode: &str) -> anyhow::Result<Pair> {
        let dir = crate::folders::temporary()?;
        let address = |cid| mac(cid).map(|byte| format!("{byte:02x}")).join(":");
        let vm = |cid: u32| {
            let nic = model.nic(&address(cid));
            format!("[[vm]]\nname = \"v{cid}\"\nvsock = \"none\"\nnic = [ {nic} ]\n")
        };
        let config = format!("[daemon]\nmode = \"{mode}\"\n{}{}", vm(3), vm(4));
        let sockets = [3, 4].map(|cid| dir.join(format!("run/vm/v{cid}/nic0.sock")));
        let mut backend = Backend::of(program, &dir, &config, sockets.clone())?;
        sockets.iter().try_for_each(|socket| backend.await_socket(socket))?;
        let [a, b] = &sockets;
        let ends = match model {
            Model::Virtio => Ends::Virtio(Box::new([Nic::attach(a, 3, 4)?, Nic::attach(b, 4, 3)?])),
            Model::Vmxnet3 | Model::Full => {
                let card = |socket| Card::attach(socket, model);
                Ends::Vmxnet3(Box::new([card(a)?, card(b)?]))
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
                let frame = [&mac(4)[..], &mac(3), &[0x88, 0xb5], &[0; FRAME - 14]].concat();
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
