//! `vmlane import vhost-device-vsock`: its command line and its YAML mean the same, and the daemon takes the answer.

use std::path::Path;
use std::process::{Command, Output};

use vmlane_daemon::config::Config;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");

fn import(arguments: &[&str]) -> Output {
    Command::new(VMLANE).args(["import", "vhost-device-vsock"]).args(arguments).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = import(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn config(text: &str) -> Config {
    Config::parse(Path::new("t.toml"), text).unwrap()
}

fn error(arguments: &[&str]) -> String {
    let output = import(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

const LINES: [&str; 6] = [
    "--vm",
    "guest-cid=3,socket=/tmp/vhost3.socket,uds-path=/tmp/vm3.vsock,tx-buffer-size=65536,queue-size=1024,groups=a+b",
    "--vm",
    "guest_cid=4,socket=/tmp/vhost4.socket,uds_path=/tmp/vm4.vsock,groups=b",
    "--vm",
    "guest-cid=5,socket=/tmp/vhost5.socket,forward-cid=1,forward-listen=9001+9002",
];
const YAML: &str = "vms:
    - guest_cid: 3
      socket: /tmp/vhost3.socket
      uds_path: /tmp/vm3.vsock
      tx_buffer_size: 65536
      queue_size: 1024
      groups: a+b
    - guest_cid: 4
      socket: /tmp/vhost4.socket
      uds_path: /tmp/vm4.vsock
      groups: b
    - guest_cid: 5
      socket: /tmp/vhost5.socket
      forward_cid: 1
      forward_listen: 9001+9002
";

#[test]
fn command_line_and_yaml_are_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), YAML).unwrap();
    let lines = text(&LINES);
    assert_eq!(text(&["--config", file.path().to_str().unwrap()]), lines);
    let vms = config(&lines).vms;
    let seen: Vec<_> = vms.iter().map(|vm| (vm.name.as_str(), vm.cid, vm.group.as_str())).collect();
    assert_eq!(seen, [("vm3", 3, "b"), ("vm4", 4, "b"), ("vm5", 5, "default")]);
    assert!(vms.iter().all(|vm| vm.virtio_vsock && !vm.vmci));
    assert!(lines.contains("ln -s RUN/vm/vm3/vsock.sock /tmp/vhost3.socket"), "{lines}");
    let json: serde_json::Value = serde_json::from_str(&text(&[&LINES[..], &["--json"]].concat())).unwrap();
    assert_eq!((json["version"].as_u64(), json["toml"].as_str()), (Some(1), Some(&*lines)));
}

#[test]
fn one_vm_by_plain_options_and_an_enclave_with_its_parent() {
    let one = config(&text(&["--guest-cid=4", "--socket=/tmp/s", "--uds-path=/tmp/u"]));
    assert_eq!((one.vms[0].cid, one.vms[0].group.as_str()), (4, "default"));
    assert_eq!(config(&text(&["--socket=/tmp/s", "--uds-path=/tmp/u"])).vms[0].cid, 3);
    // The enclave's ports are reached at its parent's host.
    let enclave = "guest-cid=4,socket=/tmp/s4,forward-cid=3,forward-listen=9001";
    let both = config(&text(&["--vm", "guest-cid=3,socket=/tmp/s3,uds-path=/tmp/u3", "--vm", enclave]));
    let forward = &both.vms[0].forwards[0];
    assert_eq!((forward.port, forward.to_vm.as_str(), forward.to_port), (9001, "vm4", 9001));
    let alone = config(&text(&["--vm", "guest-cid=4,socket=/tmp/s4,forward-cid=1"]));
    assert_eq!(alone.vms[0].parent_cid, Some(3));
}

#[test]
fn what_cannot_be_said_is_told() {
    let chain = ["--vm", "guest-cid=3,socket=/a,groups=x", "--vm", "guest-cid=4,socket=/b,groups=x+y"];
    let said = error(&[&chain[..], &["--vm", "guest-cid=5,socket=/c,groups=y"]].concat());
    assert!(said.contains("one group"), "{said}");
    assert!(error(&["--vm", "guest-cid=3,sucket=/a"]).contains("known are guest-cid"));
    assert!(error(&["--vm", "guest-cid=x,socket=/a"]).contains("not a number"));
    assert!(error(&["--vm", "guest-cid=3"]).contains("socket is missing"));
    assert!(error(&["--vm", "guest-cid=2,socket=/a"]).contains("cid"), "the host's own");
    let twice = error(&["--vm", "guest-cid=3,socket=/a", "--vm", "guest-cid=3,socket=/b"]);
    assert!(twice.contains("vm3"), "{twice}");
    let file = tempfile::NamedTempFile::new().unwrap();
    for (yaml, what) in [("vms: []", "nothing in it"), ("vms:\n - [1]", "not a table"), ("\t", "")] {
        std::fs::write(file.path(), yaml).unwrap();
        assert!(error(&["--config", file.path().to_str().unwrap()]).contains(what), "{yaml:?}");
    }
    assert_eq!(import(&[]).status.code(), Some(2));
    let help = text(&["--help"]);
    assert!(help.contains("Examples:") && help.contains("vmlane import vhost-device-vsock"), "{help}");
}
