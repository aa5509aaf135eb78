//! A toy PCI function, and a VMM connected to it over a socket pair.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use vmlane_device::irq::Interrupts;
use vmlane_device::pci::config::{Bar, ConfigSpace, Msix};
use vmlane_device::pci::{
    AccessError, CONFIG_REGION, Expected, IrqCounts, Mapping, PciDevice, Region, Survives,
};
use vmlane_guestsim::vfio_user::Client;
use vmlane_mem::MemoryMap;
use vmlane_transport::{IrqSet, Session, SessionEnd, SessionHandle, SessionStats};

/// Registers of region 2: plain storage, except for these.
pub const RAISE: u64 = 0x00; // write: raises that vector
pub const PEEK: u64 = 0x08; // write: a guest address; read: the word found there
pub const POKE: u64 = 0x10; // write: stores 0x5a5a5a5a at that guest address
pub const PANIC: u64 = 0x20; // any access panics
pub const REGISTERS: u64 = 0x2000;
/// The region whose first page may be mapped, and the second one not.
pub const PARTLY_MAPPED: usize = 5;

/// What the device has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Write { region: usize, offset: u64, data: Vec<u8>, posted: bool },
    Memory { bytes: u64 },
    Unmap { start: u64, len: u64 },
    Irqs,
    Reset,
}

#[derive(Default)]
pub struct Journal {
    pub seen: Mutex<Vec<Seen>>,
    pub panic_on_reset: Mutex<bool>,
    pub panic_on_unmap: Mutex<bool>,
}

impl Journal {
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock())
    }
}

pub struct Toy {
    pub config: ConfigSpace,
    pub storage: Vec<u8>,
    pub peek: u64,
    pub irqs: Arc<IrqSet>,
    pub memory: MemoryMap,
    pub journal: Arc<Journal>,
    pub page: std::os::fd::OwnedFd,
    pub spin: Duration,
}

impl Toy {
    pub fn new(irqs: Arc<IrqSet>, journal: Arc<Journal>) -> Toy {
        let config = ConfigSpace::builder(0x1234, 0x5678)
            .class(0x088000)
            .interrupt_pin(1)
            .bar(0, Bar::Mem32 { size: 0x1000 })
            .bar(2, Bar::Mem32 { size: REGISTERS as u32 })
            .msix(0x40, Msix { vectors: 3, table: (2, 0x1000), pba: (2, 0x1800) })
            .build()
            .expect("valid");
        let page = vmlane_mem::memfd("toy-page", 0x1000).expect("memfd");
        let storage = vec![0; REGISTERS as usize];
        Toy {
            config,
            storage,
            peek: 0,
            irqs,
            memory: MemoryMap::default(),
            journal,
            page,
            spin: Duration::ZERO,
        }
    }

    fn mapping(&self) -> Option<Mapping> {
        self.page.try_clone().ok().map(|file| Mapping { file, len: 0x1000 })
    }

    fn note(&self, seen: Seen) {
        self.journal.seen.lock().push(seen);
    }
}

impl PciDevice for Toy {
    fn region(&self, index: usize) -> Region {
        let trapped = |size| Region { size, readable: true, writable: true, mmap: None };
        match index {
            0 => Region { mmap: self.mapping(), ..trapped(0x1000) },
            1 => Region { size: 16, readable: true, writable: false, mmap: None },
            2 => trapped(REGISTERS),
            PARTLY_MAPPED => Region { mmap: self.mapping(), ..trapped(0x2000) },
            CONFIG_REGION => trapped(self.config.size()),
            _ => Region::default(),
        }
    }

