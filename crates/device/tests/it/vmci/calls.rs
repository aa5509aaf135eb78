//! Calls to the hypervisor: resources, context id, doorbells, events, maps.

use vmlane_device::vmci::Limits;
use vmlane_guestsim::{Driver, Path, VmSpec, vm, vm_with};
use vmlane_wire::vmci::{Handle, VmciError, call};

use super::{World, about, link, ring};

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn unlink(driver: &mut Driver, doorbell: Handle) -> i32 {
    about(driver, call::DOORBELL_UNLINK, doorbell)
}

#[test]
fn a_query_answers_with_a_bit_for_each_known_id() {
    for path in Path::ALL {
        let world = World::new();
        let mut driver = world.machine(3).probe(path);
        let mut query = |ids: &[u32]| {
            let payload = words(&[&[ids.len() as u32, 0], ids].concat());
            driver.call(call::RESOURCES_QUERY, &payload)
        };
        assert_eq!(query(&[]), 0);
        assert_eq!(query(&[1]), 1);
        assert_eq!(query(&[99, 11, 12, 0]), 0b1010);
        let all: Vec<u32> = (0..31).collect();
        assert_eq!(query(&all), 0xfff);
        assert_eq!(query(&[0; 32]), VmciError::InvalidArgs.code());
        assert_eq!(driver.call(call::RESOURCES_QUERY, &words(&[4, 0, 1])), VmciError::InvalidArgs.code());
        assert_eq!(driver.call(call::RESOURCES_QUERY, &[1]), VmciError::InvalidArgs.code());
    }
}

#[test]
fn the_context_id_is_reported_and_unknown_calls_are_refused() {
    let world = World::new();
    let mut driver = world.machine(0x7fff_fffe).probe(Path::Dma);
    assert_eq!(driver.call(call::GET_CONTEXT_ID, &[]), 0x7fff_fffe);
    for id in [12, 13, 14, 15, 16, 1 << 20, u32::MAX - 1] {
        assert_eq!(driver.call(id, &[0; 64]), VmciError::InvalidResource.code(), "call {id}");
    }
}

#[test]
fn a_doorbell_rings_in_another_guest() {
    let world = World::new();
    let (machine, other) = (world.machine(3), world.machine(4));
    let (mut a, mut b) = (machine.probe(Path::Dma), other.probe(Path::Ports));
    let doorbell = Handle::new(4, 2000);
    assert_eq!(link(&mut b, doorbell, 5), 0);
    assert_eq!(link(&mut b, Handle::new(4, 2001), 4095), 0);
    assert_eq!(other.lines.raised(1), 0);
    assert!(ring(&mut a, doorbell) >= 0);
    assert_eq!((other.lines.raised(1), machine.lines.raised(1)), (1, 0));
    assert_eq!(b.doorbells(), [5]);
    assert_eq!(b.doorbells(), [0; 0]);
    assert!(ring(&mut a, Handle::new(4, 2001)) >= 0);
    assert!(ring(&mut b, doorbell) >= 0, "one's own can be rung too");
    assert_eq!(b.doorbells(), [5, 4095]);
}

#[test]
fn a_doorbell_is_linked_once_and_unlinked_once() {
    let world = World::new();
    let (mut a, mut b) = (world.machine(3).probe(Path::Dma), world.machine(4).probe(Path::Dma));
    let (doorbell, same) = (Handle::new(4, 2000), Handle::new(4, 2001));
    assert_eq!(ring(&mut a, doorbell), VmciError::NotFound.code());
    assert_eq!(link(&mut b, doorbell, 5), 0);
    assert_eq!(link(&mut b, doorbell, 6), VmciError::DuplicateEntry.code());
    assert_eq!(link(&mut b, same, 5), 0, "two may share an index");
    assert_eq!(unlink(&mut a, doorbell), VmciError::NotFound.code(), "not the caller's");
    assert_eq!(unlink(&mut b, doorbell), 0);
    assert_eq!(unlink(&mut b, doorbell), VmciError::NotFound.code());
    assert_eq!(ring(&mut a, doorbell), VmciError::NotFound.code());
    assert!(ring(&mut a, same) >= 0);
    assert_eq!(b.doorbells(), [5]);
}

