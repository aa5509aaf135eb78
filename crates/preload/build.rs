//! Compiles the library with the C compiler that links Rust programs anyway. C, because it replaces C's
//! variadic functions and must not bring a second run-time into foreign programs.

use std::path::PathBuf;
use std::process::Command;

const SOURCES: [&str; 5] = ["src/vsock.c", "src/datagram.c", "src/ring.c", "src/calls.c", "src/escapes.c"];

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=CC");
    let out =
        PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libvmlane_vsock.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = Command::new(&compiler);
    command.args([
        "-std=gnu11",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    command.args(["-Wl,-soname,libvmlane_vsock.so", "-Wl,-z,now", "-Wl,-z,relro", "-o"]).arg(&out);
    command.args(SOURCES).args(["-ldl", "-lpthread"]);
    let status = command.status().unwrap_or_else(|error| panic!("{compiler}: {error}; install a C compiler"));
    assert!(status.success(), "{compiler} could not compile {SOURCES:?}: {status}");
}
