//! The virtio devices in QEMUs without vfio-user: Debian 12's 7.2, and a microvm without PCI.

use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use vmlane_lab::Machine;
use vmlane_tests::siblings::{a_killed_guest, ping, spec, tcp, up, vsock};
use vmlane_tests::{Bed, full, kept, readme};

/// The daemon is killed under TCP traffic: each guest's NIC continues with the next daemon by itself.
fn a_killed_daemon(bed: &Bed, seconds: u32) -> f64 {
    let before = bed.daemon_pid();
    let (_, pause) = tcp(bed, seconds, || {
        kill_process(before, Signal::KILL).unwrap();
        bed.wait_for_another_daemon(before);
    });
    ping(bed);
    pause
}

fn promise(what: &str, machine: Machine, qemu: Option<&str>) {
    let mut spec = spec(what, machine);
    spec.qemu = qemu.map(str::to_owned);
    let bed = up(&spec);
    let version = bed.lab().status().unwrap().qemu_version;
    let (seconds, mib) = if full() { (10, 64) } else { (2, 8) };
    ping(&bed);
    let (tcp_rate, _) = tcp(&bed, seconds, || ());
    let vsock_rate = vsock(&bed, mib);
    a_killed_guest(&bed);
    vsock(&bed, 1);
    let pause = a_killed_daemon(&bed, seconds + 4);
    kept(
        3,
        &format!(
            "QEMU {version}, {machine}: TCP both ways equal, {tcp_rate:.0} Mbit/s; vsock both ways equal, {vsock_rate:.0} \
             Mbit/s; a QEMU killed under traffic: the other guest continues; the daemon killed under TCP: streams intact, \
             longest pause {pause} s"
        ),
    );
    bed.finish();
}

#[test]
fn virtio_devices_work_in_qemu_7_2() {
    promise("q72", Machine::Q35, Some("7.2"));
}

#[test]
fn virtio_devices_work_on_a_microvm() {
    promise("microvm", Machine::Microvm, None);
    if full() {
        promise("mq72", Machine::Microvm, Some("7.2"));
    }
}

/// The QEMUs listen and the daemon connects, also after a QEMU's restart and after its own.
#[test]
fn the_daemon_connects_to_qemus_that_listen() {
    let vm = |name: &str, number: u32| {
        format!(
            "[[vm]]\nname = \"{name}\"\nvsock_role = \"client\"\nnic = [{{ model = \"virtio-net\", role = \"client\", \
             port_group = \"net0\", mac = \"52:54:00:77:00:0{number}\" }}]\n"
        )
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    // The sockets belong to QEMU's user, so the daemon has to run as that user.
    let root = rustix::process::getuid().is_root();
    let user = if root { "[daemon]\nuser = \"root\"\n" } else { "" };
    std::fs::write(file.path(), user.to_owned() + &vm("a", 1) + &vm("b", 2)).unwrap();
    let mut spec = spec("listen", Machine::Q35);
    spec.daemon_config = Some(file.path().to_owned());
    let bed = up(&spec);
    let arguments = bed.vmlane(&[
        "qemu-args",
        "a",
        "--config",
        &bed.lab().status().unwrap().daemon.unwrap().config.display().to_string(),
    ]);
    assert_eq!(arguments.matches("server=on").count(), 2, "{arguments}");
    ping(&bed);
    vsock(&bed, 8);
    a_killed_guest(&bed);
    vsock(&bed, 1);
    let pause = a_killed_daemon(&bed, 6);
    kept(
        3,
        &format!(
            "QEMUs that listen: streams, a QEMU killed, the daemon killed under TCP: longest pause {pause} s"
        ),
    );
    bed.finish();
}

/// What `vmlane import --qemu` prints starts a QEMU, with a disk on each kind of controller.
#[test]
fn a_qemu_takes_the_words_for_an_imported_vm() {
    let dir = tempfile::tempdir().unwrap();
    let mut vmx =
        "config.version = \"8\"\ndisplayName = \"old, vm\"\nmemSize = \"64\"\nnumvcpus = \"2\"\n".to_owned();
    let kinds = [
        ("scsi0", "pvscsi"),
        ("scsi1", "lsisas1068"),
        ("scsi2", "lsilogic"),
        ("nvme0", ""),
        ("sata0", ""),
        ("sata1", ""),
    ];
    let disks =
        kinds.iter().flat_map(|(controller, model)| (0..5).map(move |unit| (controller, model, unit)));
    for (controller, model, unit) in disks {
        let name = format!("{controller}, {unit}.vmdk");
        let extent = format!("{controller}-{unit}-flat.vmdk");
        let descriptor = format!(
            "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n\
             RW 2048 FLAT \"{extent}\" 0\nddb.adapterType = \"lsilogic\"\n"
        );
        std::fs::write(dir.path().join(&name), descriptor).unwrap();
        std::fs::write(dir.path().join(extent), vec![0; 1 << 20]).unwrap();
        vmx +=
            &format!("{controller}:{unit}.present = \"TRUE\"\n{controller}:{unit}.fileName = \"{name}\"\n");
        if unit == 0 && !model.is_empty() {
            vmx += &format!("{controller}.virtualDev = \"{model}\"\n");
        }
    }
    vmx += "ide1:0.present = \"TRUE\"\nide1:0.deviceType = \"cdrom-raw\"\nvmci0.present = \"TRUE\"\n";
    let file = dir.path().join("old.vmx");
    std::fs::write(&file, vmx).unwrap();
    let vmlane = vmlane_lab::find_vmlane().unwrap();
    let report = Command::new(vmlane).args(["import", "vmx", "--json"]).arg(&file).output().unwrap();
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let words = report["vms"][0]["qemu"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());

    let assets =
        vmlane_lab::setup::ensure(&["6.12".to_owned()], None, &vmlane_lab::setup::Progress(&|_| ())).unwrap();
    let mut qemu = assets.qemu.expect("the lab's QEMU").command();
    qemu.args(["-accel", "tcg", "-display", "none", "-nodefaults", "-S", "-m", "64", "-monitor", "stdio"]);
    let mut qemu = qemu
        .args(words)
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut qemu.stdin.take().unwrap(), b"info block\nquit\n").unwrap();
    let output = qemu.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let attached = said.matches("Attached to:").count();
    assert_eq!(attached, 31, "{said}");
    kept(4, &format!("QEMU takes what an import says of {attached} disks on six kinds of controllers"));
}

