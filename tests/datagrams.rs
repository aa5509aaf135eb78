//! A datagram arrives complete, or its send fails: none is merged or truncated.

use vmlane_tests::{Bed, kept, python, serve, spec};

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    // Guest c uses byte ports, which are slow under emulation: fewer sizes.
    let kernels = ["6.12", "6.12", "5.10"];
    let bed = Bed::up(&spec("dgram", &kernels));
    for (from, to, few) in [("a", "b", ""), ("a", "c", "few"), ("c", "a", "few")] {
        let server = serve(&bed.guest(to), "datagrams take 6000");
        let figures = python(&bed.guest(from), &format!("datagrams give {} 6000 {few}", bed.cid(to)));
        drop(server);
        kept(
            2,
            &format!(
                "guest {from} to {to} (kernels {}): {} sizes from 1 to {} bytes whole, one byte more is EMSGSIZE; in \
                 a burst {} were accepted, {} refused, {} answered in time, none merged or truncated",
                kernels.join(", "),
                figures["sizes"],
                figures["largest"],
                figures["sent"],
                figures["refused"],
                figures["back"]
            ),
        );
    }
    bed.finish();
}
