//! libvirt of Debian 12 with vmlane's package: domains get their VMs' devices, as these VMs' owners, and its
//! hook lets no domain have another one's.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::Guest;
use vmlane_lab::setup::{Assets, Qemu};
use vmlane_lab::{first_root, proto};
use vmlane_testkit::write_program;
use vmlane_tests::alone::{output, printed, vmlane};
use vmlane_tests::kept;

use crate::package::container::{self, Container, Release};

vmlane_tests::tests! {
    long { domains_attach_their_vms_and_no_others }
}

const KERNEL: &str = "6.12";
const VMS: [&str; 4] = ["a", "b", "c", "d"];
const WORD: &str = "over-vsock";

fn mac(vm: &str) -> String {
    format!("52:54:00:77:00:{:02x}", number(vm))
}

fn number(vm: &str) -> usize {
    VMS.iter().position(|name| *name == vm).expect("a VM of the test") + 1
}

fn address(vm: &str) -> String {
    format!("10.77.0.{}", number(vm))
}

fn cid(vm: &str) -> usize {
    number(vm) + 2
}

/// a and b have virtio devices, c and d VMCI and VMXNET3.
fn config() -> String {
    let vm = |name: &&str| {
        let (vsock, model) = if number(name) < 3 { ("virtio", "virtio-net") } else { ("vmci", "vmxnet3") };
        format!(
            "[[vm]]\nname = \"{name}\"\ncid = {}\nvsock = \"{vsock}\"\nowner = \"vm-{name}\"\n\
             nic = [ {{ model = \"{model}\", mac = \"{}\" }} ]\n",
            cid(name),
            mac(name)
        )
    };
    VMS.iter().map(vm).collect()
}

/// Without KVM, QEMU 7.2 ends when a vhost-user NIC's driver uses MSI-X (crates/attach/src/qemu/kind.rs).
const NO_MSI_X: &str = "  <qemu:override>
    <qemu:device alias='net0'>
      <qemu:frontend>
        <qemu:property name='vectors' type='unsigned' value='0'/>
      </qemu:frontend>
    </qemu:device>
  </qemu:override>
";

/// A domain as an administrator has it before vmlane: a kernel, disks, and a card on a bridge.
fn domain(vm: &str) -> String {
    let (mac, port) = (mac(vm), proto::PORT);
    let changed = if number(vm) < 3 { NO_MSI_X } else { "" };
    format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{vm}</name>
  <!-- written by hand -->
  <memory unit='MiB'>512</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/lab/{vm}/vmlinuz</kernel>
    <initrd>/lab/{vm}/initrd</initrd>
    <cmdline>console=ttyS0 quiet net.ifnames=0 cryptomgr.notests no_timer_check mitigations=off nokaslr</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <devices>
    <disk type='file'>
      <driver name='qemu' type='raw'/>
      <source file='/lab/{vm}/root.img'/>
      <target dev='vda' bus='virtio'/>
      <serial>root</serial>
    </disk>
    <disk type='file'>
      <driver name='qemu' type='raw'/>
      <source file='/lab/{vm}/modules.img'/>
      <target dev='vdb' bus='virtio'/>
      <readonly/>
      <serial>modules</serial>
    </disk>
    <interface type='bridge'>
      <mac address='{mac}'/>
      <source bridge='br0'/>
      <model type='virtio'/>
    </interface>
    <serial type='file'><source path='/var/log/libvirt/qemu/{vm}-console.log'/></serial>
    <channel type='unix'>
      <source mode='bind' path='/lab/{vm}.sock'/>
      <target type='virtio' name='{port}'/>
    </channel>
    <memballoon model='none'/>
  </devices>
{changed}</domain>
"
    )
}

/// A copy that takes no place for what is zero.
fn copy(from: &Path, to: &Path) {
    let mut cp = Command::new("cp");
    output(cp.args(["--recursive", "--sparse=always", "--preserve=mode,links"]).arg(from).arg(to));
}

