//! Every order in which a signal handler looks for a mapping while another thread frees an entry of the table
//! and uses it for another mapping: the handler finds ranges that are registered, and no mixture of two.
//!
//! The code is the crate's own, compiled once more over `loom`'s types.

pub mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
}

#[path = "../../src/sigbus/slot.rs"]
mod slot;

use loom::sync::Arc;
use loom::thread;
use slot::Slot;

const LONG: (usize, usize) = (0x1000, 0x4000);
const SHORT: (usize, usize) = (0x8000, 0x1000);

#[test]
fn an_entry_that_is_used_again_is_never_read_as_a_mixture_of_two_ranges() {
    // Between where the short one ends, and where it would end if it were as long as the other.
    const BEHIND_SHORT: usize = 0x9000;
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        assert!(slot.claim(LONG.0, LONG.1));
        let other = slot.clone();
        let reuse = thread::spawn(move || {
            other.free();
            assert!(other.claim(SHORT.0, SHORT.1));
        });
        assert_eq!(slot.range_around(BEHIND_SHORT), None, "memory of no mapping would be replaced");
        reuse.join().unwrap();
        assert_eq!(slot.range_around(SHORT.0), Some(SHORT));
    });
}

/// What the thread that faults has mapped stays registered: it is found, whatever happens to other entries.
#[test]
fn a_registered_range_is_found_while_its_neighbour_is_used_again() {
    loom::model(|| {
        let (own, other) = (Slot::new(), Arc::new(Slot::new()));
        assert!(own.claim(SHORT.0, SHORT.1) && other.claim(LONG.0, LONG.1));
        let reused = other.clone();
        let reuse = thread::spawn(move || {
            reused.free();
            assert!(!reused.is_hit() && reused.claim(0x2_0000, 0x1000));
        });
        let address = SHORT.0 + 8;
        let found: Vec<_> = [&own, &*other].iter().filter_map(|slot| slot.range_around(address)).collect();
        assert_eq!(found, [SHORT]);
        assert_eq!(own.count_hit(), 0);
        assert!(own.is_hit());
        reuse.join().unwrap();
    });
}
