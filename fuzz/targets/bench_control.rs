//! The benchmark's control messages: whatever a client or a server says is refused or understood, and a report
//! can be made of any result, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    vmlane_fuzz::compares::next();
    vmlane_bench::control::fuzz(bytes);
});
