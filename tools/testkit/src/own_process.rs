//! A test that needs a process of its own: it runs its program once more, for itself only.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::Process;

const ROLE: &str = "VMLANE_TEST_ROLE";

/// What this process is, if [`again`] made its command.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The calling test once more, as a process that has a role. `by`: what starts it, such as `unshare -n`.
pub fn again(by: &[&str], role: &str) -> Command {
    let thread = std::thread::current();
    let program = std::env::current_exe().unwrap();
    let mut words = by.iter().map(OsString::from).chain([program.into()]);
    let mut command = Command::new(words.next().expect("this program at least"));
    command.args(words).args(["--include-ignored", "--nocapture", "--exact"]);
    command.arg(thread.name().expect("a test's thread has its name")).env(ROLE, role);
    command
}

/// Runs the calling test in a process of its own, which must succeed. False: this is that process.
pub fn ran_alone() -> bool {
    if role().is_some() {
        return false;
    }
    let (output, end) = std::io::pipe().unwrap();
    let mut command = again(&[], "alone");
    command.stdin(Stdio::null()).stdout(end.try_clone().unwrap()).stderr(end);
    let mut process = Process(command.spawn().unwrap());
    // It has this process's ends of the pipe.
    drop(command);
    // Where the test runner captures this test's output.
    BufReader::new(output).lines().for_each(|line| println!("{}", line.unwrap()));
    assert!(process.wait().success(), "it failed in a process of its own");
    true
}
