//! Tests in a network namespace of their own.

use std::process::Command;

use vmlane_testkit::{again, role, run, skipped};

/// Runs the calling test again in a namespace, if `can` succeeds in one: a shell's command. False: this is
/// that process.
pub fn outside(can: &str, needs: &str) -> bool {
    if role().is_some() {
        return false;
    }
    let tried = Command::new("unshare").args(["-n", "sh", "-c", can]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        skipped(needs);
        return true;
    }
    let inside = run(again(&["unshare", "-n"], "in a namespace"));
    print!("{}{}", inside.out, inside.err);
    assert!(inside.code == 0 && inside.out.contains("1 passed"), "it failed in a namespace");
    true
}

/// Runs `ip`; its output.
pub fn ip(arguments: &str) -> String {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    let ran = run(command);
    assert_eq!(ran.code, 0, "ip {arguments}: {}", ran.err);
    ran.out
}
