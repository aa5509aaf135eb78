//! Registers, commands and memory in any order: whatever a guest does, nothing panics, nothing is
//! half active, and an orderly driver finds a working NIC afterwards.

use std::time::Instant;

use proptest::prelude::*;
use vmlane_device::pci::{CONFIG_REGION, PciDevice};
use vmlane_device::vmxnet3::Profile;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{deliver, frame, try_deliver};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, RxShape};
use vmlane_mem::MemoryMap;
use vmlane_wire::vmxnet3::regs::{Command, Reg};
use vmlane_wire::vmxnet3::shared::{EXTENDED_SIZE, QUEUE_SIZE};

/// Something a guest, its VMM or its operator does.
#[derive(Clone, Debug)]
enum Deed {
    Write {
        region: usize,
        offset: u64,
        data: Vec<u8>,
        posted: bool,
    },
    Read {
        region: usize,
        offset: u64,
        len: usize,
    },
    Command(u32),
    /// The driver's copies into memory, the area latched.
    Store,
    /// A byte of the shared area, of a queue descriptor, of the RSS block or of a ring.
    Scribble {
        place: usize,
        offset: usize,
        bytes: Vec<u8>,
    },
    Link(bool),
    Frame(usize),
    Poll,
    Reset,
    BusMaster(bool),
    Unmap,
    Remap,
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let edge = prop_oneof![Just(0u8), Just(1), Just(0xff), Just(0x80), any::<u8>()];
    proptest::collection::vec(edge, 1..9)
}

fn command() -> impl Strategy<Value = u32> {
    let known = (0..Command::ALL.len()).prop_map(|at| Command::ALL[at].code());
    prop_oneof![
        6 => known,
        4 => Just(Command::Activate.code()),
        1 => any::<u32>(),
    ]
}

fn deed() -> impl Strategy<Value = Deed> {
    let offset = prop_oneof![4 => (0..16u64).prop_map(|reg| 8 * reg), 1 => 0..0x2000u64];
    let place = (prop_oneof![Just(0usize), Just(1), Just(1), Just(2), Just(CONFIG_REGION)], offset);
    let word = prop_oneof![4 => proptest::collection::vec(any::<u8>(), 4), 1 => bytes()];
    prop_oneof![
        4 => (place.clone(), word, any::<bool>())
            .prop_map(|((region, offset), data, posted)| Deed::Write { region, offset, data, posted }),
        1 => (place, 0..17usize).prop_map(|((region, offset), len)| Deed::Read { region, offset, len }),
        8 => command().prop_map(Deed::Command),
        6 => Just(Deed::Store),
        8 => (0..6usize, 0..EXTENDED_SIZE, bytes())
            .prop_map(|(place, offset, bytes)| Deed::Scribble { place, offset, bytes }),
        1 => any::<bool>().prop_map(Deed::Link),
        4 => (14..1600usize).prop_map(Deed::Frame),
        4 => Just(Deed::Poll),
        1 => Just(Deed::Reset),
        1 => any::<bool>().prop_map(Deed::BusMaster),
        1 => Just(Deed::Unmap),
        1 => Just(Deed::Remap),
    ]
}

struct World {
    machine: NicMachine,
    driver: NicDriver,
    whole: MemoryMap,
}

impl World {
    fn new(profile: Profile, queues: u8) -> World {
        let machine = NicMachine::new(|config| (config.profile, config.max_queues) = (profile, 32));
        let rx = RxShape { ring0: 8, ring1: 4, completions: 12, data: 128, ..RxShape::linux(8) };
        let spec = DriverSpec { tx: 8, rx, ..DriverSpec::linux(profile.revision()).with_queues(queues) };
        let driver = NicDriver::probe(&machine, spec);
        let whole = machine.map();
        World { machine, driver, whole }
    }

