//! One VM with one NIC of this process.

use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_mem::{MemoryMap, Window};
use vmlane_state::{Found, Journal, Records, Unusable};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::pci::{command, offset};
use vmlane_wire::vmxnet3::regs::{Command, PageReg, Reg};

use super::frames::{InlineFrames, PORT};
use crate::lines::Lines;
use crate::ram::Ram;
use vmlane_device::irq::IrqMode;
use vmlane_device::pci::{CONFIG_REGION, Checkpoint, Mapping, PciDevice, Survives};
use vmlane_device::vmxnet3::{NicConfig, NicHandle, Profile, Vmxnet3Device};

/// A VM that is switched on; no driver is loaded yet.
pub struct NicMachine {
    pub ram: Arc<Ram>,
    pub lines: Arc<Lines>,
    pub frames: Arc<InlineFrames>,
    pub handle: Arc<NicHandle>,
    pub mac: Mac,
    pub device: Mutex<Vmxnet3Device>,
    /// As announced to the device.
    map: Mutex<MemoryMap>,
    config: NicConfig,
}

/// What a NIC of a daemon that died leaves: files, and records of its session.
pub struct Remains {
    pub files: Found,
    pub records: Records,
    ram: Arc<Ram>,
    lines: Arc<Lines>,
    config: NicConfig,
    map: MemoryMap,
}

impl Remains {
    /// The next daemon's configuration has another profile.
    pub fn set_profile(&mut self, profile: Profile) {
        self.config.profile = profile;
    }
}

impl NicMachine {
    /// 16 MiB of memory, 65 vectors of MSI-X connected, bus mastering on.
    pub fn new(edit: impl FnOnce(&mut NicConfig)) -> NicMachine {
        let mut config = NicConfig::new(Mac([0x52, 0x54, 0, 0, 0, 3]));
        edit(&mut config);
        let lines = Lines::new(IrqMode::Msix { vectors: 65 });
        let frames = Arc::new(InlineFrames::default());
        let (handle, mac) = (config.handle.clone(), config.mac);
        let device =
            Vmxnet3Device::new(config.clone(), frames.clone(), PORT, lines.clone()).expect("a device");
        let ram = Arc::new(Ram::new(16 << 20));
        let map = Mutex::new(ram.device_map());
        let device = Mutex::new(device);
        let machine = NicMachine { ram, lines, frames, handle, mac, device, map, config };
        machine.announce();
        machine.set_bus_master(true);
        machine
    }

    /// The daemon dies after the last request: nothing of it sends or stores anything any more.
    pub fn die(self) -> Remains {
        let (remains, dead) = self.lie_dead();
        // Dropped, the device would stop its port in an orderly way.
        std::mem::forget(dead);
        remains
    }

    /// The same with what is left of the daemon itself, to be dropped once it is no longer needed.
    pub fn lie_dead(self) -> (Remains, impl Sized) {
        let log = Journal::create("session", 1, 128 << 10).expect("a file");
        self.device.lock().record(&log);
        log.commit();
        let file = log.file().try_clone().expect("one more descriptor");
        let (_, records) = Journal::open(file, 1, 128 << 10).expect("a sound file");
        let files = self.device.lock().files().into_iter().map(|(name, file)| (name.to_owned(), file));
        let files = Found(files.collect());
        let map = self.map();
        let NicMachine { ram, lines, frames, device, config, .. } = self;
        (Remains { files, records, ram, lines, config, map }, (device, frames))
    }

    /// The next daemon takes over, as `Session::resume` does. Also returns why it began anew, if it did.
    pub fn take_over(remains: Remains) -> (NicMachine, Result<(), Unusable>) {
        let Remains { mut files, records, ram, lines, config, map } = remains;
        let frames = Arc::new(InlineFrames::default());
        let config = NicConfig { handle: Arc::default(), ..config };
        let (handle, mac) = (config.handle.clone(), config.mac);
        let mut device =
            Vmxnet3Device::new(config.clone(), frames.clone(), PORT, lines.clone()).expect("a device");
        device.memory(&map);
        device.adopt(&mut files);
        let resumed = device.resume(Checkpoint { records: &records });
        if resumed.is_err() {
            device.abandon();
        }
        let (device, map) = (Mutex::new(device), Mutex::new(map));
        (NicMachine { ram, lines, frames, handle, mac, device, map, config }, resumed)
    }

    pub fn with_profile(profile: Profile) -> NicMachine {
        NicMachine::new(|config| config.profile = profile)
    }

    fn announce(&self) {
        self.device.lock().memory(&self.map.lock());
    }

    /// The memory map that the device was given last.
    pub fn map(&self) -> MemoryMap {
        self.map.lock().clone()
    }

    /// Announces another one.
    pub fn set_map(&self, map: MemoryMap) {
        *self.map.lock() = map;
        self.announce();
    }

    /// Takes a region away, as a VMM does.
    pub fn unmap(&self, start: u64, len: u64) {
        self.device.lock().unmap(start, len);
        let rest = self.map().unmap(start, len).expect("whole regions");
        self.set_map(rest);
    }

    pub fn set_bus_master(&self, on: bool) {
        let bits = if on { command::BUS_MASTER | command::MEMORY } else { command::MEMORY };
        let mut device = self.device.lock();
        let written = device.write(CONFIG_REGION, offset::COMMAND as u64, &bits.to_le_bytes(), false);
        written.expect("the command register");
    }

    pub fn read32(&self, region: usize, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.device.lock().read(region, offset, &mut data).expect("a register inside its region");
        u32::from_le_bytes(data)
    }

    pub fn write32(&self, region: usize, offset: u64, value: u32) {
        let mut device = self.device.lock();
        device.write(region, offset, &value.to_le_bytes(), false).expect("a register inside its region");
    }

    pub fn read(&self, reg: Reg) -> u32 {
        self.read32(1, reg.offset())
    }

    pub fn write(&self, reg: Reg, value: u32) {
        self.write32(1, reg.offset(), value);
    }

    /// A trapped access to BAR 0.
    pub fn write_page(&self, reg: PageReg, value: u32) {
        self.write32(0, reg.offset(), value);
    }

    /// BAR 0 as a VMM maps it, if it may.
    pub fn page(&self) -> Option<Window> {
        let Mapping { file, len } = self.device.lock().region(0).mmap?;
        let request = vmlane_mem::MapRequest { guest: 0, len, offset: 0, fd: file, writable: true };
        let map = MemoryMap::default().map(request).expect("a page");
        Some(map.window(0, len as usize, true).expect("the page"))
    }

    /// A command and its result.
    pub fn command(&self, command: Command) -> u32 {
        self.command_code(command.code())
    }

    pub fn command_code(&self, code: u32) -> u32 {
        self.write(Reg::Command, code);
        self.read(Reg::Command)
    }

    /// Latches an address of a shared area.
    pub fn set_shared(&self, addr: u64) {
        self.write(Reg::SharedLow, addr as u32);
        self.write(Reg::SharedHigh, (addr >> 32) as u32);
    }

    /// A counter by name.
    pub fn count(&self, name: &str) -> u64 {
        use vmlane_stats::Counters;
        let all = self.handle.stats.snapshot();
        all.into_iter().find(|(counter, _)| *counter == name).expect("a counter of this name").1
    }
}
