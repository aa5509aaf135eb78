//! What is printed for VMMs other than a plain QEMU, for VMs with every kind of port.

use std::process::Command;

use serde_json::Value;
use vmlane_testkit::{Ran, contains_all, run, write_program};

use crate::common::{VMLANE, vmlane};

const CONFIG: &str = r#"
[[vm]]
name = "classic"
cid = 3
nic = [{ model = "vmxnet3" }, { model = "vmxnet3", trapped = true }]
[[vm]]
name = "virtio"
cid = 4
vsock = "virtio"
nic = [{ model = "virtio-net" }, { model = "virtio-net", queues = 4, mtu = 9000, packed = true, lro = false }]
[[vm]]
name = "mixed"
cid = 5
nic = [{ model = "virtio-net", mac = "52:54:00:00:00:03" }, { model = "vmxnet3" }]
[[vm]]
name = "cards"
vsock = "none"
nic = [{ model = "virtio-net" }]
"#;
const VMS: [&str; 4] = ["classic", "virtio", "mixed", "cards"];

struct Setup {
    directory: tempfile::TempDir,
}

impl Setup {
    fn new() -> Setup {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("vmlane.toml"), CONFIG).unwrap();
        Setup { directory }
    }

    fn vmlane(&self, arguments: &[&str]) -> Ran {
        let config = self.directory.path().join("vmlane.toml");
        let mut command = Command::new(VMLANE);
        command.args(arguments).arg("--config").arg(config).args(["--runtime-dir", "/run/it's <&>"]);
        run(command)
    }

    fn text(&self, arguments: &[&str]) -> String {
        self.vmlane(arguments).good()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }
}

/// libvirt's own check against its own schema (packages libvirt-clients and libxml2-utils).
#[test]
fn libvirt_takes_the_domain() {
    let setup = Setup::new();
    for vm in VMS {
        let xml = setup.text(&["libvirt-xml", vm, "--mem", "512"]);
        let file = setup.directory.path().join("domain.xml");
        std::fs::write(&file, &xml).unwrap();
        let validate = |file| Command::new("virt-xml-validate").arg(file).arg("domain").output();
        let output = validate(&file)
            .expect("virt-xml-validate: run scripts/bootstrap.sh libvirt-clients libxml2-utils");
        assert!(output.status.success(), "{xml}\n{}", String::from_utf8_lossy(&output.stderr));
        // The check can fail.
        std::fs::write(&file, xml.replace("<vcpu>1<", "<vcpu>none<")).unwrap();
        assert!(!validate(&file).unwrap().status.success());
        let json = setup.json(&["libvirt-xml", vm, "--mem", "512"]);
        assert_eq!((json["version"].as_u64(), json["xml"].as_str()), (Some(1), Some(&*xml)));
    }
}

/// libvirt's check of domains that VMs were put into, which a second time does not change.
#[test]
fn libvirt_takes_domains_that_vms_were_put_into() {
    let setup = Setup::new();
    let file = setup.directory.path().join("domain.xml");
    let name = file.to_str().unwrap();
    for vm in VMS {
        let own =
            "<!-- its disk -->\n    <disk type='file'><source file='/d.img'/><target dev='vda'/></disk>";
        let existing =
            setup.text(&["libvirt-xml", "cards"]).replace("</devices>", &format!("{own}\n  </devices>"));
        std::fs::write(&file, existing.replace("/vm/cards/", "/other/")).unwrap();
        let xml = setup.text(&["libvirt-xml", vm, "--into", name]);
        assert!(xml.contains(own), "{xml}");
        std::fs::write(&file, &xml).unwrap();
        let output = Command::new("virt-xml-validate").args([name, "domain"]).output().unwrap();
        assert!(output.status.success(), "{xml}\n{}", String::from_utf8_lossy(&output.stderr));
        let json = setup.json(&["libvirt-xml", vm, "--into", name]);
        assert_eq!(json["xml"].as_str(), Some(&*xml));
        assert!(json["notes"].to_string().contains("has no owner"), "{json}");
        let other =
            setup.vmlane(&["libvirt-xml", if vm == "cards" { "mixed" } else { "cards" }, "--into", name]);
        assert!(other.err.contains(&format!("belongs to VM {vm}")), "{other:?}");
    }
}

#[test]
fn an_emulator_is_asked_for_its_version() {
    let setup = Setup::new();
    let program = setup.directory.path().join("qemu");
    let name = program.to_str().unwrap();
    let output_for = |text: &str| {
        write_program(&program, &format!("#!/bin/sh\necho '{text}'\n"));
        setup.vmlane(&["libvirt-xml", "classic", "--emulator", name])
    };
    let new = output_for("QEMU emulator version 11.1.3 (Debian)");
    let element = format!("<emulator>{name}</emulator>");
    assert!(new.out.contains(&element), "{new:?}");
    for (text, words) in
        [("QEMU emulator version 7.2.19", "needs QEMU >= 10.1, and this is 7.2"), ("bash", "does not print")]
    {
        let output = output_for(text);
        assert!(!output.succeeded() && output.err.contains(words), "{output:?}");
    }
}

