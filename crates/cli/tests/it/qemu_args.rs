//! `vmlane qemu-args`, and what is common to all commands' usage.

use std::process::Command;

use serde_json::Value;
use vmlane_testkit::{Ran, run, write_program};

use crate::common::{VMLANE, vmlane};

struct Setup {
    _directory: tempfile::TempDir,
    config: String,
}

fn setup() -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("vmlane.toml");
    std::fs::write(&config, "[[vm]]\nname = \"web\"\ncid = 3\n[[vm]]\nname = \"db\"\ncid = 4\n").unwrap();
    Setup { config: config.to_str().unwrap().to_owned(), _directory: directory }
}

impl Setup {
    /// For a QEMU of this version, unless the arguments name another.
    fn qemu_args(&self, arguments: &[&str]) -> Ran {
        let version: &[&str] = if arguments.contains(&"--qemu") { &[] } else { &["--qemu", "10.1"] };
        vmlane(&[&["qemu-args", "--config", &self.config], version, arguments].concat())
    }

    /// The arguments as JSON lists them.
    fn list(&self, arguments: &[&str]) -> Vec<String> {
        let ran = self.qemu_args(&[arguments, &["--json"]].concat());
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["version"], 1);
        serde_json::from_value(report["args"].clone()).unwrap()
    }
}

/// The words that a shell makes of `script`'s arguments.
fn shell_words(script: &str) -> Vec<String> {
    let output = Command::new("sh").args(["-c", script]).env("VMLANE", VMLANE).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn a_shell_gets_the_same_words_from_all_forms() {
    let setup = setup();
    let common = ["web", "--runtime-dir", "/run/x", "--mem", "256"];
    let list = setup.list(&common);
    assert_eq!(list[5], "256M");
    assert!(list.iter().any(|word| word.contains("\"path\":\"/run/x/vm/web/vmci.sock\"")), "{list:?}");
    let command =
        format!("\"$VMLANE\" qemu-args --qemu 10.1 --config '{}' {}", setup.config, common.join(" "));
    assert_eq!(shell_words(&format!("eval \"printf '%s\\\\0' $({command})\"")), list);
    assert_eq!(shell_words(&format!("printf '%s\\0' $({command} --words)")), list);
}

#[test]
fn the_qemu_at_hand_is_asked_for_its_version() {
    let setup = setup();
    let virtio = "[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\" }]\n";
    std::fs::write(&setup.config, virtio).unwrap();
    let bin = setup._directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let program = bin.join("qemu-system-x86_64");
    write_program(
        &program,
        "#!/bin/sh\necho 'QEMU emulator version 7.2.19 (Debian 1:7.2+dfsg-7+deb12u16)'\n",
    );
    let ask = |path: &std::path::Path, more: &[&str]| {
        let mut command = Command::new(VMLANE);
        command.args(["qemu-args", "--config", &setup.config, "web"]).args(more).env("PATH", path);
        run(command)
    };
    let old = ask(&bin, &[]);
    assert!(old.out.contains("reconnect=1") && !old.out.contains("reconnect-ms"), "{old:?}");
    let may_use_kvm = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    let printed = (old.out.contains("\"vectors\":0"), old.err.contains("--accel tcg"));
    assert_eq!(printed, (!may_use_kvm, may_use_kvm), "{old:?}");
    assert!(ask(&bin, &["--accel", "tcg"]).err.is_empty());
    let named = ask(setup._directory.path(), &["--emulator", program.to_str().unwrap()]);
    assert!(named.succeeded() && named.out.contains("reconnect=1"), "{named:?}");
    assert!(ask(&bin, &["--qemu", "10.1"]).good().contains("reconnect-ms="));
    if !std::path::Path::new("/usr/libexec/qemu-kvm").exists() {
        let none = ask(setup._directory.path(), &[]);
        assert!(
            none.succeeded() && none.err.contains("--qemu") && none.out.contains("reconnect-ms="),
            "{none:?}"
        );
    }
    ask(setup._directory.path(), &["--emulator", "/bin/true"])
        .fails(1, &["--emulator /bin/true", "does not print"]);
}

#[test]
fn odd_paths_are_quoted_or_refused() {
    let setup = setup();
    let odd = ["web", "--runtime-dir", "/run/it's a $dir"];
    let command = format!(
        "\"$VMLANE\" qemu-args --qemu 10.1 --config '{}' web --runtime-dir \"/run/it's a \\$dir\"",
        setup.config
    );
    assert_eq!(shell_words(&format!("args=$({command}); eval \"printf '%s\\\\0' $args\"")), setup.list(&odd));
    setup.qemu_args(&[&odd[..], &["--words"]].concat()).fails(1, &["use eval"]);
}

#[test]
fn errors_name_what_is_known() {
    let setup = setup();
    setup.qemu_args(&["wbe"]).fails(1, &["\"wbe\"", "known are web, db"]);
    assert_eq!(setup.qemu_args(&["web", "--mem", "0"]).code, 2);
    for (word, value) in [("--machine", "isapc"), ("--qemu", "6.0")] {
        assert_eq!(setup.qemu_args(&["web", word, value]).code, 2, "{word} {value}");
    }
    for (word, value, printed) in
        [("--machine", "microvm", "no PCI"), ("--qemu", "7.2", "needs QEMU >= 10.1")]
    {
        setup.qemu_args(&["web", word, value]).fails(1, &[printed, "vsock = \"virtio\""]);
    }
    let long = format!("/{}", "d".repeat(120));
    let error = setup.qemu_args(&["web", "--runtime-dir", &long]).err;
    assert!(error.contains("107") && error.contains("--runtime-dir"), "{error}");
}

#[test]
fn every_command_has_examples_and_usage_errors_exit_2() {
    for command in ["daemon", "qemu-args", "status", "stats", "ports", "top", "reload"] {
        let help = vmlane(&[command, "--help"]).out;
        assert!(help.contains("Examples:") && help.contains(&format!("vmlane {command}")), "{help}");
        assert_eq!(vmlane(&[command, "--nonsense"]).code, 2);
    }
    assert_eq!(vmlane(&["top", "--interval", "0"]).code, 2);
}
