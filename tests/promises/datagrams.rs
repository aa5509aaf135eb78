//! A datagram arrives complete, or its send fails: none is merged or truncated.

use vmlane_tests::{Bed, full, kept, python, serve};

vmlane_tests::tests! {
    guests in VMCI { datagrams_arrive_whole_or_not_at_all }
}

fn datagrams_arrive_whole_or_not_at_all(bed: &Bed) {
    // Guest c uses byte ports, which are slow under emulation: fewer sizes.
    let ways = [("a", "b", "few"), ("c", "a", "few"), ("a", "c", "few"), ("a", "b", "")];
    for (from, to, few) in ways.into_iter().take(if full() { 4 } else { 2 }) {
        let server = serve(&bed.guest(to), "datagrams take 6000");
        let figures = python(&bed.guest(from), &format!("datagrams give {} 6000 {few}", bed.cid(to)));
        drop(server);
        kept(
            "datagrams",
            &format!(
                "guest {from} to {to} (c has kernel 5.10, the others 6.12): {} sizes from 1 to {} bytes whole, one byte \
                 more is EMSGSIZE; in a burst {} were accepted, {} refused, {} answered in time, none merged or truncated",
                figures["sizes"], figures["largest"], figures["sent"], figures["refused"], figures["back"]
            ),
        );
    }
}
