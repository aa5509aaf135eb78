//! The virtio devices in QEMUs without vfio-user: Debian 12's 7.2, and a microvm without PCI.

use std::process::{Command, Stdio};

use vmlane_lab::Machine::{self, Microvm, Q35};
use vmlane_tests::alone::{output, qemu_in_path, vmlane};
use vmlane_tests::siblings::{a_killed_guest, as_requested, spec, tcp, tcp_for, up, vsock};
use vmlane_tests::traffic::whole_pings;
use vmlane_tests::{Bed, Process, full, kept, readme, wait_until};

vmlane_tests::tests! {
    guests {
        a_qemu_takes_the_words_for_an_imported_vm,
        the_quick_start_attaches_two_vms,
    }
    guests in VIRTIO_KILLS { the_daemon_connects_to_qemus_that_listen }
    long { virtio_devices_work_in_the_newest_qemu, virtio_devices_work_between_machines_of_one_kind }
}

/// Traffic between two guests; b's QEMU is killed under it, then the daemon: each guest's NIC continues with
/// the next one by itself.
fn traffic_survives(bed: &Bed) {
    let (seconds, mib) = if full() { (10, 64) } else { (1, 8) };
    whole_pings(bed, 0, 1500);
    let tcp_rate = tcp_for(bed, seconds);
    let vsock_rate = vsock(bed, mib);
    a_killed_guest(bed);
    vsock(bed, 1);
    let (_, pause) = tcp(bed, 0, || {
        bed.kill_daemon();
    });
    whole_pings(bed, 0, 1500);
    let status = bed.lab().status().unwrap();
    let machines: Vec<String> = status.guests.iter().map(|guest| guest.machine.to_string()).collect();
    kept(
        "vmms",
        &format!(
            "QEMU {}, {}: TCP both ways equal, {tcp_rate:.0} Mbit/s; vsock both ways equal, {vsock_rate:.0} Mbit/s; a \
             QEMU killed under traffic: the other guest continues; the daemon killed under TCP: streams intact, longest \
             pause {pause} s",
            status.qemu_version,
            machines.join(" and ")
        ),
    );
}

fn promise(what: &str, machines: [Machine; 2], qemu: Option<&str>) {
    let mut spec = spec(what, machines[0]);
    spec.machines = machines.to_vec();
    spec.qemu = qemu.map(str::to_owned);
    let bed = up(&spec);
    traffic_survives(&bed);
    bed.finish();
}

fn virtio_devices_work_in_the_newest_qemu() {
    promise("newest", [Microvm, Q35], None);
}

fn virtio_devices_work_between_machines_of_one_kind() {
    promise("q35-72", [Q35, Q35], Some("7.2"));
    promise("microvm", [Microvm, Microvm], None);
    promise("microvm-72", [Microvm, Microvm], Some("7.2"));
}

/// b's QEMU listens and the daemon connects, also after the QEMU's restart and after its own. a is a microvm.
fn the_daemon_connects_to_qemus_that_listen(bed: &Bed) {
    as_requested(bed);
    let config = bed.lab().status().unwrap().daemon.unwrap().config.display().to_string();
    let arguments = bed.vmlane(&["qemu-args", "b", "--config", &config, "--qemu", "10.1"]);
    assert_eq!(arguments.matches("server=on").count(), 2, "{arguments}");
    traffic_survives(bed);
}

/// What `vmlane import --qemu` prints starts a QEMU, with a disk on each kind of controller.
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
    let report = output(vmlane().args(["import", "vmx", "--json"]).arg(&file));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
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
    let printed = String::from_utf8_lossy(&output.stdout);
    let attached = printed.matches("Attached to:").count();
    assert_eq!(attached, 31, "{printed}");
    kept("vmms", &format!("QEMU takes what an import prints of {attached} disks on six kinds of controllers"));
}

/// How many cards have a VMM, by `vmlane status --json`.
fn attached(status: &[u8]) -> usize {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap();
    let vms = status["vms"].as_array().expect("the VMs");
    let nics = vms.iter().flat_map(|vm| vm["nics"].as_array().expect("its cards"));
    nics.filter(|nic| nic["attached"] == true).count()
}

/// The commands of README for a new user, with the lab's QEMU 7.2 in the place of the host's.
fn the_quick_start_attaches_two_vms() {
    let dir = tempfile::tempdir().unwrap();
    let assets =
        vmlane_lab::setup::ensure(&["6.12".to_owned()], Some("7.2"), &vmlane_lab::setup::Progress(&|_| ()))
            .unwrap();
    let path = qemu_in_path(dir.path(), &assets.qemu.expect("the lab's QEMU"));
    std::os::unix::fs::symlink(vmlane_lab::find_vmlane().unwrap(), dir.path().join("vmlane")).unwrap();
    for disk in ["web.img", "db.img"] {
        std::fs::write(dir.path().join(disk), vec![0; 1 << 20]).unwrap();
    }
    std::fs::write(dir.path().join("vmlane.toml"), &readme::quick_start("toml")[0]).unwrap();

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
    for line in readme::quick_start("sh")[2].lines() {
        let line = line.split('#').next().unwrap().trim();
        if let Some(daemon) = line.strip_suffix('&') {
            let child = shell(&format!("exec {daemon}")).stderr(log("daemon.log")).spawn().unwrap();
            running.push(Process(child));
            let control = runtime.join("control.sock");
            let answers = || control.exists() && shell("vmlane status").output().unwrap().status.success();
            wait_until("the daemon answers", answers);
        } else if let Some(start) = line.strip_prefix("eval \"") {
            let start = readme::emulated(start);
            let name = format!("qemu{}.log", running.len());
            let mut vm = shell(&format!("eval \"exec {start}"));
            let child = vm.stdout(log(&name)).stderr(log(&format!("{name}.errors"))).spawn().unwrap();
            running.push(Process(child));
        } else {
            asked += 1;
            wait_until(line, || {
                let output = shell(line).output().unwrap();
                let attached = line != "vmlane status"
                    || attached(&shell("vmlane status --json").output().unwrap().stdout) == 2;
                output.status.success() && attached
            });
        }
    }
    assert_eq!((running.len(), asked), (3, 2));
    kept("vmms", "README's quick start: a daemon, and two VMs of QEMU 7.2 that attach to it");
}
