//! Stream sockets behave as they do elsewhere: readiness, half-close, peeking, buffer sizes.

use vmlane_tests::{Bed, full, kept, python, serve};

vmlane_tests::tests! {
    guests in VMCI { sockets_behave_as_programs_expect }
}

const PORT: u32 = 7200;

fn sockets_behave_as_programs_expect(bed: &Bed) {
    // Guest c has byte ports, which are slow under emulation.
    let ways = [
        ("a", "b", "run", "6.12 to 6.12"),
        ("c", "a", "slow", "5.10 to 6.12"),
        ("a", "c", "slow", "6.12 to 5.10"),
    ];
    for (from, to, pace, kernels) in ways.into_iter().take(if full() { 3 } else { 1 }) {
        let server = serve(&bed.guest(to), &format!("semantics serve {PORT}"));
        let figures = python(&bed.guest(from), &format!("semantics {pace} {} {PORT}", bed.cid(to)));
        assert!(!server.printed().contains("failed"), "{}", server.printed());
        kept("sockets", &format!("{kernels}: {}", figures["cases"]));
    }
}
