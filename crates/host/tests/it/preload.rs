//! Unmodified programs: a C program that knows AF_VSOCK only, with the library preloaded, against a synthetic
//! guest.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use vmlane_guestsim::{Placement, SocketError, Stream as Far};

use crate::host_world::{SECOND, World};

const ECHO: u32 = 6000;

/// Sends back what comes, to the end.
fn echo(far: &Far) {
    let mut chunk = vec![0; 100_000];
    while let Ok(len @ 1..) = far.recv(&mut chunk) {
        if far.send_all(&chunk[..len]).is_err() {
            return;
        }
    }
    far.shutdown(2);
    // The process closes first: its end is the last to be seen.
    let _ = far.recv(&mut chunk);
}

/// How a program gets the library.
#[derive(Clone, Copy, PartialEq)]
enum Library {
    Preloaded,
    /// Its archive is linked into the program.
    Within,
}

/// A program of `crates/preload/tests`, compiled into `folder`.
fn program(name: &str, folder: &Path, world: &World, library: Library) -> Command {
    let program = folder.join(name);
    let source = format!("{}/../preload/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", &source]);
    let mut command = Command::new(&program);
    command.stdin(Stdio::null()).env("VMLANE_RUNTIME_DIR", world.dir.path());
    if library == Library::Preloaded {
        let file = folder.join(vmlane_preload::LIBRARY_NAME);
        std::fs::write(&file, vmlane_preload::LIBRARY).unwrap();
        command.env("LD_PRELOAD", file);
    } else {
        let file = folder.join(vmlane_preload::ARCHIVE_NAME);
        std::fs::write(&file, vmlane_preload::ARCHIVE).unwrap();
        compiler.arg(file);
    }
    assert!(compiler.args(["-ldl", "-lpthread", "-o"]).arg(&program).status().unwrap().success());
    command
}

/// Runs the cases of `crates/preload/tests/streams.c`.
fn run(plain: bool, library: Library) {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let listener = world.guest.listen(ECHO, Placement::Scattered);
    let mut command = program("streams", folder.path(), &world, library);
    command.args(["3", &ECHO.to_string()]);
    if plain {
        command.env("VMLANE_VSOCK_PLAIN", "1");
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let accepted = listener.accept();
                if over.load(Ordering::SeqCst) {
                    return;
                }
                match accepted {
                    Ok(far) => drop(scope.spawn(move || echo(&far))),
                    // The program takes its time.
                    Err(SocketError::TimedOut(_)) => {}
                    Err(_) => return,
                }
            }
        });
        let output = command.output().unwrap();
        over.store(true, Ordering::SeqCst);
        // Wakes the one that accepts.
        drop(vmlane_sock::Stream::connect_by(&world.host(), 3, ECHO, 30 * SECOND));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        assert_eq!(output.stdout, b"done\n");
    });
    world.assert_clean();
}

#[test]
fn a_program_finds_what_it_expects_of_its_streams() {
    run(false, Library::Preloaded);
}

#[test]
fn and_so_it_does_without_rings() {
    run(true, Library::Preloaded);
}

#[test]
fn and_so_it_does_with_the_library_linked_into_it() {
    run(false, Library::Within);
}

/// The cases of `crates/preload/tests/datagrams.c`: the guest sends each datagram back until an empty one
/// comes.
#[test]
fn and_of_its_datagrams() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let mut command = program("datagrams", folder.path(), &world, Library::Preloaded);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            for count in 0.. {
                let datagram = world.guest.next_datagram().unwrap();
                let back = world
                    .guest
                    .driver(|driver| driver.send_to(datagram.src, datagram.dst.resource, &datagram.payload));
                assert!(back >= 0, "{back}");
                if datagram.payload.is_empty() {
                    return count;
                }
            }
            unreachable!("it counts until an empty one comes");
        });
        let output = command.args(["3", "1234"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        assert_eq!(output.stdout, b"done\n");
        assert!(echo.join().unwrap() > 0);
    });
    assert_eq!(world.stats.panics.get(), 0);
}
