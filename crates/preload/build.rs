//! Compiles the library with the C compiler that links Rust programs anyway: shared, and as an archive. C,
//! because it replaces C's variadic functions and must not bring a second run-time into foreign programs.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 5] = ["src/vsock.c", "src/datagram.c", "src/ring.c", "src/calls.c", "src/escapes.c"];
const FLAGS: [&str; 7] = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"];

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    shared(&out.join("libvmlane_vsock.so.0"));
    archive(&out.join("libvmlane_vsock.a"));
}

/// A linker's script gives versions to the library's own names.
fn shared(library: &Path) {
    let mut compiler = compiler();
    compiler.args([
        "-shared",
        "-Wl,-soname,libvmlane_vsock.so.0",
        "-Wl,--version-script=src/libvmlane_vsock.map",
    ]);
    run(compiler.args(["-Wl,-z,now", "-Wl,-z,relro", "-o"]).arg(library).args(["-ldl", "-lpthread"]));
}

/// One object, in which names that the files share among each other are local.
fn archive(library: &Path) {
    let object = library.with_extension("o");
    run(compiler().args(["-r", "-nostdlib", "-o"]).arg(&object));
    run(Command::new("objcopy").args(["--localize-hidden", "--remove-section=.comment"]).arg(&object));
    let _ = std::fs::remove_file(library);
    run(Command::new("ar").arg("crD").arg(library).arg(&object));
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(FLAGS).args(SOURCES);
    command
}

fn run(command: &mut Command) {
    let program = command.get_program().to_owned();
    let status = command
        .status()
        .unwrap_or_else(|error| panic!("{}: {error}; install a C compiler and binutils", program.display()));
    assert!(status.success(), "{command:?}: {status}");
}
