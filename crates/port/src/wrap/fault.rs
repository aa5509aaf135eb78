//! A fault on request, for tests of containment.

use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A panic.
    Panic,
    /// The thread sleeps for so long.
    Stall(Duration),
    /// A system call that no code on this thread needs.
    Trespass,
}

impl Fault {
    /// Happens, here and now.
    #[cold]
    #[expect(clippy::panic, reason = "the panic is what was asked for")]
    pub fn happen(self) {
        match self {
            Fault::Panic => panic!("injected on request"),
            // statx(2): nothing that serves guests uses files by name.
            Fault::Trespass => drop(std::fs::metadata("/")),
            Fault::Stall(time) => std::thread::sleep(time),
        }
    }
}
