//! What a machine cannot run is reported with a reason, and counted.

use std::fs::File;
use std::io::Write as _;

/// Reports why the running test, or a part of it, does not run here. `make test` gives the name of a file in
/// `VMLANE_SKIPPED`, to which a line with the test's name is added; the runner counts these as skipped, not
/// as passed.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a thread of a test"));
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("VMLANE_SKIPPED") {
        let file = File::options().create(true).append(true).open(path);
        file.expect("the file for what is skipped").write_all(line.as_bytes()).expect("a line of it");
    }
}
