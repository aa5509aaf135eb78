//! Random accesses of any kind: whatever guests do, nothing panics and the device still answers.

use std::sync::Arc;

use proptest::prelude::*;
use vmlane_device::vmci::{Hypervisor, Limits};
use vmlane_guestsim::{
    Datagram, Driver, Machine, PairSpec, Path, Placement, Registers, VmSpec, alloc_call, vm_with,
};
use vmlane_stream::Inline;
use vmlane_vsock::Router;
use vmlane_wire::vmci::{CONTROL_INT_ENABLE, Handle, RawHandle, Reg, call, datagram, queue_header};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::IntoBytes;

use super::World;

/// Something a guest does.
#[derive(Clone, Debug)]
enum Deed {
    Write { region: usize, offset: u64, data: Vec<u8>, posted: bool },
    Read { region: usize, offset: u64, len: usize },
    Send(Vec<u8>),
    Control { cid: u32, kind: u8, ports: (u32, u32), value: u64 },
    Alloc { spec: (Handle, u32, u32, u64, u64), pages: Vec<u64> },
    Detach(Handle),
    Index { page: u64, field: usize, value: u64 },
    Receive,
}

fn cid() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 3..5u32, 1 => 0..8u32, 1 => any::<u32>()]
}

fn handle() -> impl Strategy<Value = Handle> {
    let resource = prop_oneof![4 => 1024..1028u32, 1 => 0..16u32, 1 => any::<u32>()];
    (cid(), resource).prop_map(|(cid, resource)| Handle::new(cid, resource))
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        Just(1),
        Just(2),
        Just(128),
        Just(4096),
        Just(5003),
        Just(128 << 20),
        any::<u64>()
    ]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..130u64, 2 => 0..6000u64, 1 => any::<u64>()]
}

fn deed() -> impl Strategy<Value = Deed> {
    let offset = prop_oneof![4 => (0..16u64).prop_map(|reg| reg * 4), 1 => 0..0x40u64];
    let place = (0..2usize, offset.clone()).prop_map(|(region, at)| (region, at + region as u64 * 0x2_0000));
    let bytes = prop_oneof![4 => proptest::collection::vec(any::<u8>(), 4), 1 => proptest::collection::vec(any::<u8>(), 0..60)];
    let allocation = (handle(), cid(), 0..17u32, size(), size());
    prop_oneof![
        3 => (place.clone(), bytes.clone(), any::<bool>()).prop_map(|((region, offset), data, posted)| {
            Deed::Write { region, offset, data, posted }
        }),
        1 => (place, 0..10usize).prop_map(|((region, offset), len)| Deed::Read { region, offset, len }),
        1 => (0..248u64, proptest::collection::vec(any::<u8>(), 0..9)).prop_map(|(offset, data)| {
            Deed::Write { region: 7, offset, data, posted: false }
        }),
        2 => bytes.prop_map(Deed::Send),
        3 => (handle(), handle(), proptest::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(dst, src, payload)| Deed::Send(datagram(dst, src, &payload))),
        3 => (0..20u32, proptest::collection::vec(0..40u8, 0..40))
            .prop_map(|(id, payload)| Deed::Send(datagram(Handle::new(0, id), Handle::INVALID, &payload))),
        8 => (cid(), 0..14u8, (0..3u32, 0..3u32), value())
            .prop_map(|(cid, kind, ports, value)| Deed::Control { cid, kind, ports, value }),
        4 => (allocation, proptest::collection::vec(256..300u64, 2..8))
            .prop_map(|(spec, pages)| Deed::Alloc { spec, pages }),
        2 => handle().prop_map(Deed::Detach),
        4 => (256..300u64, 0..3usize, value()).prop_map(|(page, field, value)| Deed::Index { page, field, value }),
        2 => Just(Deed::Receive),
    ]
}

/// Two VMs that know two ways to do everything.
struct Pair {
    streams: Arc<Inline>,
    hypervisor: Arc<Hypervisor>,
    machines: [Machine; 2],
    drivers: [Driver; 2],
}

impl Pair {
    fn new(path: Path) -> Pair {
        let streams = Arc::new(Inline::default());
        let hypervisor = Hypervisor::new(Router::new(streams.clone()));
        let limits = Limits { queue_pairs: 8, ..Limits::default() };
        let machines = [3, 4].map(|cid| {
            let spec = VmSpec { limits, ..vm_with(cid, |vm| vm.connections = 16) };
            Machine::with(&hypervisor, spec, 4 << 20, vmlane_guestsim::Lines::msix())
        });
        let drivers = [0, 1].map(|index: usize| machines[index].probe(path));
        Pair { streams, hypervisor, machines, drivers }
    }