/// A program in the container that runs the lab's QEMU there; and the folder of that QEMU's modules.
fn newer_qemu(root: &Path, qemu: &Qemu) -> String {
    let file = |path: &Path| {
        path.ancestors().find(|above| above.join("usr/bin/qemu-system-x86_64").is_file()).map(PathBuf::from)
    };
    let folder = qemu.command.iter().find_map(|word| file(Path::new(word)));
    let Some(folder) = folder else {
        panic!(
            "{:?}: the test needs the lab's own QEMU (no VMLANE_QEMU, none of 10.1 or later on this host)",
            qemu.command
        );
    };
    copy(&folder, &root.join("opt/qemu"));
    let inside = |word: &str| word.replace(&folder.display().to_string(), "/opt/qemu");
    let mut script = String::from("#!/bin/sh\n");
    for (name, value) in &qemu.env {
        script += &format!("export {name}='{}'\n", inside(value));
    }
    let words: Vec<String> =
        qemu.command.iter().chain(&qemu.leading_args()).map(|word| format!("'{}'", inside(word))).collect();
    script += &format!("exec {} \"$@\"\n", words.join(" "));
    write_program(&root.join("usr/local/bin/qemu-newer"), &script);
    "/usr/local/bin/qemu-newer".into()
}

/// Kernel, first root and disks of each VM, which libvirt gives to the VM's owner.
fn give_disks(root: &Path, assets: &Assets) {
    let kernel = assets.kernel(KERNEL).expect("a kernel");
    let program = PathBuf::from(vmlane().get_program());
    let ours = first_root::archive(&assets.root, &program).expect("a first root");
    for vm in VMS {
        let lab = root.join("lab").join(vm);
        fs::create_dir_all(&lab).expect("a folder");
        copy(&kernel.image(), &lab.join("vmlinuz"));
        copy(&kernel.modules(), &lab.join("modules.img"));
        copy(&assets.root.image(), &lab.join("root.img"));
        first_root::write(kernel, &ours, &lab.join("initrd")).expect("a first root");
        fs::write(lab.join("domain.xml"), domain(vm)).expect("a domain");
    }
}

/// The output of a command that must fail.
fn refused(container: &Container, script: &str) -> String {
    let output = container.output(script);
    assert!(!output.status.success(), "{script}: {}", printed(&output));
    printed(&output)
}

fn start(container: &Container, vm: &str) -> Guest {
    container.run(&format!("virsh start {vm} || {{ tail -n 20 /var/log/libvirt/qemu/{vm}.log; exit 1; }}"));
    let vmci = cid(vm) > 4;
    Guest::up(&container.path(&format!("/lab/{vm}.sock")), vm, (&mac(vm), &address(vm)), vmci)
}

/// One guest reaches the other's card and its sockets.
fn reach(client: &mut Guest, to: &str, server: &mut Guest) {
    client.sh(&format!("ping -c 3 -W 20 {}", address(to)));
    server
        .sh("rm -f /tmp/heard; socat -u VSOCK-LISTEN:7000 OPEN:/tmp/heard,creat >/tmp/log 2>&1 </dev/null &");
    let again = |line: &str| format!("for n in $(seq 150); do {line} && exit 0; sleep 0.2; done; exit 1");
    client.sh(&again(&format!("echo {WORD} | socat -u - VSOCK-CONNECT:{}:7000", cid(to))));
    server.sh(&again(&format!("grep -qx {WORD} /tmp/heard")));
}

fn talk(one: (&str, &mut Guest), other: (&str, &mut Guest)) {
    reach(one.1, other.0, other.1);
    reach(other.1, one.0, one.1);
}

/// Puts a VM into its domain, twice, and defines it.
fn define(container: &Container, vm: &str, options: &str) {
    let lab = format!("/lab/{vm}");
    container.run(&format!("vmlane libvirt-xml {vm} --into {lab}/domain.xml {options} > {lab}/ours.xml"));
    let xml = fs::read_to_string(container.path(&format!("{lab}/ours.xml"))).expect("a domain");
    assert!(xml.contains("<!-- written by hand -->") && !xml.contains("br0"), "{xml}");
    container.run(&format!("virt-xml-validate {lab}/ours.xml domain && virsh define {lab}/ours.xml"));
    // Also in what libvirt made of it, a second time changes nothing.
    container.run(&format!(
        "virsh dumpxml --inactive {vm} > {lab}/defined.xml && \
         vmlane libvirt-xml {vm} --into {lab}/defined.xml {options} | diff {lab}/defined.xml -"
    ));
}

/// The user as whom a domain's QEMU runs.
fn user(container: &Container, vm: &str) -> String {
    container.run(&format!("stat -c %U /proc/$(cat /run/libvirt/qemu/{vm}.pid)"))
}

