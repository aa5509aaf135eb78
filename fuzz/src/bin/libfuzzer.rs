//! libFuzzer with one target, whose name is in `VMLANE_FUZZ_TARGET` when this is built (scripts/fuzz.sh). It
//! reads the counters of all code in a program after each execution, so each target has a program of
//! its own.
#![no_main]
#![allow(unsafe_code)] // a variable that the instrumentation defines

use std::sync::atomic::{AtomicU64, Ordering};

const RUN: fn(&[u8]) =
    vmlane_fuzz::target(env!("VMLANE_FUZZ_TARGET", "scripts/fuzz.sh builds this for each target"));

/// Comparisons are reported to the fuzzer, which learns from them what bytes to try, in one execution of so
/// many: reported in each they cost more than half of it. Nothing that is tested depends on it.
const ONE_IN: u64 = 6;

static EXECUTIONS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    /// Whether comparisons are reported.
    #[link_name = "__sancov_should_track"]
    static mut GATE: u64;
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let number = EXECUTIONS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: defined by `-sanitizer-coverage-gated-trace-callbacks` (scripts/fuzz.sh) as an aligned word
    // that lives for ever; it is only loaded elsewhere.
    let gate = unsafe { AtomicU64::from_ptr(&raw mut GATE) };
    gate.store(number.is_multiple_of(ONE_IN).into(), Ordering::Relaxed);
    RUN(data);
});
