//! What programs that were linked with the library rely on: its name, its symbols with their versions, and
//! its header, each compared with what is committed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use vmlane_preload::{ARCHIVE, LIBRARY, LIBRARY_NAME};

/// In the form of deb-symbols(5): the name, then ` SYMBOL@VERSION SINCE` by line.
const COMMITTED: &str = include_str!("../../libvmlane_vsock.symbols");
const HEADER: &str = include_str!("../../include/vmlane_vsock.h");
const PREFIX: &str = "VMCISock_";

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What a tool of binutils prints of a file with these bytes.
fn inspect(words: &[&str], bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("library");
    std::fs::write(&file, bytes).unwrap();
    output(Command::new(words[0]).args(&words[1..]).arg(&file))
}

fn last_word(line: &str) -> String {
    line.split_whitespace().next_back().unwrap_or_default().to_owned()
}

/// `SYMBOL@VERSION` of all that the library has for others.
fn exported() -> BTreeSet<String> {
    let printed = inspect(&["nm", "-D", "--defined-only", "--with-symbol-versions"], LIBRARY);
    printed.lines().map(|line| with_version(&last_word(line))).collect()
}

/// Not every nm prints the version of the symbol that stands for a version.
fn with_version(symbol: &str) -> String {
    match symbol.split_once('@') {
        Some((name, version)) => format!("{name}@{}", version.trim_start_matches('@')),
        None if symbol.starts_with("VMLANE_") => format!("{symbol}@{symbol}"),
        None => format!("{symbol}@Base"),
    }
}

fn committed() -> BTreeSet<String> {
    COMMITTED.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_symbols_are_those_of_the_committed_list() {
    let (exported, committed) = (exported(), committed());
    let missing: Vec<_> = committed.difference(&exported).collect();
    assert!(
        missing.is_empty(),
        "programs may need them: a library without them needs a new SONAME: {missing:?}"
    );
    let new: Vec<_> = exported.difference(&committed).collect();
    assert!(
        new.is_empty(),
        "add them to libvmlane_vsock.symbols, with the version that brings them: {new:?}"
    );
}

/// A version of a symbol of libc's would hide it from programs that were linked with another one.
#[test]
fn every_name_of_its_own_has_a_version_and_none_of_libc_has() {
    let (own, others): (Vec<_>, Vec<_>) = exported()
        .into_iter()
        .filter(|name| !name.starts_with("VMLANE_"))
        .partition(|name| name.starts_with(PREFIX));
    let bare: Vec<_> = own.iter().filter(|name| !name.contains("@VMLANE_VSOCK_")).collect();
    assert!(bare.is_empty(), "name them in libvmlane_vsock.map, below a version: {bare:?}");
    let versioned: Vec<_> = others.iter().filter(|name| !name.ends_with("@Base")).collect();
    assert!(versioned.is_empty() && !others.is_empty(), "{versioned:?}");
}

#[test]
fn its_soname_is_its_file_name_and_the_one_of_the_committed_list() {
    let printed = inspect(&["readelf", "-d", "-W"], LIBRARY);
    let soname = printed.lines().find(|line| line.contains("(SONAME)")).expect("a SONAME");
    assert_eq!(last_word(soname), format!("[{LIBRARY_NAME}]"));
    assert_eq!(COMMITTED.split_whitespace().next(), Some(LIBRARY_NAME));
}

#[test]
fn the_archive_has_the_same_names() {
    let printed = inspect(&["nm", "-g", "--defined-only"], ARCHIVE);
    let names: BTreeSet<_> = printed.lines().filter(|line| line.contains(' ')).map(last_word).collect();
    let shared = exported().into_iter().filter(|name| !name.starts_with("VMLANE_"));
    assert_eq!(names, shared.map(|name| name.split('@').next().unwrap_or_default().to_owned()).collect());
}

#[test]
fn the_header_declares_what_has_a_version_and_is_as_it_was() {
    let declared: BTreeSet<_> = HEADER
        .lines()
        .filter(|line| line.ends_with(");"))
        .filter_map(|line| line.split_once(PREFIX)?.1.split_once('('))
        .map(|(name, _)| format!("{PREFIX}{name}"))
        .collect();
    let exported = exported();
    let own = exported
        .iter()
        .filter(|name| name.starts_with(PREFIX))
        .filter_map(|name| Some(name.split_once('@')?.0));
    assert_eq!(declared, own.map(str::to_owned).collect());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I"]);
    output(compiler.arg(folder.join("include")).arg(folder.join("tests/abi.c")));
}
