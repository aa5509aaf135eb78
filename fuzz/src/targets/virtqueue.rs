//! Both ring formats: whatever a driver leaves in its rings, and records of a previous daemon.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_device::virtio::queue::{MAX_SEGMENTS, Queue, Record, recover};
use vmlane_device::virtio::vhost::RingSetup;
use vmlane_guestsim::virtio::DriverRing;
use vmlane_mem::Window;
use vmlane_wire::virtio::feature;

use crate::Input;
use crate::virtio::{SIZE, act, ram};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let packed = choice & 1 != 0;
    let mut features = feature::VERSION_1;
    for (bit, feature) in [(1, feature::PACKED), (2, feature::INDIRECT), (4, feature::EVENT_INDEX)] {
        features |= if choice & bit != 0 { feature } else { 0 };
    }
    let ram = ram();
    let mut ring = DriverRing::new(&ram, SIZE, packed);
    let (window, _file) = Window::of_file("record", 4096).expect("memory");
    let window = Arc::new(window);
    let record = if choice & 8 != 0 { Record::new(&window, 0, SIZE) } else { None };
    let setup = RingSetup { record, ..ring.setup() };
    let mut queue = Queue::new(&setup, features, &ram.device_map()).expect("a ring of a driver");
    let mut segments = Vec::new();
    while !input.is_empty() {
        match input.byte() % 8 {
            0..=3 => act(&mut input, &mut ring),
            4 | 5 => {
                for _ in 0..=input.byte() % SIZE as u8 {
                    segments.clear();
                    let single = queue.read_single(queue.next);
                    let read = queue.read(queue.next, &mut segments);
                    if let Some((taken, segment)) = single {
                        assert_eq!(
                            (&read, &segments[..]),
                            (&Ok(Some(taken)), &[segment][..]),
                            "two ways, one chain"
                        );
                    }
                    let Ok(Some(taken)) = read else { break };
                    assert!(segments.len() <= MAX_SEGMENTS && (1..=SIZE).contains(&taken.count()));
                    queue.next = taken.next();
                    queue.complete(taken.id(), taken.count(), 1);
                }
                queue.publish();
            }
            6 => {
                queue.listen();
                queue.suppress_kicks();
            }
            _ => {
                // It dies; the front end may have written anything into the record.
                if input.byte() & 1 != 0 {
                    let at = 8 * (input.number::<1>() as usize % 72);
                    window.store_u64(at, input.number::<8>());
                }
                if let Some(position) = recover(&setup, features, &ram.device_map()) {
                    setup.position.store(position, Ordering::SeqCst);
                }
                match Queue::new(&setup, features, &ram.device_map()) {
                    Ok(next) => queue = next,
                    Err(_) => return,
                }
            }
        }
    }
}
