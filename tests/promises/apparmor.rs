//! The AppArmor profile of the package in force, in a guest, since a host's kernel may lack AppArmor: the
//! daemon, its keeper and its helper do their work under it, and what it does not list is refused. No VMM is
//! there.

use std::path::Path;
use std::process::Command;

use vmlane_tests::{Bed, TIMEOUT, kept, lab};

vmlane_tests::tests! {
    long { the_daemon_serves_under_its_profile_in_force }
}

const CONFIG: &str = r#"[[vm]]
name = "web"
cid = 3
owner = "vm-web"
vsock = "vmci"
nic = [{ model = "vmxnet3" }]
[[uplink]]
name = "lan"
tap = "vmlane0"
"#;

/// A user and what systemd makes for the unit; no udev gives the device its mode.
const PREPARE: &str = "
    modprobe tun && chmod 666 /dev/net/tun
    printf 'vmlane:x:900:900::/:/bin/false\nvm-web:x:901:901::/:/bin/false\n' >> /etc/passwd
    printf 'vmlane:x:900:\nvm-web:x:901:\n' >> /etc/group
    mkdir -p /run/vmlane /var/lib/vmlane /etc/vmlane
    chown vmlane:vmlane /run/vmlane /var/lib/vmlane
    chmod 750 /var/lib/vmlane
    mount -t securityfs securityfs /sys/kernel/security
    cat /t/apparmor.profile > /sys/kernel/security/apparmor/.load
    dmesg -c > /dev/null";

const KILL: i32 = 9;
const CONFINED: &str = "python3 /t/confined.py vmlane vmlane-daemon /usr/bin/vmlane";

fn the_daemon_serves_under_its_profile_in_force() {
    let bed = Bed::up(&lab("apparmor", &["vmci"]));
    let a = bed.guest("a");
    a.cp_to(&in_force(), "/t/apparmor.profile").unwrap();
    let write = |text: &str| {
        a.sh(&format!("cat > /etc/vmlane/vmlane.toml <<'END'\n{text}END")).unwrap();
    };
    a.sh(PREPARE).unwrap();
    write(CONFIG);
    let daemon = || {
        let line = format!(
            "exec {CONFINED} daemon --config /etc/vmlane/vmlane.toml --runtime-dir /run/vmlane \
             --state-dir /var/lib/vmlane"
        );
        let running = a.spawn(["sh", "-c", &line]).unwrap();
        running.wait_for("ready pid=", TIMEOUT).unwrap();
        running
    };
    let first = daemon();
    let profiles = "for pid in $(pidof vmlane); do cat /proc/$pid/attr/current; done";
    let in_force = a.sh(profiles).unwrap().lines().filter(|line| *line == "vmlane-daemon (enforce)").count();
    assert_eq!(in_force, 3, "daemon, keeper and uplink helper");

    // A reload, a change that is kept, and sockets that VMs' owners and programs open.
    write(&format!("{CONFIG}[[vm]]\nname = \"db\"\ncid = 4\nvsock = \"virtio\"\n"));
    a.sh("vmlane reload && vmlane vm add --name mail --cid 5 --vsock virtio && ip link set vmlane0 up").unwrap();
    let status = a.sh("vmlane status").unwrap();
    assert!(["web", "db", "mail"].iter().all(|vm| status.contains(vm)), "{status}");
    let program = a.spawn(["vmlane", "listen", "any"]).unwrap();
    program.wait_for("listening at", TIMEOUT).unwrap();
    drop(program);
    a.sh("timeout 2 vmlane capture -w /tmp/one.pcapng || [ $? = 124 ]").unwrap();

    // Its successor finds what the keeper has.
    first.signal(KILL);
    first.wait().unwrap();
    let _second = daemon();
    let status = a.sh("vmlane status").unwrap();
    assert!(status.contains("mail"), "{status}");

    let denied = a.sh("dmesg | grep 'apparmor=\"DENIED\"' || true").unwrap();
    assert_eq!(denied.trim(), "", "the profile lacks what the daemon needs");
    let refused = a.sh(&format!("{CONFINED} check /etc/hostname 2>&1; true")).unwrap();
    assert!(refused.contains("Permission denied"), "a file that the profile does not list: {refused}");
    kept("confinement", "the AppArmor profile in force: start, uplink, reload, a VM added, kill -9 and successor");
    bed.finish();
}

/// The profile of the package, compiled, without the flag by which it only complains.
fn in_force() -> std::path::PathBuf {
    let text = std::fs::read_to_string("../packaging/apparmor/vmlane-daemon").expect("the profile");
    let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join("apparmor.profile");
    let source = compiled.with_extension("text");
    std::fs::write(&source, text.replace(", complain", "")).expect("room for a profile");
    let parser = Command::new("apparmor_parser").args(["-Q", "-K", "-o"]).arg(&compiled).arg(&source).output();
    let output = parser.expect("apparmor_parser, of the package apparmor");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    compiled
}