    fn irq_counts(&self) -> IrqCounts {
        IrqCounts { intx: 1, msi: 1, msix: 3 }
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        assert!(region != 2 || offset != PANIC, "toy read of PANIC");
        if region == CONFIG_REGION {
            return self.config.read(offset, data);
        }
        if region == 2 && offset == PEEK {
            return self.memory.read(self.peek, data).map_err(|_| out_of_range(region, offset, data.len()));
        }
        let at = offset as usize;
        data.copy_from_slice(&self.storage[at..at + data.len()]);
        Ok(())
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError> {
        self.note(Seen::Write { region, offset, data: data.to_vec(), posted });
        assert!(region != 2 || offset != PANIC, "toy write to PANIC");
        if region == CONFIG_REGION {
            return self.config.write(offset, data);
        }
        let mut wide = [0; 8];
        wide[..data.len().min(8)].copy_from_slice(&data[..data.len().min(8)]);
        let value = u64::from_le_bytes(wide);
        match (region, offset) {
            (2, RAISE) => drop(self.irqs.raise(value as u16)),
            (2, PEEK) => self.peek = value,
            (2, POKE) => {
                self.memory.write(value, &[0x5a; 4]).map_err(|_| out_of_range(region, offset, data.len()))?
            }
            _ => self.storage[offset as usize..offset as usize + data.len()].copy_from_slice(data),
        }
        Ok(())
    }

    fn memory(&mut self, map: &MemoryMap) {
        self.note(Seen::Memory { bytes: map.len() });
        self.memory = map.clone();
    }

    fn unmap(&mut self, start: u64, len: u64) {
        self.note(Seen::Unmap { start, len });
        assert!(!*self.journal.panic_on_unmap.lock(), "toy unmap");
    }

    fn irqs_changed(&mut self) {
        self.note(Seen::Irqs);
    }

    fn reset(&mut self) {
        self.note(Seen::Reset);
        self.storage.fill(0);
        self.config.reset();
        assert!(!*self.journal.panic_on_reset.lock(), "toy reset");
    }

    fn begin(&mut self, _: u64) {}

    fn expected(&self) -> Expected {
        Expected { within: self.spin, ..Expected::default() }
    }

    fn survival(&mut self) -> Option<&mut dyn Survives> {
        None
    }
}

fn out_of_range(region: usize, offset: u64, len: usize) -> AccessError {
    AccessError::OutOfRange { region: region as u32, offset, len }
}

/// A toy served on a thread, and the VMM's end of its socket.
pub struct Fixture {
    pub vmm: Client,
    pub journal: Arc<Journal>,
    pub irqs: Arc<IrqSet>,
    pub stats: Arc<SessionStats>,
    pub handle: SessionHandle,
    pub session: JoinHandle<SessionEnd>,
}

impl Fixture {
    pub fn start() -> Fixture {
        Fixture::spinning(Duration::ZERO)
    }

    pub fn spinning(spin: Duration) -> Fixture {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let stats = Arc::new(SessionStats::default());
        let irqs = Arc::new(IrqSet::new(stats.clone()));
        let journal = Arc::new(Journal::default());
        let mut toy = Toy { spin, ..Toy::new(irqs.clone(), journal.clone()) };
        let (send, receive) = std::sync::mpsc::channel();
        let (lines, counters) = (irqs.clone(), stats.clone());
        let session = std::thread::spawn(move || {
            let session = Session::new(theirs, &mut toy, lines, counters, &vmlane_state::Scope::none())
                .expect("session");
            send.send(session.handle()).expect("fixture waits");
            session.run()
        });
        let handle = receive.recv().expect("session started");
        Fixture { vmm: Client::new(ours), journal, irqs, stats, handle, session }
    }

    /// Closes the VMM's end; why the session ended, in words.
    pub fn close(self) -> String {
        drop(self.vmm);
        self.session.join().expect("session does not panic").to_string()
    }

    pub fn counted(&self, name: &str) -> u64 {
        self.stats.snapshot().iter().find(|(key, _)| *key == name).expect("a counter").1
    }

    /// The session still answers.
    pub fn assert_alive(&mut self) {
        assert_eq!(self.vmm.read_u16(CONFIG_REGION as u32, 0).expect("answer"), 0x1234);
    }
}

/// Descriptors of this process for the memory file of that name.
pub fn open_files(memory: &str) -> usize {
    let is_it = |path: std::path::PathBuf| path.to_string_lossy().contains(&format!("memfd:{memory}"));
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    files.filter(|file| std::fs::read_link(file.path()).is_ok_and(is_it)).count()
}
