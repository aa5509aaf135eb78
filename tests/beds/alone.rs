//! The program of this repository without a lab: its commands, daemons of a test's own, and what they use.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use vmlane_lab::setup::Qemu;
use vmlane_testkit::{Daemon, write_program};

/// `vmlane` as it was built, which heeds nothing of this process's.
pub fn vmlane() -> Command {
    let mut command = Command::new(vmlane_lab::find_vmlane().expect("the program was built"));
    command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// All that a program has printed.
pub fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What a program prints, which must succeed.
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", printed(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The directory of a daemon's own, with this configuration. None is started.
pub fn daemon(config: &str) -> Daemon {
    Daemon::new(vmlane().get_program(), config)
}

/// The status of the daemon whose sockets are in `run`; null without one.
pub fn status(run: &Path) -> Value {
    let printed = vmlane().args(["status", "--json", "--runtime-dir"]).arg(run).output();
    serde_json::from_slice(&printed.expect("a process").stdout).unwrap_or_default()
}

/// Puts a QEMU of the lab's into a folder under its usual name, and returns a PATH that begins with that.
pub fn qemu_in_path(folder: &Path, qemu: &Qemu) -> String {
    let command = qemu.command();
    let text = |word: &OsStr| format!("'{}'", word.to_str().expect("text").replace('\'', "'\\''"));
    let set = command.get_envs().filter_map(|(name, value)| Some((name.to_str()?, text(value?))));
    let set: String = set.map(|(name, value)| format!("export {name}={value}\n")).collect();
    let words: Vec<String> =
        [command.get_program()].into_iter().chain(command.get_args()).map(text).collect();
    let script = format!("#!/bin/sh\n{set}exec {} \"$@\"\n", words.join(" "));
    write_program(&folder.join("qemu-system-x86_64"), &script);
    format!("{}:{}", folder.display(), std::env::var("PATH").expect("a PATH"))
}

/// Seconds of processor time that a process and its threads have had.
pub fn processor_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    ticks as f64 / 100.0
}

/// KiB of memory that only a process has.
pub fn own_memory(process: u32) -> u64 {
    private_memory(process) + memory(process, "RssShmem:")
}

/// The same without what it may share with others, such as guests.
pub fn private_memory(process: u32) -> u64 {
    memory(process, "RssAnon:")
}

/// KiB that the kernel reports of a process by this key.
fn memory(process: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let value = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
    value.trim().trim_end_matches(" kB").parse().expect("a number")
}
