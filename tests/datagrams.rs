//! Datagrams arrive whole or their send fails: none is merged, none is cut.

use vmlane_tests::{Bed, kept, python, serve, spec};

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    // Guest c has byte ports, which are slow when emulated: fewer sizes.
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
                 a burst {} were taken, {} refused, {} answered in time, none merged or cut",
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
