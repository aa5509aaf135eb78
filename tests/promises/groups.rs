//! Nothing crosses isolation groups. Doorbells, which a program in a guest cannot ring, are tested in
//! the device's tests.

use vmlane_tests::{Bed, kept, passes, python, take};

vmlane_tests::tests! {
    guests in VMCI { nothing_crosses_groups }
}

fn nothing_crosses_groups(bed: &Bed) {
    // There is a listener in each guest, so that only the group can be the reason.
    let takers = ["a", "b", "d"].map(|name| take(&bed.guest(name)));
    let reached = || ["stream_bytes_received", "established"].map(|name| bed.counter("d", name));
    let before = reached();
    for (from, to) in [("a", "d"), ("d", "a"), ("b", "d"), ("d", "b")] {
        let (guest, cid) = (bed.guest(from), bed.cid(to));
        python(&guest, &format!("refusals {cid} 7100 EHOSTUNREACH"));
        python(&guest, &format!("datagrams fails {cid} 6000 EHOSTUNREACH"));
    }
    for (from, to) in [("a", "b"), ("b", "a")] {
        passes(bed, from, to);
    }
    assert_eq!(reached(), before);
    drop(takers);
    kept("groups", "between two groups connects and datagrams are EHOSTUNREACH; within one streams pass");
}
