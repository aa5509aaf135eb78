//! Many VMs that are attached and idle: what they cost the daemon, and a pair among them that talks. Each has
//! a virtio NIC and virtio-vsock, so two sessions.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use vmlane_guestsim::Ram;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::DriverRing;
use vmlane_wire::virtio::feature;

use super::backend::{self, Backend};
use super::guest::Guest;
use super::nics::{self, BUFFER, Nic, SIZE, mac};
use super::traffic;
use crate::baseline::{Cpus, PAUSE};
use crate::process::cpu_time;
use crate::report::{ROUND_TRIPS, Registry, Sample};

/// VMs that are configured and attached, the pair that talks among them.
const MANY: u32 = 512;
const FIRST: u32 = 3;
/// What the daemon does about an attached VM is done after so long.
const AFTER_ATTACH: Duration = Duration::from_secs(2);
/// The least time in which a small part of a core can be distinguished from nothing.
const WATCHED: Duration = Duration::from_secs(2);

/// A daemon with idle VMs.
struct Crowd {
    backend: Backend,
    pair: [PathBuf; 2],
    nics: RefCell<[Nic; 2]>,
    _idle: Vec<Idle>,
}

/// An idle VM.
struct Idle {
    _guest: Guest,
    _front: Front,
    _rings: [(DriverRing, RingEvents); 2],
    _ram: std::sync::Arc<Ram>,
}

/// Adds the rows.
pub fn register(registry: &mut Registry) -> anyhow::Result<()> {
    let program = backend::vmlane()?;
    let many = Rc::new(Started::new(program.clone(), MANY));
    let few = Rc::new(Started::new(program, 2));
    let here = many.clone();
    registry.add("many.memory.512", "KiB a VM", &[], move |_| here.with(|crowd| crowd.memory()));
    let here = many.clone();
    registry.add("many.idle.512", "% of a core", &[], move |length| {
        here.with(|crowd| crowd.load(length.max(WATCHED)))
    });
    let pair = few.clone();
    registry.add("many.rr.2", ROUND_TRIPS, &[], move |length| pair.with(|crowd| crowd.round_trips(length)));
    let here = many.clone();
    registry.add("many.rr.512", ROUND_TRIPS, &["many.rr.2"], move |length| {
        here.with(|crowd| crowd.round_trips(length))
    });
    for (row, pause, beside) in [("rr", Duration::ZERO, None), ("asleep", PAUSE, Some("unix.asleep.1"))] {
        let [of_few, of_many] = [2, MANY].map(|count| format!("many.nic.{row}.{count}"));
        let (few, many) = (few.clone(), many.clone());
        registry.add(&of_few, ROUND_TRIPS, beside.as_slice(), move |length| {
            few.with(|crowd| crowd.frames(length, pause))
        });
        registry.add(&of_many, ROUND_TRIPS, &[&of_few], move |length| {
            many.with(|crowd| crowd.frames(length, pause))
        });
    }
    Ok(())
}

/// A crowd that is started when the first row needs it.
struct Started {
    program: PathBuf,
    count: u32,
    crowd: RefCell<Option<Crowd>>,
}

impl Started {
    fn new(program: PathBuf, count: u32) -> Started {
        Started { program, count, crowd: RefCell::new(None) }
    }

    fn with(&self, run: impl FnOnce(&Crowd) -> anyhow::Result<Sample>) -> io::Result<Sample> {
        let mut crowd = self.crowd.borrow_mut();
        let run = || {
            if crowd.is_none() {
                *crowd = Some(Crowd::start(&self.program, self.count)?);
            }
            run(crowd.as_ref().context("no crowd")?)
        };
        run().map_err(|error| io::Error::other(format!("{error:#}")))
    }
}

impl Crowd {
    fn start(program: &Path, count: u32) -> anyhow::Result<Crowd> {
        let dir = crate::folders::temporary()?;
        let mut config = String::from("[[port_group]]\nname = \"all\"\n");
        for cid in FIRST..FIRST + count {
            writeln!(config, "[[vm]]\nname = \"v{cid}\"\ncid = {cid}\nvsock = \"virtio\"")?;
            let mac = mac(cid).map(|byte| format!("{byte:02x}")).join(":");
            writeln!(
                config,
                "nic = [ {{ model = \"virtio-net\", port_group = \"all\", mac = \"{mac}\" }} ]"
            )?;
        }
        let socket = |cid: u32, device: &str| dir.join(format!("run/vm/v{cid}/{device}.sock"));
        let pair = [FIRST, FIRST + 1].map(|cid| socket(cid, "vsock"));
        let mut backend = Backend::of(program, &dir, &config, pair.clone())?;
        // Once the pair can attach, all can.
        drop(backend.guests()?);
        let idle = (FIRST + 2..FIRST + count)
            .map(|cid| Idle::attach(cid, &socket(cid, "vsock"), &socket(cid, "nic0")))
            .collect::<Result<_, _>>()?;
        let nic = |cid, peer| Nic::attach(&socket(cid, "nic0"), cid, peer);
        let nics = RefCell::new([nic(FIRST, FIRST + 1)?, nic(FIRST + 1, FIRST)?]);
        std::thread::sleep(AFTER_ATTACH);
        Ok(Crowd { backend, pair, nics, _idle: idle })
    }

    fn round_trips(&self, length: Duration) -> anyhow::Result<Sample> {
        traffic::round_trips(traffic::attach(&self.pair, || Ok(()))?, length)
    }

    /// Frames after a pause find the daemon asleep. Then it has a CPU of its own, as the threads of the row
    /// beside have.
    fn frames(&self, length: Duration, pause: Duration) -> anyhow::Result<Sample> {
        let cpus = Cpus::allowed();
        let place = || anyhow::Ok((cpus.pin_process(self.backend.pid(), 0)?, cpus.pin(1)));
        let _placed = if pause.is_zero() { None } else { Some(place()?) };
        nics::round_trips(&mut self.nics.borrow_mut(), length, pause)
    }

    /// Memory of the daemon's own, without what guests share with it.
    fn memory(&self) -> anyhow::Result<Sample> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.backend.pid()))?;
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
        let kib: f64 = own.trim().trim_end_matches(" kB").parse()?;
        Ok(Sample { value: kib / f64::from(MANY) })
    }

    /// CPU time of all the daemon's threads while nothing happens.
    fn load(&self, length: Duration) -> anyhow::Result<Sample> {
        let (start, before) = (Instant::now(), cpu_time(self.backend.pid())?);
        std::thread::sleep(length);
        let used = cpu_time(self.backend.pid())?.saturating_sub(before);
        Ok(Sample { value: 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64() })
    }
}

impl Idle {
    fn attach(cid: u32, vsock: &Path, nic: &Path) -> io::Result<Idle> {
        let guest = Guest::attach(vsock, cid)?;
        let ram = std::sync::Arc::new(Ram::new(4 << 20));
        let mut front = Front::connect(nic, feature::VERSION_1 | feature::EVENT_INDEX)?;
        front.set_memory(&ram)?;
        let [mut rx, tx] = [0, 1].map(|_| DriverRing::new(&ram, SIZE, false));
        for _ in 0..SIZE {
            let addr = rx.alloc(BUFFER);
            rx.post(&[vmlane_guestsim::virtio::into(addr, BUFFER)]);
        }
        let events = [front.start(0, &rx.setup())?, front.start(1, &tx.setup())?];
        let [rx_events, tx_events] = events;
        Ok(Idle { _guest: guest, _front: front, _rings: [(rx, rx_events), (tx, tx_events)], _ram: ram })
    }
}
