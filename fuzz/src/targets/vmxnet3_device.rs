//! The whole NIC, as its guest and its VMM see it: registers, commands, shared area and rings in any
//! order, frames both ways, memory taken away and announced again, and memory that changes while the device
//! looks at it. An orderly driver that comes afterwards finds a working NIC.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::Thread;
use std::time::Instant;

use vmlane_device::pci::{CONFIG_REGION, PciDevice};
use vmlane_device::vmxnet3::Profile;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, RxShape, TxRequest};
use vmlane_mem::MemoryMap;
use vmlane_wire::vmxnet3::regs::{Command, Reg};
use vmlane_wire::vmxnet3::shared::{EXTENDED_SIZE, QUEUE_SIZE};

use crate::Input;
use crate::nic::Sender;

/// A guest's memory, and places in it with their lengths.
type Target = (MemoryMap, Vec<(u64, u64)>);

/// Scribbles on places of a guest's memory while it is told to.
struct Scribbler {
    target: Mutex<Option<Target>>,
    on: AtomicBool,
}

static SCRIBBLER: LazyLock<(Arc<Scribbler>, Thread)> = LazyLock::new(|| {
    let scribbler = Arc::new(Scribbler { target: Mutex::new(None), on: AtomicBool::new(false) });
    let its = scribbler.clone();
    let thread = std::thread::spawn(move || {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        loop {
            if !its.on.load(Ordering::Acquire) {
                std::thread::park();
                continue;
            }
            let target = its.target.lock().expect("whole");
            let Some((memory, places)) = &*target else { continue };
            for _ in 0..64 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let (base, len) = places[(random >> 50) as usize % places.len()];
                let at = base + (random >> 20) % len;
                let bytes = random.to_le_bytes();
                let _ = memory.write(at, &bytes[..1 + (random & 3) as usize]);
            }
        }
    });
    (scribbler, thread.thread().clone())
});

/// While it lives, memory changes.
struct Scribbling;

impl Scribbling {
    fn on(memory: MemoryMap, places: Vec<(u64, u64)>) -> Scribbling {
        let (scribbler, thread) = &*SCRIBBLER;
        *scribbler.target.lock().expect("whole") = Some((memory, places));
        scribbler.on.store(true, Ordering::Release);
        thread.unpark();
        Scribbling
    }
}

impl Drop for Scribbling {
    fn drop(&mut self) {
        SCRIBBLER.0.on.store(false, Ordering::Release);
        *SCRIBBLER.0.target.lock().expect("whole") = None;
    }
}

struct World {
    machine: NicMachine,
    driver: NicDriver,
    whole: MemoryMap,
    sender: Sender,
}

impl World {
    fn new(input: &mut Input<'_>) -> (World, Profile) {
        let profile = Profile::ALL[usize::from(input.byte()) % Profile::ALL.len()];
        let queues = [1, 2, 9][usize::from(input.byte()) % 3];
        let machine = NicMachine::new(|config| (config.profile, config.max_queues) = (profile, 32));
        let rx = RxShape { ring0: 8, ring1: 4, completions: 12, data: 128, ..RxShape::linux(8) };
        let revision = 1 + input.byte() % profile.revision();
        let spec = DriverSpec { tx: 8, rx, ..DriverSpec::linux(revision).with_queues(queues) };
        let driver = NicDriver::probe(&machine, spec);
        let whole = machine.map();
        (World { machine, driver, whole, sender: Sender::new() }, profile)
    }

