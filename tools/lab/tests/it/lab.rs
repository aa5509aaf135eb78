//! Two real guests on QEMU's own network card: what every other real-guest test stands on.
//!
//! Needs a built `vmlane` (`cargo build --release -p vmlane-cli`, or `VMLANE_BIN`). One lab serves
//! all steps, because a boot takes seconds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use vmlane_lab::{Lab, LabSpec};
use vmlane_testkit::{LONGEST, wait_until};

/// A name that no other test run of this machine uses.
fn name(what: &str) -> String {
    format!("{what}-{}", std::process::id())
}

/// The processes whose command line has the lab's directory in it.
fn processes_of(dir: &std::path::Path) -> Vec<String> {
    let needle = dir.display().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| fs::read(e.path().join("cmdline")).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
        .filter(|line| line.contains(&needle))
        .collect()
}

fn pseudo_random(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length / 8).flat_map(|_| next()).collect()
}

#[test]
fn two_guests_from_boot_to_nothing_left() {
    let spec = LabSpec { boot_seconds: 300, ..LabSpec::new(&name("t")) }.device("qemu-virtio-net").unwrap();
    let lab = Lab::up(&spec).unwrap();
    let dir = lab.dir().to_owned();

    commands_end_as_they_do_in_a_shell(&lab);
    streams_carry_every_byte(&lab);
    sessions_do_not_wait_for_each_other(&lab);
    files_travel_both_ways(&lab);
    guests_reach_each_other_and_have_their_tools(&lab);
    guests_restart_and_return(&lab);

    assert!(!processes_of(&dir).is_empty());
    lab.down().unwrap();
    assert_eq!(processes_of(&dir), Vec::<String>::new());
    assert!(!dir.exists());
}

/// A VMCI guest, a virtio guest and one without devices: what each has, that the first two meet, and that
/// their kernel has the modules and the processor that DPDK wants.
#[test]
fn each_guest_has_the_devices_it_was_given() {
    let mut spec = LabSpec { boot_seconds: 300, guests: 3, ..LabSpec::new(&name("given")) };
    for device in ["a:vmci", "a:vmxnet3", "b:virtio-vsock", "b:virtio-net"] {
        spec = spec.device(device).unwrap();
    }
    spec.cpu = Some("Nehalem".into());
    let lab = Lab::up(&spec).unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| lab.guest(name));

    a.sh("ls -d /sys/bus/pci/drivers/vmw_vmci/0000:* /sys/bus/pci/drivers/vmxnet3/0000:*").unwrap();
    b.sh("ls -d /sys/bus/virtio/drivers/vmw_vsock_virtio_transport/virtio* /sys/bus/virtio/drivers/virtio_net/virtio*")
        .unwrap();
    assert_eq!(c.sh("ls /sys/class/net").unwrap().trim(), "lo");
    for guest in [&a, &c] {
        let model = guest.sh("grep -m1 'model name' /proc/cpuinfo").unwrap();
        assert!(model.contains("Nehalem"), "{model}");
    }

    a.sh("ping -c 1 -W 10 b").unwrap();
    let server = b.spawn(["vmlane", "bench", "server", "--listen", "vsock:any"]).unwrap();
    wait_until("a's stream reaches b over vsock", || a.sh("vmlane bench stream --to vsock:4 -l 0.2").is_ok());
    server.signal(15);

    a.sh("modprobe -a uio uio_pci_generic vfio vfio_iommu_type1 vfio-pci").unwrap();
    let script = "card=$(basename $(readlink /sys/class/net/eth0/device))
        echo $card > /sys/bus/pci/drivers/vmxnet3/unbind
        echo 15ad 07b0 > /sys/bus/pci/drivers/uio_pci_generic/new_id
        test -c /dev/uio0";
    a.sh(script).unwrap();
    lab.down().unwrap();
}

fn commands_end_as_they_do_in_a_shell(lab: &Lab) {
    let a = lab.guest("a");
    let output = a.exec(["sh", "-c", "echo out; echo err >&2; exit 7"]).unwrap();
    assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("out\n", "err\n"));
    assert_eq!(output.exit.code, Some(7));
    let output = a.exec(["sh", "-c", "kill -9 $$"]).unwrap();
    assert_eq!((output.exit.code, output.exit.signal), (None, Some(9)));
    assert_eq!(a.exec(["no-such-command"]).unwrap().exit.code, Some(127));
    // A daemon that keeps the pipes open does not keep the session.
    assert_eq!(a.sh("sleep 1000 & echo started").unwrap(), "started\n");
    let error = lab.guest("z").exec(["true"]).unwrap_err().to_string();
    assert!(error.contains("no guest \"z\"") && error.contains("a, b"), "{error}");
}

fn streams_carry_every_byte(lab: &Lab) {
    let data = pseudo_random(8 << 20);
    let output = lab.guest("a").exec_with_stdin(["cat"], data.clone()).unwrap();
    assert!(output.success() && output.stdout == data, "{} bytes came back", output.stdout.len());
    // A command that does not read its input does not block anything else.
    let output = lab.guest("a").exec_with_stdin(["true"], data).unwrap();
    assert!(output.success());
}

