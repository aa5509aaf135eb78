//! A daemon restores forged state: a journal, a NIC, the VMCI hypervisor with two VMs, a session. Each is
//! refused with a reason or restored; whatever it was, a driver that is loaded afterwards finds a device that
//! works.

use vmlane_device::vmci::Limits;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{active, frame, receive, try_deliver};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, TxRequest};
use vmlane_guestsim::restart::RestartableDaemon;
use vmlane_guestsim::{Driver, PairSpec, Path, Placement, VmSpec, vm_with};
use vmlane_state::Journal;
use vmlane_wire::vmci::{Handle, RawHandle, call};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use vmlane_wire::vmxnet3::regs::Command;
use zerocopy::IntoBytes;

use crate::Input;
use crate::forged::{change, cut, scribble, session, tamper};

pub fn run(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let mut input = Input(rest);
    match which % 8 {
        0 => journal(&mut input),
        1..=3 => nic(&mut input),
        4 | 5 => hypervisor(&mut input),
        _ => session::take_over(&mut input),
    }
}

/// A journal that is opened at all holds what can be opened again.
fn journal(input: &mut Input<'_>) {
    const HALF: usize = 64 << 10;
    let journal = Journal::create("journal", 7, HALF).expect("a file");
    for key in 0..u64::from(1 + input.byte() % 6) {
        journal.write((1 + key as u32 % 3, key, 0), &vec![key as u8; usize::from(input.byte())]);
    }
    let file = journal.file().try_clone().expect("one more descriptor");
    drop(journal);
    let file = tamper(file, input, |_| false);
    let Ok((journal, records, damaged)) = Journal::open_in_part(file, 7, HALF) else { return };
    assert!(records.iter().all(|(key, _)| !damaged.contains(key)));
    journal.write((9, 9, 9), b"one more");
    let file = journal.file().try_clone().expect("one more descriptor");
    let (_, again, still) = Journal::open_in_part(file, 7, HALF).expect("what was sound");
    let is = |key: &(u32, u64, u64)| *key == (9, 9, 9);
    assert!(again.iter().filter(|(key, _)| !is(key)).eq(records.iter().filter(|(key, _)| !is(key))));
    assert!(still.iter().eq(damaged.iter().filter(|key| !is(key))));
}

fn nic(input: &mut Input<'_>) {
    let (machine, mut driver) = active(DriverSpec::linux(1 + input.byte() % 7));
    for n in 0..u32::from(input.byte() % 40) {
        driver.tx[0].send(&frame(64 + n as usize), &[20, 30], &TxRequest::NONE);
        let _ = try_deliver(&machine, &frame(80));
        if n % 3 != 0 {
            take(&machine);
            driver.tx[0].reap();
        }
        receive(&mut driver);
    }
    let (mut remains, _dead) = machine.lie_dead();
    for _ in 0..input.byte() % 5 {
        let which = input.byte();
        let at = u64::from(which >> 6) << 10 | input.number::<1>();
        match (which % 8, which >> 3) {
            (0, name) if name % 2 == 0 => {
                drop(remains.files.take(["bar0", "rings"][usize::from(name / 2 % 2)]))
            }
            (0 | 1, name) => {
                let name = ["bar0", "rings"][usize::from(name % 2)];
                if let Some(file) = remains.files.take(name) {
                    remains.files.0.insert(name.into(), cut(&file, at));
                }
            }
            (2..=4, name) => {
                if let Some(file) = remains.files.0.get(["bar0", "rings"][usize::from(name % 4 != 0)]) {
                    scribble(file, at, input);
                }
            }
            _ => {
                let records = &mut remains.records;
                let at = usize::from(input.byte()) % records.len().max(1);
                if let Some((_, record)) = records.get_mut(at) {
                    change(record, input);
                }
            }
        }
    }
    let (machine, _) = NicMachine::take_over(remains);
    if machine.frames.is_attached() {
        take(&machine);
        let _ = try_deliver(&machine, &frame(70));
        machine.command(Command::GetStats);
    }
    machine.set_bus_master(true);
    machine.command(Command::Reset);
    let mut driver = NicDriver::probe(&machine, DriverSpec::linux(6));
    driver.open(&machine);
    assert!(try_deliver(&machine, &frame(90)).is_ok());
    assert_eq!(receive(&mut driver).map(|got| got.bytes), Some(frame(90)));
    assert!(driver.tx[0].send(&frame(64), &[20, 30], &TxRequest::NONE));
    assert_eq!(take(&machine), 1);
    driver.tx[0].reap();
    assert_eq!(driver.tx[0].outstanding(), 0);
}