    fn act(&mut self, deed: &Deed) {
        let (machine, driver) = (&self.machine, &mut self.driver);
        match deed {
            Deed::Write { region, offset, data, posted } => {
                let _ = machine.device.lock().write(*region, *offset, data, *posted);
            }
            Deed::Read { region, offset, len } => {
                let _ = machine.device.lock().read(*region, *offset, &mut vec![0; *len]);
            }
            Deed::Command(code) => {
                machine.command_code(*code);
            }
            Deed::Store => {
                driver.store(machine);
                machine.set_bus_master(true);
                machine.set_shared(driver.area);
                driver.rx.iter_mut().for_each(|queue| queue.fill());
            }
            Deed::Scribble { place, offset, bytes } => {
                let base = match place {
                    0..=1 => driver.area,
                    2 => driver.table + (offset % 2 * QUEUE_SIZE) as u64,
                    3 => driver.rss_at,
                    4 => driver.tx[0].addresses[0],
                    _ => driver.rx[0].addresses()[0],
                };
                machine.ram.write(base + *offset as u64, bytes);
            }
            Deed::Link(up) => machine.handle.set_link(*up),
            Deed::Frame(len) => {
                if machine.frames.is_attached() {
                    let _ = try_deliver(machine, &frame(*len));
                }
            }
            Deed::Poll => {
                machine.frames.with(|end| {
                    for _ in 0..64 {
                        let Some(token) = end.fetch_one() else { break };
                        end.finish(&[token]);
                    }
                    end.flush(Instant::now());
                    end.tick(Instant::now());
                });
            }
            Deed::Reset => machine.device.lock().reset(),
            Deed::BusMaster(on) => machine.set_bus_master(*on),
            Deed::Unmap => {
                for (start, len, _) in machine.ram.regions() {
                    machine.device.lock().unmap(start, len);
                }
                machine.set_map(MemoryMap::default());
            }
            Deed::Remap => machine.set_map(self.whole.clone()),
        }
        assert_eq!(machine.handle.view().active, machine.frames.is_attached());
    }

    /// A driver that is loaded now finds a working NIC.
    fn assert_alive(&self, revision: u8) {
        self.machine.device.lock().reset();
        self.machine.set_map(self.whole.clone());
        self.machine.set_bus_master(true);
        self.machine.handle.set_link(true);
        let mut driver = NicDriver::probe(&self.machine, DriverSpec::linux(revision));
        driver.open(&self.machine);
        assert!(deliver(&self.machine, &frame(333)));
        assert_eq!(driver.rx[0].receive().map(|received| received.bytes), Some(frame(333)));
        self.machine.write(Reg::Command, Command::Quiesce.code());
        assert!(!self.machine.frames.is_attached());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_whatever_a_guest_does(
        deeds in proptest::collection::vec(deed(), 1..120),
        profile in (0..3usize).prop_map(|at| Profile::ALL[at]),
        queues in prop_oneof![Just(1u8), Just(2), Just(9)],
    ) {
        let mut world = World::new(profile, queues);
        for deed in &deeds {
            world.act(deed);
        }
        world.assert_alive(profile.revision());
    }

    /// An orderly driver but for a few bytes, so that activations often succeed.
    #[test]
    fn a_spoiled_activation_is_whole_or_none(
        spoils in proptest::collection::vec((0..6usize, 0..EXTENDED_SIZE, bytes()), 0..6),
        revision in 1..8u8,
    ) {
        let mut world = World::new(Profile::Full, 2);
        world.driver = NicDriver::probe(&world.machine, DriverSpec {
            revision, ..world.driver.spec.clone()
        });
        world.act(&Deed::Store);
        for (place, offset, bytes) in spoils {
            world.act(&Deed::Scribble { place, offset, bytes });
        }
        let refused = world.machine.command(Command::Activate) != 0;
        prop_assert_eq!(refused, !world.machine.frames.is_attached());
        prop_assert_eq!(refused, world.machine.handle.view().refused.is_some());
        for _ in 0..3 {
            world.act(&Deed::Frame(700));
            world.act(&Deed::Poll);
            world.act(&Deed::Command(Command::GetStats.code()));
            world.act(&Deed::Command(Command::UpdateRss.code()));
        }
        world.assert_alive(revision);
    }
}
