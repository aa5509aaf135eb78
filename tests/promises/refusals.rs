//! A connect that cannot succeed fails at once, with the error that programs expect.

use vmlane_tests::{Bed, kept, python};

vmlane_tests::tests! {
    guests in VMCI { a_closed_port_and_an_absent_cid_fail_at_once }
}

fn a_closed_port_and_an_absent_cid_fail_at_once(bed: &Bed) {
    for (from, to) in [("a", "c"), ("c", "a")] {
        refused(bed, from, bed.cid(to), "ECONNRESET", "a port without a listener");
        refused(bed, from, 77, "EHOSTUNREACH", "an absent CID");
        // Datagrams: the same errors, from the send itself.
        python(&bed.guest(from), "datagrams fails 77 9 EHOSTUNREACH");
    }
    // A VM that is gone is like an absent CID (losses); a port of CID 2 that is not forwarded is like a
    // closed one.
    refused(bed, "a", 2, "ECONNRESET", "a port of CID 2 that is not forwarded");
}

pub(crate) fn refused(bed: &Bed, from: &str, cid: u32, error: &str, what: &str) {
    let figures = python(&bed.guest(from), &format!("refusals {cid} 4999 {error}"));
    let most = figures["most_seconds"].as_f64().unwrap();
    assert!(most < 30.0, "{what}: {figures}");
    let late = if most < 1.0 { "" } else { ", LATER THAN A SECOND" };
    kept("refusals", &format!("guest {from}: {what}: {error} after {most} s at most{late}"));
}