#[test]
fn a_doorbell_outside_the_rules_is_refused() {
    let world = World::new();
    let limits = Limits { doorbells: 3, ..Limits::default() };
    let mut a = world.machine_with(VmSpec { limits, ..vm(3) }).probe(Path::Dma);
    let mut stranger = world.machine_with(vm_with(5, |vm| vm.group = "other".into())).probe(Path::Dma);
    assert_eq!(link(&mut a, Handle::new(4, 2000), 0), VmciError::InvalidArgs.code(), "another VM's handle");
    for index in [4096, u64::MAX] {
        assert_eq!(link(&mut a, Handle::new(3, 2000), index), VmciError::InvalidArgs.code());
    }
    for resource in 2000..2003 {
        assert_eq!(link(&mut a, Handle::new(3, resource), 7), 0);
    }
    assert_eq!(link(&mut a, Handle::new(3, 2003), 7), VmciError::NoResources.code());
    assert_eq!(world.bound(3, "doorbells"), (3, 3, 1));
    assert_eq!(ring(&mut stranger, Handle::new(3, 2000)), VmciError::InvalidResource.code());
    assert_eq!(a.doorbells(), [0; 0]);
    assert_eq!(a.call(call::DOORBELL_LINK, &[0; 15]), VmciError::InvalidArgs.code());
    assert_eq!(a.call(call::DOORBELL_NOTIFY, &[0; 7]), VmciError::InvalidArgs.code());
}

#[test]
fn the_bitmap_must_be_a_page_of_the_guest() {
    let world = World::new();
    let machine = world.machine(3);
    let mut a = machine.probe(Path::Dma);
    for ppn in [0u64, 1 << 40, u64::MAX, u64::MAX >> 12] {
        assert_eq!(a.call(call::SET_NOTIFY_BITMAP, &ppn.to_le_bytes()), VmciError::InvalidArgs.code());
    }
    let doorbell = Handle::new(3, 2000);
    assert_eq!(link(&mut a, doorbell, 9), 0);
    assert!(ring(&mut a, doorbell) >= 0);
    assert_eq!(a.doorbells(), [9], "the page registered before still serves");
}

#[test]
fn events_that_exist_can_be_subscribed_to() {
    let world = World::new();
    let mut driver = world.machine(3).probe(Path::Dma);
    for id in [call::EVENT_SUBSCRIBE, call::EVENT_UNSUBSCRIBE] {
        for event in 0..5 {
            assert!(driver.call(id, &words(&[event, 0])) >= 0);
        }
        assert_eq!(driver.call(id, &words(&[5, 0])), VmciError::EventUnknown.code());
    }
}

#[test]
fn a_map_belongs_to_the_first_to_ask() {
    let world = World::new();
    let (mut a, mut b) = (world.machine(3).probe(Path::Dma), world.machine(4).probe(Path::Dma));
    let mut stranger = world.machine_with(vm_with(5, |vm| vm.group = "other".into())).probe(Path::Dma);
    let resource = words(&[2000, 0]);
    let well_known = Handle::new(1, 2000);
    assert_eq!(b.send_to(well_known, 9, b""), VmciError::InvalidResource.code());
    assert!(a.call(call::DATAGRAM_REQUEST_MAP, &resource) >= 0);
    assert_eq!(b.call(call::DATAGRAM_REQUEST_MAP, &resource), VmciError::AlreadyExists.code());
    assert_eq!(b.send_to(well_known, 9, b"found"), 29);
    assert_eq!(a.await_datagrams()[0].payload, b"found");
    assert_eq!(stranger.send_to(well_known, 9, b""), VmciError::InvalidResource.code(), "a group's own");
    assert!(stranger.call(call::DATAGRAM_REQUEST_MAP, &resource) >= 0);
    assert_eq!(b.call(call::DATAGRAM_REMOVE_MAP, &resource), VmciError::NotFound.code());
    assert!(a.call(call::DATAGRAM_REMOVE_MAP, &resource) >= 0);
    assert_eq!(b.send_to(well_known, 9, b""), VmciError::InvalidResource.code());
}

#[test]
fn a_driver_with_32_bit_page_numbers_is_understood() {
    let world = World::new();
    let machine = world.machine(3);
    let (ram, lines) = (machine.ram.clone(), machine.lines.clone());
    let registers = Box::new(machine.registers());
    let known = 0x2c;
    let mut driver = Driver::probe_with(registers, ram, lines, Path::Dma, known).expect("a probe");
    assert_eq!(driver.caps, known);
    let doorbell = Handle::new(3, 2000);
    assert_eq!(link(&mut driver, doorbell, 1), 0);
    assert!(ring(&mut driver, doorbell) >= 0);
    assert_eq!(driver.doorbells(), [1]);
}