/// The hook in its place; or one that lets everything pass.
fn hook(container: &Container, program: &str) {
    container.run(&format!(
        "mkdir -p /etc/libvirt/hooks/qemu.d && ln -sf {program} /etc/libvirt/hooks/qemu.d/vmlane"
    ));
}

const HOOK: &str = "/usr/share/vmlane/libvirt/qemu";

/// A domain `x` that runs as `user` and names a socket of VM a.
fn intruder(container: &Container, user: &str) {
    let number = |kind: &str| container.run(&format!("id -{kind} {user}"));
    let xml = format!(
        "<domain type='qemu'><name>x</name><memory unit='MiB'>64</memory>
         <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
         <os><type arch='x86_64' machine='q35'>hvm</type></os>
         <devices><interface type='vhostuser'><mac address='{}'/><model type='virtio'/>
         <source type='unix' path='/run/vmlane/vm/a/nic0.sock' mode='client'/></interface></devices>
         <seclabel type='static' model='dac' relabel='yes'><label>+{}:+{}</label></seclabel></domain>",
        mac("a"),
        number("u"),
        number("g")
    );
    fs::write(container.path("/lab/x.xml"), xml).expect("a domain");
    container.run("virsh define /lab/x.xml");
}

/// No domain gets what is another one's, by the hook, and without it.
fn sockets_are_their_domains(container: &Container) {
    assert_eq!(["a", "b"].map(|vm| user(container, vm)), ["vm-a", "vm-b"]);
    assert!(container.fails("runuser -u vm-b -- test -w /run/vmlane/vm/a/nic0.sock"));
    intruder(container, "vm-b");
    let printed = refused(container, "virsh start x");
    assert!(printed.contains("/run/vmlane/vm/a/nic0.sock of VM a"), "{printed}");
    let xml = fs::read_to_string(container.path("/lab/x.xml")).expect("a domain");
    let plain = xml.replace("/run/vmlane/vm/a/nic0.sock", "/tmp/other.sock");
    fs::write(container.path("/lab/y.xml"), plain.replace("<name>x<", "<name>y<")).expect("a domain");
    let printed = refused(container, "virsh define /lab/y.xml && virsh start y");
    assert!(printed.contains("owner of VM b"), "{printed}");
    hook(container, "/bin/true");
    let printed = refused(container, "virsh start x");
    assert!(printed.contains("nic0.sock") && printed.contains("Permission denied"), "{printed}");
    hook(container, HOOK);
    container.run("virsh undefine x && virsh undefine y");
}

/// The memory of these devices cannot be kept in a file, and the guest goes on.
fn saving_is_refused(container: &Container, guest: &mut Guest) {
    let snapshot = "virsh snapshot-create-as a one --memspec file=/tmp/a.mem,snapshot=external \
                    --diskspec vda,snapshot=no --diskspec vdb,snapshot=no";
    for line in ["virsh save a /tmp/a.save", "virsh managedsave a", snapshot] {
        let printed = refused(container, line);
        assert!(printed.contains("non-migratable device"), "{line}: {printed}");
    }
    for operation in ["restore", "migrate"] {
        let printed = refused(container, &format!("virsh dumpxml a | {HOOK} a {operation} begin -"));
        assert!(printed.contains("only VMs with nothing but virtio NICs"), "{printed}");
    }
    guest.sh("true");
}

/// Without a daemon, or with another CID than the daemon's, a domain does not start.
fn starts_need_the_daemon(container: &Container) {
    container.run("systemctl stop vmlane");
    let printed = refused(container, "virsh start a");
    assert!(printed.contains("systemctl start vmlane"), "{printed}");
    container.run("systemctl start vmlane");
    let file = container.path("/etc/vmlane/vmlane.toml");
    fs::write(&file, config().replace("cid = 3\n", "cid = 33\n")).expect("the configuration");
    let printed = refused(container, "virsh start a");
    assert!(printed.contains("run `vmlane reload`"), "{printed}");
    fs::write(&file, config()).expect("the configuration");
}

