//! `vmlane import vhost-device-vsock`: its command line and its YAML mean the same, and the daemon takes the
//! answer.

use std::path::{Path, PathBuf};
use std::process::Command;

use vmlane_config::Config;
use vmlane_testkit::Ran;

use crate::common::vmlane;

fn import(arguments: &[&str]) -> Ran {
    vmlane(&[&["import", "vhost-device-vsock"], arguments].concat())
}

fn text(arguments: &[&str]) -> String {
    import(arguments).good()
}

fn config(text: &str) -> Config {
    Config::parse(Path::new("t.toml"), text).unwrap()
}

fn error(arguments: &[&str]) -> String {
    let ran = import(arguments);
    assert_eq!(ran.code, 1, "{arguments:?}");
    ran.err
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
    assert!(vms.iter().all(|vm| vm.vsock.virtio().is_some()));
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
    assert_eq!((forward.port, forward.to_vm.as_deref(), forward.to_port), (9001, Some("vm4"), 9001));
    let alone = config(&text(&["--vm", "guest-cid=4,socket=/tmp/s4,forward-cid=1"]));
    assert_eq!(alone.vms[0].parent_cid, Some(3));
}

#[test]
fn what_cannot_be_expressed_is_refused() {
    let chain = ["--vm", "guest-cid=3,socket=/a,groups=x", "--vm", "guest-cid=4,socket=/b,groups=x+y"];
    let message = error(&[&chain[..], &["--vm", "guest-cid=5,socket=/c,groups=y"]].concat());
    assert!(message.contains("one group"), "{message}");
    assert!(error(&["--vm", "guest-cid=3,sucket=/a"]).contains("known are guest-cid"));
    assert!(error(&["--vm", "guest-cid=x,socket=/a"]).contains("not a number"));
    assert!(error(&["--vm", "guest-cid=3"]).contains("socket is missing"));
    assert!(error(&["--vm", "guest-cid=2,socket=/a"]).contains("cid"), "the host's own");
    let twice = error(&["--vm", "guest-cid=3,socket=/a", "--vm", "guest-cid=3,socket=/b"]);
    assert!(twice.contains("vm3"), "{twice}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let more = format!("{YAML}---\n{YAML}");
    for (yaml, what) in [
        ("vms: []", "nothing in it"),
        ("vms:\n - [1]", "not a table"),
        ("vm:\n - x: 1", "\"vm\": is no key"),
        (&*more, "2 YAML documents"),
        ("\t", ""),
    ] {
        std::fs::write(file.path(), yaml).unwrap();
        assert!(error(&["--config", file.path().to_str().unwrap()]).contains(what), "{yaml:?}");
    }
    assert_eq!(import(&[]).code, 2);
    let help = text(&["--help"]);
    assert!(help.contains("Examples:") && help.contains("vmlane import vhost-device-vsock"), "{help}");
}

/// The descriptions that the import crate tests its output with.
fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures");
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn import_file(arguments: &[&str], file: &Path) -> Ran {
    let kind = match file.extension().and_then(|kind| kind.to_str()) {
        Some("xml") => "libvirt",
        Some(kind) => kind,
        None => "",
    };
    vmlane(&[&["import", kind, file.to_str().unwrap()], arguments].concat())
}

#[test]
fn the_daemon_takes_what_descriptions_become() {
    let files: Vec<_> = fixtures();
    let described = files.iter().filter(|file| {
        let kind = file.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        ["vmx", "ovf", "xml"].contains(&kind)
    });
    let mut count = 0;
    for file in described {
        count += 1;
        let config = config(&import_file(&[], file).good());
        let json: serde_json::Value = serde_json::from_str(&import_file(&["--json"], file).out).unwrap();
        assert_eq!(json["vms"].as_array().unwrap().len(), config.vms.len(), "{}", file.display());
        // A shell makes of the words for QEMU what they were, whatever is in the names.
        let line = import_file(&["--qemu"], file).out;
        for (line, vm) in line.lines().zip(json["vms"].as_array().unwrap()) {
            let (words, _) = line.split_once(" $(vmlane attach ").unwrap();
            let script = format!("printf '%s\\n' {words}");
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let output = String::from_utf8(output.stdout).unwrap();
            let before = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host"].into_iter();
            let words = vm["qemu"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
            assert_eq!(output.lines().collect::<Vec<_>>(), before.chain(words).collect::<Vec<_>>());
        }
    }
    assert!(count >= 20, "{count}");
}

#[test]
fn port_groups_of_the_old_host_have_their_switches_and_vlans() {
    let file = fixture("four-cards.vmx");
    let groups = file.with_file_name("portgroups.esxcli.txt");
    let text = import_file(&["--listing", groups.to_str().unwrap(), "--group", "t1"], &file).out;
    let config = config(&text);
    let nic = &config.vms[0].nics[1];
    assert_eq!((config.vms[0].group.as_str(), &*nic.switch, nic.slot), ("t1", "vSwitch1", Some(192)));
    assert!(text.contains("name = \"dmz\"\nswitch = \"vSwitch1\"\nvlan = 10\n"), "{text}");
}

#[test]
fn listings_of_hosts_become_networks_that_the_daemon_takes() {
    let hosts = fixture("web.vmx").with_file_name("hosts");
    let esxi = |arguments: &[&str]| vmlane(&[&["import", "esxi"], arguments].concat());
    let files = ["esx1.txt", "esx2.txt", "esx3.txt"].map(|name| hosts.join("cluster").join(name));
    let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let text = esxi(&files).good();
    let taken = config(&text);
    let [team] = &taken.teams[..] else { panic!("{text}") };
    assert_eq!((&team.uplinks[..], &team.standby[..]), (&["vmnic0".into()][..], &["vmnic1".into()][..]));
    assert!(text.contains("# esx1, esx2, esx3: standard switch \"vSwitch0\": came along"), "{text}");
    // With a VM, too; each file is a host.
    let listings: Vec<&str> = files.iter().flat_map(|file| ["--listing", file]).collect();
    let with_vm = import_file(&listings, &fixture("web.vmx")).good();
    assert_eq!(config(&with_vm).vms[0].nics[0].switch, "vSwitch0", "{with_vm}");
    let json: serde_json::Value =
        serde_json::from_str(&esxi(&[&files[..], &["--json"]].concat()).good()).unwrap();
    assert!(config(json["toml"].as_str().unwrap()).vms.is_empty());
    assert!(
        json["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|note| note["then"].as_str().unwrap().contains("untried"))
    );

    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.txt");
    let bad = |text: &str| {
        std::fs::write(&bad, text).unwrap();
        esxi(&[bad.to_str().unwrap()])
    };
    bad("hello\n").fails(1, &["bad.txt", "no switch and no port group"]);
    bad("\n[{\"Name\": \"a\"").fails(1, &["bad.txt", "line 2", "JSON", "--formatter=json"]);
}

fn fixture(name: &str) -> PathBuf {
    fixtures().into_iter().find(|file| file.ends_with(name)).unwrap()
}

#[test]
fn a_vm_that_is_given_twice_is_another_one_with_a_cid_and_an_address_of_its_own() {
    let web = fixture("web.vmx");
    let twice = import_file(&[web.to_str().unwrap()], &web).good();
    let vms = config(&twice).vms;
    assert_eq!((vms[0].cid, vms[1].cid), (1498434521, 3), "{twice}");
    for note in [
        "CID 1498434521: is that of web, too",
        "MAC address 00:50:56:a1:02:03: is left out: web: ethernet0 has it, too",
    ] {
        assert!(twice.contains(note), "{note}: {twice}");
    }
}

#[test]
fn vms_reach_by_vmci_what_they_reached_under_esxi() {
    let web = fixture("web.vmx");
    let is_restricted = |file: &Path| config(&import_file(&[], file).good()).vms[0].restricted;
    assert!(is_restricted(&web));
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open.vmx");
    let text = std::fs::read_to_string(&web).unwrap() + "vmci0.unrestricted = \"TRUE\"\n";
    std::fs::write(&open, text).unwrap();
    assert!(!is_restricted(&open));
}

#[test]
fn envelopes_are_taken_in_the_configuration_that_is_asked_for() {
    let envelope = fixture("conf.ovf");
    let of = |arguments: &[&str]| {
        let json = import_file(&[&["--json"], arguments].concat(), &envelope).good();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        (json["vms"][0]["memory_mib"].as_u64(), json["vms"][0]["qemu"][3].as_str().map(str::to_owned))
    };
    assert_eq!(of(&[]), (Some(4096), Some("2".into())));
    assert_eq!(of(&["--configuration", "large"]), (Some(98304), Some("24".into())));
    import_file(&["--configuration", "huge"], &envelope).fails(1, &["\"small\", \"large\""]);
}

#[test]
fn notes_go_where_the_configuration_does_not() {
    let web = fixture("web.vmx");
    let ran = import_file(&["--qemu"], &web);
    assert!(ran.err.contains("vmlane: note: ") && ran.err.contains("web.vmdk"), "{}", ran.err);
    import_file(&["--group", "a b"], &web).fails(2, &["a b"]);
}
