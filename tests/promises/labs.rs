//! docs/guide/network-labs.md: its configuration is right, its method for vrnetlab's launch scripts starts
//! VMs with vmlane's cards, and a daemon in the image of `make image` serves VMs outside of its container.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use vmlane_lab::setup::{Progress, Qemu, ensure};
use vmlane_testkit::{Daemon, Process};
use vmlane_tests::alone::{self, output, qemu_in_path, vmlane};
use vmlane_tests::tree::{read, root};
use vmlane_tests::{kept, wait_until};

vmlane_tests::tests! {
    plain { the_configuration_of_the_page_is_right }
    guests { a_launch_script_of_vrnetlab_starts_a_vm_with_its_cards }
    long { a_daemon_in_the_image_serves_vms_outside }
}

/// Cards of each VM of the page.
const CARDS: usize = 10;
/// An owner without an account.
const OWNER: u32 = 2345;
/// VMware's VMXNET3, and the card for management.
const VMXNET3: [u64; 2] = [0x15ad, 0x07b0];
const MANAGEMENT: [u64; 2] = [0x8086, 0x100e];

/// The page's only block of a language.
fn block(language: &str) -> String {
    let page = read("docs/guide/network-labs.md");
    let blocks = page.split("\n```").skip(1).step_by(2);
    let mut blocks = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    let block = blocks.next().expect("a block").to_owned();
    assert_eq!(blocks.next(), None, "one block of {language}");
    block
}

fn qemu() -> Qemu {
    ensure(&["6.12".to_owned()], None, &Progress(&|_| ())).expect("the lab's files").qemu.expect("the lab's QEMU")
}

fn the_configuration_of_the_page_is_right() {
    let daemon = alone::daemon(&block("toml"));
    let checked = output(daemon.command(&["check", "--json"]).arg(daemon.config()));
    let checked: Value = serde_json::from_str(&checked).expect("JSON");
    assert_eq!(checked["problems"], serde_json::json!([]), "{checked}");
}

/// PCI devices that QEMU has, in its order, when the page's method has added the cards of r1.
fn started_by_vrnetlab(
    daemon: &Daemon,
    qemu: &Qemu,
    (cards, machine): (usize, &str),
    additional: &[&str],
) -> Vec<[u64; 2]> {
    const MIB: u64 = 64;
    let memory = MIB.to_string();
    let words = ["qemu-args", "r1", "--machine", machine, "--qemu", "10.1", "--mem", &memory];
    let arguments = daemon.write("vmlane.args", &output(&mut daemon.configured(&words)));
    let method = block("python").replace("/vmlane.args", arguments.to_str().expect("a path"));
    let stub = include_str!("labs/vrnetlab.py");
    let script = format!("{stub}\n\nclass Router(VM):\n{method}\n\nprint_devices(Router(4096, sys.argv[2:]), int(sys.argv[1]))\n");
    let mut python = Command::new("python3");
    python.arg(daemon.write("launch.py", &script)).arg(cards.to_string()).args(additional);
    let printed = output(python.env("PATH", qemu_in_path(&daemon.path("."), qemu)));
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(printed["memory"], MIB << 20, "the file's memory, not the script's");
    serde_json::from_value(printed["ids"].clone()).expect("pairs")
}

fn a_launch_script_of_vrnetlab_starts_a_vm_with_its_cards() {
    const MANY: usize = 40;
    let qemu = qemu();
    let cards = vec!["{ model = \"vmxnet3\" }"; MANY].join(", ");
    let many = format!("[[vm]]\nname = \"r1\"\nvsock = \"none\"\nnic = [{cards}]\n");
    let cases =
        [(block("toml"), CARDS, "pc", &["-accel", "tcg"][..]), (many, MANY, "q35", &["-accel", "tcg", "-machine", "q35"][..])];
    for (config, cards, machine, additional) in cases {
        let daemon = alone::daemon(&config);
        daemon.start();
        let devices = started_by_vrnetlab(&daemon, &qemu, (cards, machine), additional);
        let own: Vec<_> = devices.iter().filter(|ids| [VMXNET3, MANAGEMENT].contains(ids)).collect();
        assert_eq!(own.len(), 1 + cards, "{machine}: {devices:x?}");
        assert_eq!(*own[0], MANAGEMENT, "{machine}: the card for management is the first one");
    }
    kept(
        "vmms",
        &format!("a stub of vrnetlab's class starts QEMUs with {CARDS} and {MANY} cards by the guide's method"),
    );
}

