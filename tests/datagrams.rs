//! Datagrams arrive whole or their send fails: none is merged, none is cut.

use vmlane_tests::{Bed, kept, python, serve, spec};

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    // One guest has the DMA path, the other byte ports.
    let kernels = ["6.12", "5.10"];
    let bed = Bed::up(&spec("dgram", &kernels));
    for (from, to) in [("a", "b"), ("b", "a")] {
        let server = serve(&bed.guest(to), "datagrams take 6000");
        let figures = python(&bed.guest(from), &format!("datagrams give {} 6000", bed.cid(to)));
        kept(
            2,
            &format!(
                "guest {from} to {to} (kernels {kernels:?}): {} sizes from 1 to {} bytes whole, one more byte is \
                 EMSGSIZE; of {} at once {} came back, none changed",
                figures["sizes"], figures["largest"], figures["flood_sent"], figures["flood_back"]
            ),
        );
        drop(server);
    }
    bed.finish();
}
