//! Address space is one for all mappings of a process.

use vmlane_mem::{ADDRESS_SPACE, MapRequest, MemoryMap, memfd};

/// Sparse files cost nothing: without a bound, two of these and any other VM's memory would be more than
/// there is.
#[test]
fn address_space_is_left_for_what_is_not_a_guests() {
    const LARGE: u64 = 3 << 40;
    if vmlane_testkit::ran_alone() {
        return;
    }
    let sparse = memfd("sparse", LARGE).unwrap();
    let region = |n: u64| MapRequest {
        guest: n * LARGE,
        len: LARGE,
        offset: 0,
        fd: sparse.try_clone().unwrap(),
        writable: true,
    };
    let (mut memory, mut mapped) = (MemoryMap::default(), 0);
    let refused = loop {
        match memory.map(region(mapped)) {
            Ok(more) => memory = more,
            Err(error) => break error,
        }
        mapped += 1;
    };
    assert!(mapped * LARGE <= ADDRESS_SPACE && mapped < 43, "{mapped}");
    assert!(refused.to_string().contains("all VMs may map"), "{refused}");
    assert!(Vec::<u8>::new().try_reserve_exact(1 << 28).is_ok());
    // What is unmapped can be mapped again.
    memory = memory.unmap(0, LARGE).unwrap();
    assert!(memory.map(region(0)).is_ok());
}