/// How many cards have a VMM, as `vmlane status --json` says.
fn attached(status: &[u8]) -> usize {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap();
    let vms = status["vms"].as_array().expect("the VMs");
    let nics = vms.iter().flat_map(|vm| vm["nics"].as_array().expect("its cards"));
    nics.filter(|nic| nic["attached"] == true).count()
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What README tells a new user to type, with the lab's QEMU 7.2 in the place of the host's.
#[test]
fn the_quick_start_attaches_two_vms() {
    let dir = tempfile::tempdir().unwrap();
    let assets =
        vmlane_lab::setup::ensure(&["6.12".to_owned()], Some("7.2"), &vmlane_lab::setup::Progress(&|_| ()))
            .unwrap();
    let qemu = assets.qemu.expect("the lab's QEMU").command();
    let text = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"));
    let set = qemu
        .get_envs()
        .filter_map(|(name, value)| Some(format!("export {}={}\n", name.to_str()?, text(value?))));
    let words: Vec<String> = [qemu.get_program()].into_iter().chain(qemu.get_args()).map(text).collect();
    let script = format!("#!/bin/sh\n{}exec {} \"$@\"\n", set.collect::<String>(), words.join(" "));
    let program = dir.path().join("qemu-system-x86_64");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(vmlane_lab::find_vmlane().unwrap(), dir.path().join("vmlane")).unwrap();
    for disk in ["web.img", "db.img"] {
        std::fs::write(dir.path().join(disk), vec![0; 1 << 20]).unwrap();
    }
    std::fs::write(dir.path().join("vmlane.toml"), &readme::quick_start("toml")[0]).unwrap();

    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let runtime = dir.path().join("run");
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(line).env("PATH", &path).env("VMLANE_RUNTIME_DIR", &runtime);
        shell.current_dir(dir.path()).stdin(Stdio::null());
        shell
    };
    let log = |name: &str| std::fs::File::create(dir.path().join(name)).unwrap();
    let mut running = Vec::new();
    let mut asked = 0;
    for line in readme::quick_start("sh")[1].lines() {
        let line = line.split('#').next().unwrap().trim();
        if let Some(daemon) = line.strip_suffix('&') {
            let child = shell(&format!("exec {daemon}")).stderr(log("daemon.log")).spawn().unwrap();
            running.push(Killed(child));
            let control = runtime.join("control.sock");
            let answers = || control.exists() && shell("vmlane status").output().unwrap().status.success();
            vmlane_tests::wait_until("the daemon answers", answers);
        } else if let Some(start) = line.strip_prefix("eval \"") {
            let start = readme::emulated(start);
            let name = format!("qemu{}.log", running.len());
            let mut vm = shell(&format!("eval \"exec {start}"));
            let child = vm.stdout(log(&name)).stderr(log(&format!("{name}.errors"))).spawn().unwrap();
            running.push(Killed(child));
        } else {
            asked += 1;
            vmlane_tests::wait_until(line, || {
                let output = shell(line).output().unwrap();
                let attached = line != "vmlane status"
                    || attached(&shell("vmlane status --json").output().unwrap().stdout) == 2;
                output.status.success() && attached
            });
        }
    }
    assert_eq!((running.len(), asked), (3, 2));
    kept(3, "README's quick start: a daemon, and two VMs of QEMU 7.2 that attach to it");
}
