//! Nothing crosses isolation groups. Doorbells, which a program in a guest cannot ring, are tested in
//! the device's tests.

use vmlane_tests::{Bed, give, json, kept, python, spec, take};

#[test]
fn nothing_crosses_groups() {
    let mut spec = spec("groups", &["6.12", "6.12", "6.12"]);
    spec.groups = ["red", "red", "blue"].map(str::to_owned).to_vec();
    let bed = Bed::up(&spec);
    // There is a listener in each guest, so that only the group can be the reason.
    let takers = ["a", "b", "c"].map(|name| take(&bed.guest(name)));
    for (from, to) in [("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")] {
        let (guest, cid) = (bed.guest(from), bed.cid(to));
        python(&guest, &format!("refusals {cid} 7100 EHOSTUNREACH"));
        python(&guest, &format!("datagrams fails {cid} 6000 EHOSTUNREACH"));
    }
    for (from, to) in [("a", "b"), ("b", "a")] {
        json(&bed.guest(from), "stream give", &give(&bed, from, to, 2).wait().unwrap());
    }
    assert_eq!(bed.counter("c", "stream_bytes_received"), 0);
    assert_eq!(bed.counter("c", "established"), 0);
    drop(takers);
    kept(5, "between two groups connects and datagrams are EHOSTUNREACH; within one streams pass");
    bed.finish();
}
