//! Stream sockets behave as they do elsewhere: readiness, half-close, peeking, buffer sizes.

use vmlane_tests::{Bed, full, kept, python, serve, spec};

const PORT: u32 = 7200;

#[test]
fn sockets_behave_as_programs_expect() {
    // The second pair has a guest with byte ports, which are slow under emulation.
    for (kernels, pace) in [(["6.12", "6.12"], "run"), (["5.10", "6.12"], "slow")] {
        let bed = Bed::up(&spec("sock", &kernels));
        for (from, to) in [("a", "b"), ("b", "a")] {
            let server = serve(&bed.guest(to), &format!("semantics serve {PORT}"));
            let figures = python(&bed.guest(from), &format!("semantics {pace} {} {PORT}", bed.cid(to)));
            assert!(!server.said().contains("failed"), "{}", server.said());
            kept(7, &format!("{} to {}: {}", kernels[0], kernels[1], figures["cases"]));
            if kernels[0] == kernels[1] || !full() {
                break; // the other direction differs only for the slow pair
            }
        }
        bed.finish();
    }
}
