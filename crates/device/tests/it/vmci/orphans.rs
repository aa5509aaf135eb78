//! Queue pairs whose creator was reset: each end is released, whatever became of the pair's name meanwhile.

use proptest::prelude::*;
use vmlane_device::pci::PciDevice;
use vmlane_guestsim::{Driver, Machine, PairSpec, Path, Placement};
use vmlane_mem::MemoryMap;
use vmlane_wire::vmci::{CID_ANY, Handle, QP_ATTACH_ONLY};

use super::{World, detach};

const CIDS: [u32; 3] = [3, 4, 5];

/// A VM whose driver is loaded again after each reset.
struct Vm {
    machine: Machine,
    driver: Driver,
}

impl Vm {
    fn new(world: &World, cid: u32) -> Vm {
        let machine = world.machine(cid);
        let driver = machine.probe(Path::Dma);
        Vm { machine, driver }
    }

    fn alloc(&mut self, handle: Handle, flags: u32) -> bool {
        let spec = PairSpec { handle, peer: CID_ANY, flags, produce: 4096, consume: 4096 };
        self.driver.alloc(&spec, Placement::Scattered).is_ok()
    }

    fn create(&mut self, handle: Handle) -> bool {
        self.alloc(handle, 0)
    }

    fn attach(&mut self, handle: Handle) -> bool {
        self.alloc(handle, QP_ATTACH_ONLY)
    }

    fn detach(&mut self, handle: Handle) -> bool {
        detach(&mut self.driver, handle) == 0
    }

    fn reset(&mut self) {
        self.machine.device.lock().reset();
        self.driver = self.machine.probe(Path::Dma);
    }

    /// Bytes that are mapped of its memory, beside its own mappings, after its VMM has taken all of it away.
    fn still_mapped(&self) -> u64 {
        self.machine.device.lock().reset();
        self.machine.device.lock().memory(&MemoryMap::default());
        let inode = rustix::fs::fstat(self.machine.ram.fd()).expect("a memory file").st_ino.to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the process's mappings");
        // Bytes, not mappings: two that happen to lie side by side become one.
        let bytes_of = |line: &str| {
            let mut fields = line.split_ascii_whitespace();
            let (from, to) = fields.next()?.split_once('-')?;
            let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).expect("an address"));
            (fields.nth(3) == Some(&*inode)).then_some(to - from)
        };
        let mapped: u64 = maps.lines().filter_map(bytes_of).sum();
        mapped - self.machine.ram.regions().iter().map(|(_, len, _)| len).sum::<u64>()
    }
}

fn held(world: &World, cid: u32) -> usize {
    world.bound(cid, "queue_pairs").0 as usize
}

#[test]
fn a_creator_that_is_reset_twice_pins_no_memory_of_its_peer() {
    let world = World::new();
    let [mut a, mut b] = [3, 4].map(|cid| Vm::new(&world, cid));
    let handle = Handle::new(3, 2000);
    for _ in 0..2 {
        assert!(a.create(handle) && b.attach(handle));
        a.reset();
    }
    assert_eq!(held(&world, 4), 2);
    b.reset();
    assert_eq!((held(&world, 3), held(&world, 4)), (0, 0));
    assert_eq!([a, b].map(|vm| vm.still_mapped()), [0, 0]);
}

/// A pair as it should be.
#[derive(Clone, Copy, Debug)]
struct Pair {
    handle: Handle,
    /// Its handle means it: its creator has not been reset.
    named: bool,
    attached: bool,
    /// Who holds an end: the creator, the attacher.
    ends: [Option<u32>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Create(usize, u32),
    Attach(usize, usize, u32),
    Detach(usize, usize, u32),
    Reset(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let vm = || 0..CIDS.len();
    prop_oneof![
        3 => (vm(), 0u32..2).prop_map(|(vm, number)| Step::Create(vm, number)),
        4 => (vm(), vm(), 0u32..2).prop_map(|(vm, of, number)| Step::Attach(vm, of, number)),
        2 => (vm(), vm(), 0u32..2).prop_map(|(vm, of, number)| Step::Detach(vm, of, number)),
        2 => vm().prop_map(Step::Reset),
    ]
}

/// What should come of a step.
fn expected(pairs: &mut Vec<Pair>, step: Step) -> bool {
    let handle = |vm: usize, number| Handle::new(CIDS[vm], 2000 + number);
    let done = match step {
        Step::Create(vm, number) => {
            let handle = handle(vm, number);
            let free = !pairs.iter().any(|pair| pair.named && pair.handle == handle);
            if free {
                let ends = [Some(CIDS[vm]), None];
                pairs.push(Pair { handle, named: true, attached: false, ends });
            }
            free
        }
        Step::Attach(vm, of, number) => {
            let waits = |pair: &&mut Pair| pair.named && !pair.attached && pair.handle == handle(of, number);
            let pair = pairs.iter_mut().find(waits).filter(|_| vm != of);
            pair.map(|pair| (pair.attached, pair.ends[1]) = (true, Some(CIDS[vm]))).is_some()
        }
        Step::Detach(vm, of, number) => {
            let holds =
                |pair: &&mut Pair| pair.handle == handle(of, number) && pair.ends.contains(&Some(CIDS[vm]));
            // One that its handle means goes first, then the last one that it meant.
            let mut own: Vec<&mut Pair> = pairs.iter_mut().filter(holds).collect();
            own.sort_by_key(|pair| pair.named);
            let end = own.pop().and_then(|pair| pair.ends.iter_mut().find(|end| **end == Some(CIDS[vm])));
            end.map(|end| *end = None).is_some()
        }
        Step::Reset(vm) => {
            for pair in pairs.iter_mut() {
                pair.ends.iter_mut().filter(|end| **end == Some(CIDS[vm])).for_each(|end| *end = None);
                pair.named &= pair.handle.context != CIDS[vm];
            }
            true
        }
    };
    pairs.retain(|pair| pair.ends != [None; 2]);
    done
}

fn act(vms: &mut [Vm], step: Step) -> bool {
    let handle = |vm: usize, number| Handle::new(CIDS[vm], 2000 + number);
    match step {
        Step::Create(vm, number) => vms[vm].create(handle(vm, number)),
        Step::Attach(vm, of, number) => vms[vm].attach(handle(of, number)),
        Step::Detach(vm, of, number) => vms[vm].detach(handle(of, number)),
        Step::Reset(vm) => {
            vms[vm].reset();
            true
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Handles that are used again and again, in any order of creations, attaches, detaches and resets: every
    /// end is charged as long as it is held, and no longer, and in the end no memory of any VM is mapped.
    #[test]
    fn handles_used_again_pin_nothing(steps in prop::collection::vec(step(), 1..60)) {
        let world = World::new();
        let mut vms = CIDS.map(|cid| Vm::new(&world, cid));
        let mut pairs = Vec::new();
        for step in steps {
            prop_assert_eq!(act(&mut vms, step), expected(&mut pairs, step), "{:?}", step);
            for vm in &mut vms {
                vm.driver.service();
            }
            for cid in CIDS {
                let ends = pairs.iter().flat_map(|pair: &Pair| pair.ends);
                prop_assert_eq!(held(&world, cid), ends.filter(|end| *end == Some(cid)).count(), "{:?}", step);
            }
        }
        for vm in &mut vms {
            vm.reset();
        }
        prop_assert_eq!(vms.map(|vm| vm.still_mapped()), [0; 3]);
    }
}
