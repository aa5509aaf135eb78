//! rust-vmm's client of vfio-user, as Cloud Hypervisor uses it, against our server.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use vfio_user::Client;
use vmlane_guestsim::{eventfd, signals};
use vmlane_transport::{IrqSet, Listener, Server, SessionStats};
use vmlane_wire::vfio_user::{SetIrqs, irq_index};

use crate::common::{Journal, PARTLY_MAPPED, PEEK, POKE, RAISE, REGISTERS, Seen, Toy};

const CONFIG: u32 = 7;

struct World {
    client: Client,
    journal: Arc<Journal>,
    server: Server,
    directory: tempfile::TempDir,
}

fn world() -> World {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("toy.sock");
    let stats = Arc::new(SessionStats::default());
    let irqs = Arc::new(IrqSet::new(stats.clone()));
    let journal = Arc::new(Journal::default());
    let toy = Box::new(Toy::new(irqs.clone(), journal.clone()));
    let listener = Listener::bind(&path).expect("a socket");
    let server = listener.serve("toy", toy, irqs, stats).expect("a server");
    let client = Client::new(&path).expect("a version and regions that the client understands");
    World { client, journal, server, directory }
}

fn word(client: &mut Client, region: u32, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    client.region_read(region, offset, &mut bytes).expect("a register");
    u32::from_le_bytes(bytes)
}

#[test]
fn it_finds_the_regions_and_vectors_that_the_device_has() {
    let World { mut client, server: _server, directory: _directory, .. } = world();
    let region = |index| client.region(index).expect("nine regions");
    let sizes = [0, 1, 2, 3, CONFIG].map(|index| region(index).size);
    assert_eq!(sizes, [0x1000, 16, REGISTERS, 0, 256]);
    assert!(region(0).file_offset.is_some(), "the page that may be mapped");
    assert!([1, 2, 3, CONFIG].iter().all(|&index| region(index).file_offset.is_none()));
    assert!(region(0).sparse_areas.is_empty(), "all of it");
    let areas = region(PARTLY_MAPPED as u32).sparse_areas.iter().map(|area| (area.offset, area.size));
    assert_eq!(areas.collect::<Vec<_>>(), [(0, 0x1000)]);
    let msix = client.get_irq_info(irq_index::MSIX).expect("an answer");
    assert_eq!((msix.index, msix.count), (irq_index::MSIX, 3));
    assert_eq!(client.get_irq_info(irq_index::INTX).expect("an answer").count, 1);
    assert_eq!(word(&mut client, CONFIG, 0), 0x5678_1234, "device and vendor");
}

#[test]
fn its_register_accesses_memory_and_interrupts_work() {
    let World { mut client, journal, server: _server, directory: _directory } = world();
    client.region_write(2, 0x100, &7u32.to_le_bytes()).expect("a register");
    assert_eq!(word(&mut client, 2, 0x100), 7);

    let memory = vmlane_mem::memfd("guest", 0x4000).expect("memory");
    client.dma_map(0, 0x10_0000, 0x4000, memory.as_fd().as_raw_fd()).expect("an answer");
    rustix::io::pwrite(&memory, &0xfeed_u32.to_le_bytes(), 0x2000).expect("the guest's memory");
    client.region_write(2, PEEK, &0x10_2000u64.to_le_bytes()).expect("a register");
    assert_eq!(word(&mut client, 2, PEEK), 0xfeed);
    client.region_write(2, POKE, &0x10_3000u64.to_le_bytes()).expect("a register");
    let mut poked = [0; 4];
    rustix::io::pread(&memory, &mut poked, 0x3000).expect("the guest's memory");
    assert_eq!(u32::from_le_bytes(poked), 0x5a5a_5a5a);

    let vectors = [(); 3].map(|()| eventfd().expect("an eventfd"));
    let flags = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;
    client
        .set_irqs(irq_index::MSIX, flags, 0, 3, &vectors.each_ref().map(AsRawFd::as_raw_fd))
        .expect("an answer");
    client.region_write(2, RAISE, &1u32.to_le_bytes()).expect("a register");
    assert_eq!(vectors.each_ref().map(signals), [0, 1, 0]);

    journal.take();
    client.dma_unmap(0x10_0000, 0x4000).expect("an answer");
    client.reset().expect("an answer");
    let seen = journal.take();
    assert!(seen.contains(&Seen::Unmap { start: 0x10_0000, len: 0x4000 }), "{seen:?}");
    assert!(seen.contains(&Seen::Reset), "{seen:?}");
    assert_eq!(word(&mut client, 2, 0x100), 0, "forgotten");
}
