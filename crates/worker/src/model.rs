//! Models that must fail are checked in a process of their own: the checker cannot unwind from a deadlock.

use std::process::Command;

const VARIANT: &str = "VMLANE_MODEL_VARIANT";

/// The variant that this process is to check, in a test that is ignored otherwise.
pub fn variant() -> String {
    std::env::var(VARIANT).expect("run by another test")
}

/// Has the ignored test `test` check `variant`. True if the checker found a thread that waits for ever.
pub fn deadlocks(test: &str, variant: &str) -> bool {
    let program = std::env::current_exe().expect("this program");
    let arguments = [test, "--exact", "--ignored", "--nocapture"];
    let output = Command::new(program)
        .args(arguments)
        .env(VARIANT, variant)
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("a process");
    let found = String::from_utf8_lossy(&output.stderr).contains("deadlock; threads");
    assert_ne!(output.status.success(), found, "{variant}: {}", String::from_utf8_lossy(&output.stderr));
    found
}
