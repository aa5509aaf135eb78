//! The doctor on the host of VMs, and on a lab.

use serde_json::Value;
use vmlane_tests::alone::vmlane;
use vmlane_tests::{Bed, TIMEOUT, wait_until};

/// The report of `vmlane doctor WORDS...` on the host, and its exit code.
pub fn doctor(bed: &Bed, words: &[&str]) -> (Value, i32) {
    let dir = bed.lab().daemon_runtime_dir();
    let mut command = vmlane();
    command.arg("doctor").args(words).args(["--json", "--runtime-dir"]).arg(&dir);
    // Sockets lead through this daemon, too.
    let output = command.env("VMLANE_RUNTIME_DIR", &dir).output().unwrap();
    let code = output.status.code().unwrap_or(-1);
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|_| String::from_utf8_lossy(&output.stderr).into_owned().into()), code)
}

/// The lab as a whole, then its VMs, of which one has a link that was set down.
pub fn a_lab_and_its_vms(bed: &Bed) {
    let (report, code) = doctor(bed, &["lab", &bed.lab().status().unwrap().name, "--quick"]);
    let (guests, host) = (&report["guests"], &report["host"]);
    assert!(guests["measurements"].as_array().is_some_and(|runs| runs.len() > 3), "{report}");
    let is_well = super::sentences(guests).is_empty() && super::sentences(host).is_empty();
    assert_eq!(code, i32::from(!is_well), "{report}");
    let vms: Vec<&Value> = host["host"]["vms"].as_array().into_iter().flatten().collect();
    assert!(vms.len() == 2 && vms.iter().all(|vm| vm["vmm"]["shared_memory"] == true), "{host}");
    assert!(host["machine"].to_string().contains("is emulated"), "{host}");

    bed.vmlane(&["link", "b/nic0", "down"]);
    let found = ["a", "b"].map(|vm| (doctor(bed, &[vm]), vm));
    let both = doctor(bed, &["a", "b"]);
    bed.vmlane(&["link", "b/nic0", "up"]);
    let is_down = |report: &Value| {
        super::sentences(report).iter().any(|line| line == "vm-network: The link of nic0 of VM b was set down.")
    };
    for ((report, code), vm) in found {
        assert_eq!(is_down(&report), vm == "b", "{vm}: {report}");
        assert_eq!(code, i32::from(!super::sentences(&report).is_empty()), "{report}");
    }
    assert!(is_down(&both.0) && both.1 == 1, "{both:?}");

    let (why, code) = doctor(bed, &["none-such"]);
    assert!(
        code == 3 && why.as_str().is_some_and(|why| why.contains("has no VM \"none-such\"; it has: a, b")),
        "{why}"
    );
}

/// A port that is shaped, and a source address that its port group refuses, while the guest sends: each is
/// found with the setting that limits it.
pub fn what_the_switch_limits_is_found(bed: &Bed) {
    let _limits = bed.configured(
        "[[port_group]]\nname = \"net0\"\nforged_transmits = false\nshape = { in = { average = \"5M\" } }\n",
    );
    let sends = "import socket\n\
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
        raw.bind(('eth0', 0))\n\
        forged = bytes.fromhex('ffffffffffff' '020000000099' '0806') + bytes(46)\n\
        print('sending', flush=True)\n\
        while True:\n \
            raw.send(forged)\n \
            [own.sendto(bytes(1400), ('10.77.0.2', 9)) for _ in range(20)]";
    let sender = bed.guest("a").spawn(["python3", "-c", sends]).unwrap();
    sender.wait_for("sending", TIMEOUT).unwrap();
    let found = |report: &Value, phrase: &str, setting: &str| {
        let all = report["findings"].as_array().into_iter().flatten();
        let mut those = all.filter(|finding| {
            finding["check"] == "switch-drops" && finding["what"].as_str().is_some_and(|what| what.contains(phrase))
        });
        those.any(|finding| finding["severity"] != "advice" && finding["remedies"].to_string().contains(setting))
    };
    wait_until("both limits are found", || {
        let (report, code) = doctor(bed, &["a"]);
        println!("  while a sends: {:?}", super::sentences(&report));
        code == 1
            && found(&report, "nic0 of VM a sends more than its traffic shaping", "shape = { in =")
            && found(&report, "nic0 of VM a sends frames with another source", "forged_transmits = true")
    });
}

/// Servers in both guests report to the doctor on their host what only they know.
pub fn vms_that_answer_questions(bed: &Bed) {
    let server = super::server(bed, "a", "vsock:");
    bed.guest("b").sh("sysctl -qw net.ipv4.tcp_window_scaling=0").unwrap();
    let (report, code) = doctor(bed, &["a", "b"]);
    bed.guest("b").sh("sysctl -qw net.ipv4.tcp_window_scaling=1").unwrap();
    drop(server);
    let kernel = bed.guest("b").sh("uname -r").unwrap();
    for end in ["near", "far"] {
        assert_eq!(report["facts"][end]["machine"]["kernel"], kernel.trim(), "{report}");
    }
    let sentences = super::sentences(&report);
    let is_it = |line: &String| line.starts_with("tcp-options: Window scaling") && line.contains("VM b");
    assert!(code == 1 && sentences.iter().any(is_it), "{sentences:?}");
    println!("  from the host: {sentences:?}");
}