fn sessions_do_not_wait_for_each_other(lab: &Lab) {
    let guest = lab.guest("b");
    // The output of this one is not read beyond the window while it floods.
    let flood = guest.session(["cat", "/dev/zero"]).unwrap();
    let running: Vec<_> = (0..8)
        .map(|n| guest.spawn(["sh".to_owned(), "-c".into(), format!("sleep 1; echo {n}")]).unwrap())
        .collect();
    for (n, running) in running.into_iter().enumerate() {
        assert_eq!(running.wait().unwrap().stdout(), format!("{n}\n"));
    }
    drop(flood);
    wait_until("the flood ended with its client", || {
        !guest.exec(["pgrep", "-f", "cat /dev/zero"]).unwrap().success()
    });

    let server = guest.spawn(["sh", "-c", "echo ready; exec sleep 1000"]).unwrap();
    server.wait_for("ready", LONGEST).unwrap();
    server.signal(15);
    assert_eq!(server.wait().unwrap().exit.signal, Some(15));
}

fn files_travel_both_ways(lab: &Lab) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("data");
    fs::write(&path, pseudo_random(1 << 20)).unwrap();
    let (a, b) = (lab.guest("a"), lab.guest("b"));
    a.cp_to(&path, "/tmp/in/").unwrap();
    let back = temp.path().join("back");
    a.cp_from("/tmp/in/data", &back).unwrap();
    assert_eq!(fs::read(&path).unwrap(), fs::read(&back).unwrap());
    b.cp_to(temp.path(), "/tmp/tree").unwrap();
    assert_eq!(b.sh("ls /tmp/tree").unwrap(), "back\ndata\n");
    let error = a.cp_from("/no/such", &back).unwrap_err().to_string();
    assert!(error.contains("/no/such"), "{error}");
}

fn guests_reach_each_other_and_have_their_tools(lab: &Lab) {
    let a = lab.guest("a");
    a.sh("ping -c 3 -W 5 10.77.0.2").unwrap();
    a.sh("ping -c 3 -W 5 fd77::2 && ping -c 1 b").unwrap();
    a.sh("for t in iperf3 netperf socat ncat ethtool ip tcpdump python3 vmlane kexec sha256sum; do
              command -v $t || exit 1; done")
        .unwrap();
    a.sh("vmlane --version").unwrap();
    let status = lab.status().unwrap();
    assert!(status.guests.iter().all(|g| g.warnings.is_empty()), "{:?}", status.guests);
    assert_eq!(a.sh("hostname; ip -br link | grep -c eth0").unwrap(), "a\n1\n");
}

fn guests_restart_and_return(lab: &Lab) {
    let (a, b) = (lab.guest("a"), lab.guest("b"));
    a.sh("touch /root/mark").unwrap();
    a.reboot(false).unwrap();
    a.sh("test -e /root/mark").unwrap(); // a reboot keeps the disk
    a.reboot(true).unwrap();

    let waiting = b.spawn(["sleep", "1000"]).unwrap();
    b.kill().unwrap();
    let error = waiting.wait().unwrap_err().to_string();
    assert!(error.contains("guest b: it was killed"), "{error}");
    assert!(b.exec(["true"]).unwrap_err().to_string().contains("killed"));
    b.start().unwrap();
    a.sh("ping -c 3 -W 5 10.77.0.2").unwrap();
    assert_eq!(a.qmp("query-status", None).unwrap()["status"], "running");
    assert!(a.qmp("no-such-command", None).is_err());

    // An unannounced restart, with a session open.
    let cut = a.spawn(["sh", "-c", "busybox reboot -f; sleep 1000"]).unwrap();
    assert!(cut.wait().unwrap_err().to_string().contains("restarted"));
    a.sh("true").unwrap();
}

/// The command line in a process of its own, so that it can be killed.
fn cli() -> Command {
    Command::new(vmlane_lab::find_vmlane().unwrap())
}

#[test]
fn nothing_outlives_its_owner() {
    // The starter is killed while guests boot.
    let killed = name("k");
    let mut up = cli().args(["lab", "up", &killed]).spawn().unwrap();
    let dir = vmlane_lab::dirs::lab(&killed).unwrap();
    let qemus = |dir: &PathBuf| processes_of(dir).iter().filter(|p| p.contains("-chardev")).count();
    wait_until("QEMUs start", || qemus(&dir) == 2);
    up.kill().unwrap();
    up.wait().unwrap();
    wait_until("nothing is left after its starter was killed", || processes_of(&dir).is_empty());
    wait_until("the directory is gone", || !dir.exists());

    // The supervisor itself is killed: its children go with it, and its name is free again.
    let name = name("s");
    let lab = Lab::up(&LabSpec { guests: 1, boot_seconds: 300, ..LabSpec::new(&name) }).unwrap();
    let dir = lab.dir().to_owned();
    let supervisor = lab.status().unwrap().supervisor_pid;
    let pid = rustix::process::Pid::from_raw(supervisor as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("nothing is left after its supervisor was killed", || processes_of(&dir).is_empty());
    drop(lab);
    assert!(cli().args(["lab", "down", &name]).status().unwrap().success());
    assert!(!dir.exists());

    // A guest that cannot boot fails the lab with the reason, and leaves nothing.
    let spec = LabSpec { guests: 1, boot_seconds: 300, append: "rdinit=/none".into(), ..LabSpec::new(&name) };
    let error = Lab::up(&spec).err().expect("a lab without an init").to_string();
    assert!(error.contains("panic"), "{error}");
    assert!(processes_of(&dir).is_empty() && !dir.exists());
}