/// Proxmox VE splits `args` by this function of Perl's, and starts QEMU as root.
fn proxmox_args_attach(container: &Container, qemu: &str) {
    let words = "perl -MText::ParseWords -e 'exec @ARGV[1 .. $#ARGV], shellwords($ARGV[0])' --";
    container.run(&format!(
        "{words} \"$(vmlane proxmox-args c --mem 256)\" {qemu} -machine q35,accel=tcg -m 256 -nodefaults \
         -display none -S -daemonize -pidfile /run/proxmox.pid"
    ));
    let status: serde_json::Value =
        serde_json::from_str(&container.run("vmlane status --json")).expect("a status");
    let c = status["vms"].as_array().and_then(|vms| vms.iter().find(|vm| vm["name"] == "c")).expect("VM c");
    assert_eq!((&c["attached"], &c["nics"][0]["attached"]), (&true.into(), &true.into()), "{c}");
    container.run("kill $(cat /run/proxmox.pid)");
}

fn set_up(root: &Path, assets: &Assets) -> String {
    give_disks(root, assets);
    fs::copy(container::package("0.1.0-1"), root.join("vmlane.deb")).expect("a package");
    newer_qemu(root, assets.qemu().expect("the lab's QEMU"))
}

fn domains_attach_their_vms_and_no_others() {
    let progress = vmlane_lab::setup::Progress(&|_| ());
    let assets = vmlane_lab::setup::ensure(&[KERNEL.to_owned()], None, &progress).expect("the lab's files");
    let packages = ["libvirt-daemon-system", "libvirt-clients", "libxml2-utils", "qemu-system-x86"];
    let base = container::debian(Release::Bookworm, Some(("libvirt", &packages)));
    let (_folder, root) = container::copy(&base);
    let newer = set_up(&root, &assets);
    // A container may not write to the groups of processes of its host.
    let settings = root.join("etc/libvirt/qemu.conf");
    let text = fs::read_to_string(&settings).expect("libvirt's settings") + "\ncgroup_controllers = [ ]\n";
    fs::write(&settings, text).expect("libvirt's settings");
    let container = Container::boot(&root);
    container.run("dpkg -i /vmlane.deb");
    for vm in VMS {
        container.run(&format!("useradd --system --user-group --groups kvm,libvirt-qemu vm-{vm}"));
    }
    fs::write(container.path("/etc/vmlane/vmlane.toml"), config()).expect("the configuration");
    // A daemon knows the users that were there when it started.
    container.run("systemctl restart vmlane && vmlane status");
    hook(&container, HOOK);
    container.run("systemctl restart libvirtd");

    ["a", "b"].into_iter().for_each(|vm| define(&container, vm, ""));
    let (mut a, mut b) = (start(&container, "a"), start(&container, "b"));
    talk(("a", &mut a), ("b", &mut b));
    sockets_are_their_domains(&container);
    saving_is_refused(&container, &mut a);
    a.reboot();
    talk(("a", &mut a), ("b", &mut b));
    container.run("virsh reset a");
    a.booted();
    talk(("a", &mut a), ("b", &mut b));
    // A virtio-vsock device does not outlive its daemon.
    container.run("virsh destroy a && virsh destroy b");
    starts_need_the_daemon(&container);
    let (mut a, mut b) = (start(&container, "a"), start(&container, "b"));
    talk(("a", &mut a), ("b", &mut b));
    container.run("virsh destroy a && virsh destroy b");
    let version = container.run("virsh --version");
    kept(
        "vmms",
        &format!(
            "libvirt {version}, QEMU 7.2: two domains with virtio NICs and vsock; reboots; what is refused"
        ),
    );

    let printed = refused(
        &container,
        "vmlane libvirt-xml c --into /lab/c/domain.xml --emulator /usr/bin/qemu-system-x86_64",
    );
    assert!(printed.contains("needs QEMU >= 10.1, and this is 7.2"), "{printed}");
    // Each QEMU searches for its modules where Debian's is, too, and ends when it finds another one's.
    let modules = "usr/lib/x86_64-linux-gnu/qemu";
    container.run(&format!("mount --bind /opt/qemu/{modules} /{modules}"));
    ["c", "d"].into_iter().for_each(|vm| define(&container, vm, &format!("--emulator {newer}")));
    let (mut c, mut d) = (start(&container, "c"), start(&container, "d"));
    talk(("c", &mut c), ("d", &mut d));
    c.reboot();
    talk(("c", &mut c), ("d", &mut d));
    container.run("virsh destroy c && virsh destroy d");
    proxmox_args_attach(&container, &newer);
    let qemu = assets.qemu_version();
    kept(
        "vmms",
        &format!(
            "libvirt {version}, QEMU {qemu}: two domains with VMXNET3 and VMCI, each as its VM's owner; a reboot"
        ),
    );
}
