//! Compiles the C library of host programs for the target `host_library`: with GCC's coverage, under
//! AddressSanitizer where the targets are, and with names that leave the C library's alone.

use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "../crates/preload/src";
const SOURCES: [&str; 5] = ["vsock", "datagram", "ring", "calls", "escapes"];
/// What runs the library, and what the library runs on.
const WORLD: &str = "host_library";
const WORLD_SOURCES: [&str; 3] = ["kernel", "daemon", "program"];
/// Calls of the library that the target answers.
const REPLACED: [&str; 4] = ["dlsym", "clock_gettime", "nanosleep", "raise"];
/// GCC's coverage; libFuzzer has a function of this name that does nothing.
const COVERAGE: &str = "__sanitizer_cov_trace_pc";

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn compile(source: &Path, out: &Path, flags: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let common = ["-std=gnu11", "-O1", "-g1", "-fPIC", "-fno-omit-frame-pointer", "-c"];
    run(Command::new(compiler).args(common).args(flags).arg(source).arg("-o").arg(out));
}

fn main() {
    println!("cargo::rerun-if-changed={LIBRARY}");
    println!("cargo::rerun-if-changed={WORLD}");
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let rust = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let sanitizer: &[&str] = if rust.contains("sanitizer=address") { &["-fsanitize=address"] } else { &[] };
    // Without libFuzzer no one takes comparisons; memory changes between basic blocks all the same.
    let is_fuzzing = std::env::var_os("CARGO_FEATURE_LIBFUZZER").is_some();
    let coverage = ["-fsanitize-coverage=trace-pc", "-fsanitize-coverage=trace-cmp"];
    let coverage = &coverage[..1 + usize::from(is_fuzzing)];

    let object = |name: &str| out.join(format!("{name}.o"));
    for name in SOURCES {
        let source = Path::new(LIBRARY).join(format!("{name}.c"));
        compile(&source, &object(name), &[sanitizer, coverage].concat());
    }
    for name in WORLD_SOURCES {
        compile(&Path::new(WORLD).join(format!("{name}.c")), &object(name), sanitizer);
    }
    compile(&Path::new(WORLD).join("coverage.c"), &object("coverage"), &[]);

    let library = object("library");
    run(Command::new("ld").arg("-r").args(SOURCES.map(object)).arg("-o").arg(&library));
    let names = run(Command::new("nm").args(["-g", "--defined-only", "-j"]).arg(&library));
    let names = String::from_utf8(names).expect("symbols are ASCII");
    let ours = names.lines().map(|name| format!("{name} library_{name}\n"));
    let replaced = REPLACED.iter().map(|name| format!("{name} fuzz_{name}\n"));
    let blocks = std::iter::once(format!("{COVERAGE} fuzz_basic_block\n"));
    let renamed = out.join("names");
    std::fs::write(&renamed, ours.chain(replaced).chain(blocks).collect::<String>())
        .expect("OUT_DIR can be written to");
    run(Command::new("objcopy").arg(format!("--redefine-syms={}", renamed.display())).arg(&library));

    let archive = out.join("libhost_library.a");
    let _ = std::fs::remove_file(&archive);
    run(Command::new("ar")
        .arg("crs")
        .arg(&archive)
        .arg(&library)
        .args(WORLD_SOURCES.map(object))
        .arg(object("coverage")));
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=host_library");
}
