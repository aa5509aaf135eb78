//! The C library of host programs and the world around it, which is C as well (`host_library/`).
#![allow(unsafe_code)] // a call into C

unsafe extern "C" {
    fn host_library_run(data: *const u8, len: usize) -> i32;
}

/// Lets a program and a daemon act as `data` says.
pub fn run(data: &[u8]) {
    // SAFETY: it reads `len` bytes at `data` during the call, and libFuzzer calls it from one thread.
    unsafe { host_library_run(data.as_ptr(), data.len()) };
}