    fn act(&mut self, who: usize, deed: &Deed) {
        let driver = &mut self.drivers[who];
        let mut registers = self.machines[who].registers();
        match deed {
            Deed::Write { region, offset, data, posted } => match <[u8; 4]>::try_from(&data[..]) {
                Ok(word) if *posted => registers.post32(*region, *offset, u32::from_le_bytes(word)),
                _ => registers.write_bytes(*region, *offset, data),
            },
            Deed::Read { region, offset, len } => registers.read_bytes(*region, *offset, &mut vec![0; *len]),
            Deed::Send(bytes) => registers.write_bytes(0, Reg::DataOut.offset(), bytes),
            Deed::Control { cid, kind, ports, value } => {
                let packet = ControlPacket::new(PacketType::Invalid, 1024 + ports.0, 1024 + ports.1);
                let mut packet = packet.with_size(if *kind < 4 { 128 } else { *value }, 1);
                if [3, 4].contains(kind) {
                    packet = packet.with_handle(Handle::new(3 + *value as u32 % 2, 1024 + *value as u32 % 4));
                }
                packet.as_mut_bytes()[1] = *kind;
                let src = Handle::new(driver.cid, 1);
                registers.write_bytes(
                    0,
                    Reg::DataOut.offset(),
                    &datagram(Handle::new(*cid, 1), src, packet.as_bytes()),
                );
            }
            Deed::Alloc { spec: (handle, peer, flags, produce, consume), pages } => {
                let spec = PairSpec {
                    handle: *handle,
                    peer: *peer,
                    flags: *flags,
                    produce: *produce,
                    consume: *consume,
                };
                let pages: Vec<u64> = pages.iter().map(|page| page * 4096).collect();
                let count = produce.div_ceil(4096).saturating_add(consume.div_ceil(4096)).saturating_add(2);
                let needed = usize::try_from(count).unwrap_or(0).min(8);
                let pages: Vec<u64> = pages.iter().cycle().take(needed).copied().collect();
                let payload = alloc_call(&spec, &pages, true);
                let bytes = datagram(Handle::new(0, call::QUEUEPAIR_ALLOC), Handle::INVALID, &payload);
                registers.write_bytes(0, Reg::DataOut.offset(), &bytes);
            }
            Deed::Detach(handle) => {
                let payload = RawHandle::from(*handle);
                let bytes =
                    datagram(Handle::new(0, call::QUEUEPAIR_DETACH), Handle::INVALID, payload.as_bytes());
                registers.write_bytes(0, Reg::DataOut.offset(), &bytes);
            }
            Deed::Index { page, field, value } => {
                let field =
                    [queue_header::HANDLE, queue_header::PRODUCER_TAIL, queue_header::CONSUMER_HEAD][*field];
                self.machines[who].ram.write(page * 4096 + field as u64, &value.to_le_bytes());
                self.streams.turn_all();
            }
            Deed::Receive => registers.read_bytes(0, Reg::DataIn.offset(), &mut [0; 4096]),
        }
    }

    /// A driver that is loaded now finds a working device.
    fn assert_alive(&self) {
        for machine in &self.machines {
            machine.registers().write32(0, Reg::Control.offset(), 1);
        }
        for view in self.hypervisor.vms() {
            assert_eq!(
                (view.queue_pairs, view.queue_pair_bytes, view.connections),
                (0, 0, 0),
                "{}",
                view.cid
            );
            assert_eq!((view.doorbells, view.inbox_bytes, view.packets_waiting), (0, 0, 0), "{}", view.cid);
        }
        assert_eq!(self.hypervisor.connections(), []);
        let [mut a, mut b] = [0, 1].map(|index: usize| self.machines[index].probe(Path::Dma));
        assert_eq!(a.send_to(Handle::new(4, 77), 5, b"alive"), 29);
        let expected =
            Datagram { dst: Handle::new(4, 77), src: Handle::new(3, 5), payload: b"alive".to_vec() };
        assert_eq!(b.await_datagrams(), [expected]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_whatever_two_guests_do(
        deeds in proptest::collection::vec((0..2usize, deed()), 1..120),
        ports in any::<bool>(),
    ) {
        let mut pair = Pair::new(if ports { Path::Ports } else { Path::Dma });
        for (who, deed) in &deeds {
            pair.act(*who, deed);
        }
        pair.assert_alive();
    }

    /// Whole datagrams through the buffers of the DMA path, with any header in front.
    #[test]
    fn no_send_buffer_keeps_a_guest_waiting(
        header in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 16),
        rest in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let world = World::new();
        let mut driver = world.machine(3).probe(Path::Dma);
        let (pages, _) = driver.send_buffer();
        pages.write(0, &header);
        pages.write(24, &rest);
        driver.start_send();
        driver.write(Reg::Control, CONTROL_INT_ENABLE);
        prop_assert_eq!(driver.call(call::GET_CONTEXT_ID, &[]), 3);
        let spec = PairSpec { handle: Handle::new(3, 2000), peer: 3, flags: 0, produce: 1, consume: 1 };
        prop_assert!(driver.alloc(&spec, Placement::Scattered).is_ok());
    }
}