    /// Where the device looks: shared area, queue descriptors, RSS block, rings.
    fn places(&self) -> Vec<(u64, u64)> {
        let driver = &self.driver;
        let table = (driver.table, 2 * QUEUE_SIZE as u64);
        let area = (driver.area, EXTENDED_SIZE as u64);
        let rings = [driver.tx[0].addresses[0], driver.rx[0].addresses()[0], driver.rx[0].addresses()[1]];
        [area, table, (driver.rss_at, 256)].into_iter().chain(rings.map(|ring| (ring, 128))).collect()
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let places = self.places();
        let World { machine, driver, whole, sender } = self;
        match input.byte() % 20 {
            0..=2 => {
                let region = [0, 1, 1, 2, CONFIG_REGION][usize::from(input.byte()) % 5];
                let offset =
                    if input.byte() & 3 == 0 { input.number::<2>() } else { 8 * (input.number::<1>() % 16) };
                let len = [4, 4, 4, 1, 2, 8, 3, 17][usize::from(input.byte()) % 8];
                if input.byte() & 1 == 0 {
                    let _ = machine.device.lock().read(region, offset, &mut vec![0; len]);
                } else {
                    let _ =
                        machine.device.lock().write(region, offset, input.bytes(len), input.byte() & 1 == 1);
                }
            }
            3..=6 => {
                let at = usize::from(input.byte()) % (Command::ALL.len() + 1);
                let code =
                    Command::ALL.get(at).map_or_else(|| input.number::<4>() as u32, |command| command.code());
                machine.command_code(code);
            }
            7 | 8 => {
                driver.store(machine);
                machine.set_bus_master(true);
                machine.set_shared(driver.area);
                driver.rx.iter_mut().for_each(|queue| queue.fill());
                machine.command(Command::Activate);
            }
            9..=12 => {
                let (base, len) = places[usize::from(input.byte()) % places.len()];
                let offset = input.number::<2>() % len;
                let count = usize::from(input.byte() % 16);
                let _ = whole.write(base + offset, input.bytes(count));
            }
            13 => {
                let len = 14 + input.number::<2>() as usize % 3000;
                let frame = vec![input.byte(); len];
                let queue = usize::from(input.byte()) % driver.tx.len();
                if driver.tx[queue].room() > 2 {
                    driver.tx[queue].send(&frame, &[], &TxRequest::NONE);
                }
            }
            14 | 15 => {
                let mut head = [0; 192];
                let packet = sender.packet(input, &mut head);
                machine.frames.with(|end| {
                    let fits = packet.len() <= end.capabilities().frame;
                    if fits && packet.aggregate.is_none() {
                        let _ = end.deliver_one(&packet);
                    }
                });
            }
            16 | 17 => {
                machine.frames.with(|end| {
                    let mut in_flight = Vec::new();
                    while let Some(token) = end.fetch_one().filter(|_| in_flight.len() < 64) {
                        let frame = end.frame(token);
                        let mut bytes = vec![0; frame.len()];
                        frame.spans.read(0, &mut bytes);
                        in_flight.push(token);
                    }
                    in_flight.into_iter().for_each(|token| end.finish(&[token]));
                    end.flush(Instant::now());
                    end.tick(Instant::now());
                });
            }
            18 => match input.byte() % 5 {
                0 => machine.device.lock().reset(),
                1 => machine.set_bus_master(input.byte() & 1 == 1),
                2 => machine.handle.set_link(input.byte() & 1 == 1),
                3 => machine.device.lock().irqs_changed(),
                _ => {
                    machine.frames.with(|end| {
                        end.fail();
                    });
                }
            },
            _ => {
                if input.byte() & 1 == 0 {
                    for (start, len, _) in machine.ram.regions() {
                        machine.device.lock().unmap(start, len);
                    }
                    machine.set_map(MemoryMap::default());
                } else {
                    machine.set_map(whole.clone());
                }
            }
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
        self.machine.write(Reg::Command, Command::Quiesce.code());
        assert!(!self.machine.frames.is_attached());
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let scribble = input.byte() & 7 == 0;
    let (mut world, profile) = World::new(&mut input);
    {
        let _scribbling = scribble.then(|| Scribbling::on(world.whole.clone(), world.places()));
        for _ in 0..150 {
            if input.is_empty() {
                break;
            }
            world.act(&mut input);
        }
    }
    if data.first().is_some_and(|byte| byte & 0x18 == 0) {
        world.assert_alive(profile.revision());
    }
}
