//! Stream sockets mean what they mean elsewhere: readiness, half-close, peeking, buffer sizes.

use vmlane_tests::{Bed, kept, python, serve, spec};

const PORT: u32 = 7200;

#[test]
fn sockets_behave_as_programs_expect() {
    // One guest has the newer notification protocol, the other the port path.
    for kernels in [["6.12", "6.12"], ["5.10", "6.12"]] {
        let bed = Bed::up(&spec("sock", &kernels));
        for (from, to) in [("a", "b"), ("b", "a")] {
            let server = serve(&bed.guest(to), &format!("semantics serve {PORT}"));
            let figures = python(&bed.guest(from), &format!("semantics run {} {PORT}", bed.cid(to)));
            assert!(!server.said().contains("failed"), "{}", server.said());
            kept(7, &format!("{} to {}: {}", kernels[0], kernels[1], figures["cases"]));
            if kernels[0] == kernels[1] {
                break; // the other way is the same
            }
        }
        bed.finish();
    }
}
