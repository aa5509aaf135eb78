//! Whether comparisons are told to the fuzzer, which learns from them what bytes to try. Told each time they cost
//! more than half of an execution, so it hears of them in one of a few. Nothing that is tested depends on it.
#![allow(unsafe_code)] // a variable that the instrumentation defines

#[cfg(fuzzing)]
mod gate {
    use std::sync::atomic::{AtomicU64, Ordering};

    unsafe extern "C" {
        #[link_name = "__sancov_should_track"]
        static mut GATE: u64;
    }

    /// One execution of so many.
    const ONE_IN: u64 = 6;

    static EXECUTIONS: AtomicU64 = AtomicU64::new(0);

    pub fn next() {
        let number = EXECUTIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: defined by `-sanitizer-coverage-gated-trace-callbacks` (scripts/fuzz.sh) as an aligned word that
        // lives for ever; it is only loaded elsewhere.
        let gate = unsafe { AtomicU64::from_ptr(&raw mut GATE) };
        gate.store(number.is_multiple_of(ONE_IN).into(), Ordering::Relaxed);
    }
}

/// An execution begins.
pub fn next() {
    #[cfg(fuzzing)]
    gate::next();
}