/// What a shell makes of it is what the JSON lists, and QEMU's words are `qemu-args`' own.
#[test]
fn words_survive_their_readers() {
    let setup = Setup::new();
    let words = |line: &str| -> Vec<String> {
        let script = "eval \"set -- $LINE\"; printf '%s\\0' \"$@\"";
        let output = Command::new("sh").args(["-c", script]).env("LINE", line.trim_end()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    };
    let list = |command: &str, vm: &str, more: &[&str]| -> Vec<String> {
        serde_json::from_value(setup.json(&[&[command, vm], more].concat())["args"].clone()).unwrap()
    };
    for vm in VMS {
        let line = setup.text(&["cloud-hypervisor-args", vm]);
        assert_eq!(words(&line), list("cloud-hypervisor-args", vm, &[]));
        let mut qemu = list("qemu-args", vm, &["--qemu", "10.1", "--accel", "kvm"]);
        // Proxmox gives the size of the memory itself.
        let size = qemu.iter().position(|word| word == "-m").unwrap();
        qemu.drain(size..size + 2);
        assert_eq!(words(&setup.text(&["proxmox-args", vm])), qemu);
    }
}

#[test]
fn help_has_examples_and_unknown_vms_are_named() {
    let setup = Setup::new();
    for command in ["libvirt-xml", "proxmox-args", "cloud-hypervisor-args"] {
        let help = vmlane(&[command, "--help"]).out;
        assert!(help.contains("Examples:") && help.contains(&format!("vmlane {command}")), "{help}");
        setup.vmlane(&[command, "wbe"]).fails(1, &["known are classic"]);
        assert_eq!(setup.vmlane(&[command]).code, 2);
    }
}

#[test]
fn attach_prints_what_the_older_command_of_a_vmm_does() {
    let setup = Setup::new();
    let qemu = ["--qemu", "10.1", "--accel", "kvm"];
    for (vmm, older, more) in [
        ("qemu", "qemu-args", &qemu[..]),
        ("libvirt", "libvirt-xml", &["--mem", "512"]),
        ("proxmox", "proxmox-args", &[]),
        ("cloud-hypervisor", "cloud-hypervisor-args", &[]),
        ("firecracker", "firecracker-config", &[]),
    ] {
        for vm in VMS.into_iter().chain(["wbe"]) {
            for form in [&[][..], &["--json"]] {
                let new = setup.vmlane(&[&["attach", vm, "--for", vmm], more, form].concat());
                let old = setup.vmlane(&[&[older, vm], more, form].concat());
                assert_eq!((new.code, &new.out, &new.err), (old.code, &old.out, &old.err), "{older} {vm}");
            }
        }
    }
}

#[test]
fn attach_refuses_options_of_another_vmm_by_name() {
    let setup = Setup::new();
    for (vmm, option, phrases) in [
        ("qemu", &["--into", "-"][..], ["--into is not an option", "but for libvirt"]),
        ("libvirt", &["--words"], ["--words is not an option", "but for qemu"]),
        ("proxmox", &["--emulator", "/bin/qemu"], ["--emulator is not an option", "but for qemu, libvirt"]),
        ("cloud-hypervisor", &["--accel", "kvm"], ["--for cloud-hypervisor`", "but for qemu"]),
        ("firecracker", &["--mem", "512"], ["--mem", "but for qemu, libvirt, proxmox, cloud-hypervisor"]),
    ] {
        setup.vmlane(&[&["attach", "virtio", "--for", vmm], option].concat()).fails(2, &phrases);
    }
    setup.vmlane(&["attach", "virtio", "--for", "qemu", "--words", "--json"]).fails(2, &["--words"]);
    setup.vmlane(&["attach", "virtio"]).fails(2, &["--for <VMM>"]);
    setup.vmlane(&["attach", "virtio", "--for", "xen"]).fails(2, &["cloud-hypervisor"]);
}

#[test]
fn attach_states_the_qemu_and_the_accelerator_that_it_found() {
    let setup = Setup::new();
    let program = setup.directory.path().join("my-qemu");
    let name = program.to_str().unwrap();
    let ask = |version: &str, vm: &str, more: &[&str]| {
        write_program(&program, &format!("#!/bin/sh\necho 'QEMU emulator version {version}'\n"));
        let mut command = Command::new(VMLANE);
        let config = setup.directory.path().join("vmlane.toml");
        command.args(["attach", vm, "--for", "qemu"]).args(more).arg("--config").arg(config);
        command.env("VMLANE_QEMU", name);
        run(command)
    };
    let found = ask("11.0.1", "classic", &[]);
    let may_use_kvm = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    let accel = if may_use_kvm { "-accel kvm (/dev/kvm can" } else { "-accel tcg (/dev/kvm cannot" };
    contains_all(&found.err, &["this is for QEMU 11.0 (", name, "--qemu or --emulator", accel]);
    assert!(found.out.contains("vfio-user-pci"), "{found:?}");
    assert_eq!(ask("11.0.1", "classic", &["--qemu", "10.1", "--accel", "tcg"]).err, "");
    ask("7.2.19", "classic", &[]).fails(1, &["needs QEMU >= 10.1, and this is 7.2", "use a newer QEMU"]);
    assert!(ask("7.2.19", "virtio", &[]).good().contains("reconnect=1"));
    ask("x", "virtio", &[]).fails(1, &["VMLANE_QEMU", name]);
}
