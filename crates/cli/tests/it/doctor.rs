//! `vmlane doctor` on the host of a VM, and over captures in which nothing can be examined.

use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use vmlane_testkit::{Process, run, wait_until};

use crate::common::{daemon, place, vmlane, vmm};

const ONE: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";

/// Any user can start a program with any command line.
#[test]
fn a_stranger_whose_command_line_names_a_vms_socket_is_not_its_qemu() {
    let daemon = daemon(ONE);
    let _vmm = vmm(&daemon, "web");
    wait_until("a VMM", || daemon.vm("web")["attached"] == true);

    let agent = daemon.path("agent.sock");
    let listener = UnixListener::bind(&agent).unwrap();
    let device = format!(
        r#"{{"driver":"vfio-user-pci","socket":{{"path":"{}"}}}}"#,
        daemon.socket("web", "vmci.sock").display()
    );
    let chardev = format!("socket,id=a,path={},server=on", agent.display());
    let mut stranger = Command::new("sh");
    stranger.arg0("qemu-system-x86_64").args([
        "-c",
        "read line",
        "-object",
        "memory-backend-ram,id=m,size=1G",
    ]);
    stranger.args(["-device", &device, "-chardev", &chardev]);
    stranger.args(["-device", "virtserialport,chardev=a,name=org.qemu.guest_agent.0"]);
    let stranger = Process(stranger.stdin(Stdio::piped()).spawn().unwrap());

    // VMs are asked only through the daemon that the environment names.
    let mut doctor = daemon.command(&["doctor", "web", "--json"]);
    doctor.env("VMLANE_RUNTIME_DIR", daemon.runtime());
    let ran = run(doctor);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let vm = &report["host"]["vms"][0];
    assert!(vm["vmm"].is_null(), "process {}: {vm}", stranger.id());
    assert!(
        report["notes"].as_array().unwrap().iter().any(|note| {
            note.as_str().unwrap().contains(&format!("process {} is no QEMU", std::process::id()))
        }),
        "{}",
        report["notes"]
    );
    assert!(!ran.out.contains("is not shared"), "a forged finding: {}", ran.out);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "the doctor connected to a stranger's socket");
    assert_eq!(daemon.vm("web")["vmm_pid"], std::process::id());
}

/// Nothing found and nothing examined are different answers.
#[test]
fn a_capture_in_which_nothing_could_be_examined_is_none_without_findings() {
    let place = place(ONE);
    // A pcap file of vsock, with one packet.
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 271, 1, 0, 4, 4, 0];
    let file = place.path("vsock.pcap");
    std::fs::write(&file, words.map(u32::to_le_bytes).concat()).unwrap();
    let file = file.to_str().unwrap();
    let ran = vmlane(&["doctor", "--pcap", file]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.out.contains("1 packet of vsock was not examined"), "{ran:?}");
    assert!(!ran.out.contains("Nothing found"), "{ran:?}");
    let report: serde_json::Value =
        serde_json::from_str(&vmlane(&["doctor", "--pcap", file, "--json"]).out).unwrap();
    assert_eq!(report["captures"][0]["not_examined"]["vsock"], 1, "{report}");
}