/// Takes all frames that were sent, if a port is attached.
fn take(machine: &NicMachine) -> usize {
    let taken = machine.frames.with(|end| {
        let mut taken = 0;
        while taken < 100
            && let Some(token) = end.fetch_one()
        {
            end.finish(&[token]);
            taken += 1;
        }
        end.flush(std::time::Instant::now());
        taken
    });
    taken.unwrap_or(0)
}

/// What two guests have done with each other when their daemon dies, up to a point.
fn past(guests: &mut [Driver; 2], steps: u8) {
    let [a, b] = guests;
    let handle = Handle::new(3, 2000);
    let packet = |kind, from, to| ControlPacket::new(kind, from, to);
    let (client, server) = (1030, 5000);
    for step in 0..steps {
        match step {
            0 => {
                let doorbell = RawHandle::from(Handle::new(4, 2100));
                b.call(call::DOORBELL_LINK, &[doorbell.as_bytes(), &7u64.to_le_bytes()].concat());
                b.call(call::DATAGRAM_REQUEST_MAP, &[2200u32, 0].map(u32::to_le_bytes).concat());
            }
            1 => drop(a.send_to(Handle::new(4, 77), 55, b"waits")),
            2 => drop(a.control(4, packet(PacketType::Request2, client, server).with_size(4096, 1))),
            3 => drop(b.control(3, packet(PacketType::Negotiate2, server, client).with_size(4096, 1))),
            4 => {
                let spec = PairSpec { handle, peer: 4, flags: 0, produce: 4096, consume: 4096 };
                drop(a.alloc(&spec, Placement::Scattered));
            }
            5 => drop(a.control(4, packet(PacketType::Offer, client, server).with_handle(handle))),
            6 => {
                let spec = PairSpec { handle, peer: 3, flags: 1, produce: 4096, consume: 4096 };
                drop(b.alloc(&spec, Placement::Scattered));
            }
            7 => drop(b.control(3, packet(PacketType::Attach, server, client).with_handle(handle))),
            8 => drop(a.control(4, packet(PacketType::Wrote, client, server))),
            9 => drop(b.send_to(Handle::new(3, 78), 56, &[5; 3000])),
            _ => drop(a.control(4, packet(PacketType::Shutdown, client, server).with_mode(2))),
        }
    }
}

fn hypervisor(input: &mut Input<'_>) {
    let limits = Limits { queue_pairs: 8, doorbells: 8, ..Limits::default() };
    let spec = |cid| VmSpec { limits, ..vm_with(cid, |vm| vm.connections = 8) };
    let world = RestartableDaemon::new(vec![spec(3), spec(4)]);
    let path = if input.byte() & 1 == 0 { Path::Dma } else { Path::Ports };
    let mut guests = [world.probe(3, path), world.probe(4, path)];
    past(&mut guests, input.byte() % 12);
    let mut legacy = world.kill();
    // A session's number of its last request is the session's, not the device's.
    legacy.hypervisor = legacy.hypervisor.map(|file| tamper(file, input, |_| false));
    for cid in [3, 4] {
        if let Some(file) = legacy.sessions.remove(&cid) {
            let file = tamper(file, input, |(kind, ..)| kind == 1);
            legacy.sessions.insert(cid, file);
        }
    }
    world.succeed(legacy);
    let views = world.hypervisor().vms();
    assert!(views.iter().all(|vm| vm.inbox_bytes <= Limits::default().inbox_bytes), "{views:?}");
    let _ = world.hypervisor().connections();
    // Their drivers go, if they can, and others come.
    drop(guests);
    let mut guests = [world.probe(3, path), world.probe(4, path)];
    for guest in &mut guests {
        guest.service();
    }
    let [a, b] = &mut guests;
    assert_eq!(a.send_to(Handle::new(4, 77), 55, b"afterwards"), 34);
    assert!(b.service().iter().any(|datagram| datagram.payload == b"afterwards"));
    // Another life, up to another point.
    past(&mut guests, input.byte() % 12);
    world.replace();
    for guest in &mut guests {
        guest.service();
    }
    let [a, b] = &mut guests;
    assert_eq!(b.send_to(Handle::new(3, 77), 55, b"once more"), 33);
    assert!(a.service().iter().any(|datagram| datagram.payload == b"once more"));
}