/// The image's root file system, and the program that it starts.
fn image(folder: &Path) -> (PathBuf, Vec<String>) {
    let buildah = |words: &[&str]| {
        let mut buildah = Command::new("buildah");
        buildah.args(["--storage-driver", "vfs", "--root"]).arg(folder.join("storage"));
        output(buildah.arg("--runroot").arg(folder.join("state")).args(words)).trim().to_owned()
    };
    let program = std::fs::canonicalize(vmlane().get_program()).expect("its path");
    let printed = output(Command::new(root().join("scripts/image.sh")).env("VMLANE_BIN", program));
    let archive = printed.split_whitespace().find(|word| word.ends_with(".tar")).expect("the file's name");
    let container = buildah(&["from", &format!("oci-archive:{}", root().join(archive).display())]);
    let config: Value = serde_json::from_str(&buildah(&["inspect", &container])).expect("JSON");
    let config = &config["OCIv1"]["config"];
    let words = ["Entrypoint", "Cmd"].iter().flat_map(|key| config[*key].as_array().expect("words"));
    let words = words.map(|word| word.as_str().expect("a word").to_owned()).collect();
    (buildah(&["mount", &container]).into(), words)
}

/// Whether a user may connect to a socket.
fn may_connect(user: u32, socket: &Path) -> bool {
    let mut test = Command::new("setpriv");
    test.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
    test.args(["test", "-w"]).arg(socket).status().expect("setpriv").success()
}

/// A daemon in the image, with this configuration and runtime directory: the first process of a container.
fn contained(outside: &Daemon) -> Process {
    let (root, words) = image(&outside.path("image"));
    let (run, config) = (outside.runtime(), outside.path("etc"));
    std::fs::create_dir(&run).expect("a folder");
    let mut container = Command::new("systemd-nspawn");
    container.args(["--quiet", "--register=no", "--keep-unit", "--private-network", "--resolv-conf=off"]);
    container.arg("--timezone=off").arg("--directory").arg(root);
    container.arg(format!("--bind={}:/run/vmlane", run.display()));
    container.arg(format!("--bind-ro={}:/etc/vmlane", config.display())).args(words);
    let container = container.stdout(Stdio::null()).stderr(outside.log_file()).spawn();
    let mut container = Process(container.expect("systemd-nspawn"));
    wait_until("the daemon answers", || {
        let end = container.0.try_wait().expect("a process");
        assert!(end.is_none(), "the container ends: {end:?}\n{}", outside.log());
        !alone::status(&run).is_null()
    });
    container
}

/// How many VMXNET3 cards a QEMU of the host has that attaches a VM.
fn cards_outside(outside: &Daemon, vm: &str) -> usize {
    let words = ["qemu-args", vm, "--mem", "64", "--qemu", "10.1", "--json"];
    let printed: Value = serde_json::from_str(&output(&mut outside.configured(&words))).expect("JSON");
    let words = printed["args"].as_array().expect("words").iter().map(|word| word.as_str().expect("a word"));
    let mut qemu = qemu().command();
    qemu.args(["-machine", "q35", "-accel", "tcg", "-display", "none", "-nodefaults", "-S"]);
    qemu.args(["-monitor", "stdio"]).args(words);
    let qemu = qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut qemu = Process(qemu.expect("QEMU"));
    qemu.0.stdin.as_mut().expect("a pipe").write_all(b"info pci\nquit\n").expect("QEMU reads");
    qemu.finish().good().matches("PCI device 15ad:07b0").count()
}

fn a_daemon_in_the_image_serves_vms_outside() {
    let owned = format!("name = \"r1\"\nowner = \"{OWNER}\"\n");
    let outside = alone::daemon(&block("toml").replacen("name = \"r1\"\n", &owned, 1));
    let mut container = contained(&outside);
    let may = ["r1", "r2"].map(|vm| may_connect(OWNER, &outside.socket(vm, "nic0.sock")));
    assert_eq!(may, [true, false], "an owner outside of the container");
    assert_eq!(["r1", "r2"].map(|vm| cards_outside(&outside, vm)), [CARDS; 2]);
    container.signal(Signal::TERM);
    container.wait();
    kept("packages", "the daemon of `make image`, in a container, serves two QEMUs of the host with ten cards each");
}
