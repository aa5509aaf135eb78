//! NICs as ports of OVN: two hosts in network namespaces, each with a daemon, Open vSwitch (its datapath in
//! user space) and ovn-controller, GENEVE between them, and one ovn-northd. Guests: VMXNET3 under QEMU on one
//! host, virtio-net on the other.

use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};

use vmlane_tests::alone::{output, status, vmlane};
use vmlane_tests::moving::Machine;
use vmlane_tests::netns::{Gaps, HostLab, Network, carry_noise, daemon, inside, install};
use vmlane_tests::{Process, kept, wait_until};

vmlane_tests::tests! {
    long { a_vm_moves_to_another_host_and_its_port_with_it, guests_of_two_hosts_are_in_ovns_networks }
}

const PACKAGES: [&str; 3] = ["ovn-central", "ovn-host", "openvswitch-switch"];
/// Bytes that fit into a packet beside the tunnel's header, in an Ethernet of 1500.
const MTU: &str = "1442";
const MAC_A: &str = "52:54:00:77:00:01";
const MAC_B: &str = "52:54:00:77:00:02";

fn nb(network: &Network, words: &str) {
    let database = format!("--db=unix:{}", network.directory.join("nb.sock").display());
    output(
        Command::new("ovn-nbctl").args([database.as_str(), "--timeout=60", "--wait=hv"]).args(shell(words)),
    );
}

/// Words, of which those in single quotes may have spaces.
fn shell(words: &str) -> Vec<&str> {
    let mut all = Vec::new();
    for (at, part) in words.split('\'').enumerate() {
        if at % 2 == 1 { all.push(part) } else { all.extend(part.split_whitespace()) }
    }
    all
}

/// The helper of the daemon whose sockets are in `run`.
fn start_helper(host: &str, config: &Path, run: &Path) -> Process {
    let mut command = inside(host);
    command.args(["ovn", "run", "--config"]).arg(config).arg("--runtime-dir").arg(run);
    Process(command.stderr(Stdio::null()).spawn().expect("a helper"))
}

/// How it stands with the first NIC of a VM, by the daemon whose sockets are in `run`.
fn state(run: &Path, vm: &str) -> String {
    let status = status(run);
    let Some(vms) = status["vms"].as_array() else { return "no daemon".into() };
    let found = vms.iter().find(|one| one["name"] == vm).expect("the VM");
    found["nics"][0]["ovn"]["state"].as_str().expect("a state").to_owned()
}

/// The part of a daemon's configuration for OVN on a host.
fn of_host(directory: &Path, name: &str) -> String {
    let database = directory.join(name).join("db.sock");
    format!("[ovn]\ndatabase = {database:?}\n")
}

fn vm(name: &str, model: &str, mac: &str) -> String {
    format!(
        "[[vm]]\nname = {name:?}\nvsock = \"none\"\n\
         nic = [{{ model = {model:?}, mac = {mac:?}, ovn = \"lsp-{name}\" }}]\n"
    )
}

/// The logical switch ls0 with lsp-a and lsp-b.
fn add_switch(network: &Network) {
    nb(network, "ls-add ls0");
    nb(network, &format!("lsp-add ls0 lsp-a -- lsp-set-addresses lsp-a '{MAC_A} 10.77.0.1'"));
    nb(network, &format!("lsp-add ls0 lsp-b -- lsp-set-addresses lsp-b '{MAC_B} 10.77.0.2'"));
}

/// One host's lab and its helper.
struct Host {
    // It ends first.
    helper: Option<Process>,
    lab: HostLab,
}

impl Deref for Host {
    type Target = HostLab;

    fn deref(&self) -> &HostLab {
        &self.lab
    }
}

impl Host {
    fn up(name: &str, directory: &Path, lab: &[&str], config: &str) -> Host {
        let config = config.to_owned() + &of_host(directory, name);
        let mut host = Host { helper: None, lab: HostLab::up(name, directory, lab, &config) };
        host.start_helper();
        host
    }

    fn start_helper(&mut self) {
        let config = self.place.join("daemon.toml");
        self.helper = Some(start_helper(&self.name, &config, &self.runtime_dir()));
    }

    fn kill_helper(&mut self) {
        self.helper = None;
    }

    fn until(&self, guest: &str, wanted: &str) {
        let run = self.runtime_dir();
        wait_until(&format!("{}: {guest} is {wanted}", self.name), || state(&run, guest) == wanted);
    }

    /// An external id of its guest's port.
    fn id(&self, network: &Network, guest: &str, key: &str) -> String {
        let database = format!("--db=unix:{}", network.directory.join(&self.name).join("db.sock").display());
        let find = ["--timeout=60", "--bare", "--columns=external_ids", "find", "Interface"];
        let of_the_guest = format!("external_ids:vm-id={guest}");
        let printed = output(Command::new("ovs-vsctl").arg(database).args(find).arg(of_the_guest));
        let found =
            printed.split_whitespace().find_map(|one| one.strip_prefix(&format!("{key}=")).map(str::to_owned));
        found.unwrap_or_default()
    }
}

fn guests_of_two_hosts_are_in_ovns_networks() {
    install(&PACKAGES);
    let folder = tempfile::tempdir().expect("a directory");
    let pid = std::process::id();
    let names = [format!("ovn{pid}a"), format!("ovn{pid}b")];
    let network = Network::up("ovn.py", folder.path(), &names);
    add_switch(&network);
    nb(&network, &format!("lsp-set-options lsp-a requested-chassis={}", names[0]));

    let alpha = ["--guests", "1", "--device", "vmxnet3"];
    let alpha = Host::up(&names[0], folder.path(), &alpha, &vm("a", "vmxnet3", MAC_A));
    // Guest a is here, too, as a VM is on both hosts while it migrates.
    let beta = ["--guests", "2", "--machine", "uml", "--device", "virtio-net"];
    let both = vm("a", "virtio-net", MAC_A) + &vm("b", "virtio-net", MAC_B);
    let mut beta = Host::up(&names[1], folder.path(), &beta, &both);
    alpha.until("a", "bound");
    beta.until("b", "bound");
    beta.until("a", "waiting");
    for (host, guest) in [(&alpha, "a"), (&beta, "a"), (&beta, "b")] {
        host.run(guest, &format!("ip link set eth0 mtu {MTU}"));
    }
    wait_until("a reaches b", || alpha.pings("a", "10.77.0.2"));
    carry_noise(64, (&alpha, "a"), (&beta, "b"), "10.77.0.2");
    carry_noise(64, (&beta, "b"), (&alpha, "a"), "10.77.0.1");
    kept(
        "ovn",
        "two hosts: ping and 64 MiB over TCP each way whole between guests with vmxnet3 and virtio-net",
    );

    nb(&network, "acl-add ls0 to-lport 1000 'outport == \"lsp-b\" && icmp4' drop");
    wait_until("the ACL drops", || !alpha.pings("a", "10.77.0.2"));
    // It drops nothing else.
    let listens = beta.command("b", "socat -u TCP-LISTEN:5002 - | wc -c").stdout(Stdio::piped()).spawn();
    alpha.run("a", "echo hello | socat -u - TCP:10.77.0.2:5002,retry=600,interval=0.1");
    let listened = listens.expect("a server").wait_with_output().expect("a server");
    assert_eq!(String::from_utf8_lossy(&listened.stdout).trim(), "6");
    // Two VMs of one host do not reach each other past it.
    nb(&network, "acl-add ls0 to-lport 1001 'outport == \"lsp-b\"' drop");
    nb(&network, &format!("lsp-set-options lsp-a requested-chassis={}", names[1]));
    alpha.until("a", "waiting");
    beta.until("a", "bound");
    assert!(!beta.pings("a", "10.77.0.2"));
    nb(&network, "acl-del ls0");
    wait_until("without ACLs they do", || beta.pings("a", "10.77.0.2"));
    assert!(!alpha.pings("a", "10.77.0.2"), "the port has left this host");
    nb(&network, &format!("lsp-set-options lsp-a requested-chassis={}", names[0]));
    alpha.until("a", "bound");
    beta.until("a", "waiting");
    wait_until("the port is back", || alpha.pings("a", "10.77.0.2"));
    kept(
        "ovn",
        "an ACL drops what it should, between hosts and on one host; a port moves when requested-chassis changes",
    );

    nb(&network, "ls-add ls1 -- lsp-del lsp-b");
    nb(&network, &format!("lsp-add ls1 lsp-b -- lsp-set-addresses lsp-b '{MAC_B} 10.78.0.2'"));
    nb(&network, "lr-add r0");
    for (number, switch) in ["ls0", "ls1"].iter().enumerate() {
        let gateway = 77 + number;
        nb(&network, &format!("lrp-add r0 r0-{switch} 52:54:00:77:ff:0{number} 10.{gateway}.0.254/24"));
        nb(&network, &format!("lsp-add {switch} {switch}-r0 -- lsp-set-type {switch}-r0 router"));
        nb(&network, &format!("lsp-set-addresses {switch}-r0 router"));
        nb(&network, &format!("lsp-set-options {switch}-r0 router-port=r0-{switch}"));
    }
    beta.run(
        "b",
        "ip addr flush dev eth0; ip addr add 10.78.0.2/24 dev eth0; ip route add default via 10.78.0.254",
    );
    alpha.run("a", "ip route add default via 10.77.0.254");
    wait_until("a reaches b through the router", || alpha.pings("a", "10.78.0.2"));
    kept("ovn", "a router between two logical switches works");

    // The helper is killed: frames go on, and the next one finds everything.
    beta.kill_helper();
    assert!(alpha.pings("a", "10.78.0.2"));
    beta.until("b", "no helper");
    beta.start_helper();
    beta.until("b", "bound");
    // The daemon is killed, and the next one has its VM and its interface.
    let pid = || alpha.status()["pid"].as_u64();
    let before = pid().expect("a daemon");
    output(Command::new("kill").args(["-9", &before.to_string()]));
    wait_until("another daemon", || pid().is_some_and(|after| after != before));
    alpha.until("a", "bound");
    wait_until("frames pass again", || alpha.pings("a", "10.78.0.2"));
    kept("ovn", "the daemon killed and started again: the port stays OVN's, and frames pass");
    // A guest's link that is set down is no port of OVN's.
    let link = |state: &str| {
        let mut link = vmlane();
        output(link.args(["link", "b/nic0", state, "--runtime-dir"]).arg(beta.runtime_dir()));
    };
    link("down");
    beta.until("b", "down");
    wait_until("OVN is notified", || beta.id(&network, "b", "iface-id").is_empty());
    link("up");
    beta.until("b", "bound");
    assert_eq!(beta.id(&network, "b", "iface-id"), "lsp-b");
    wait_until("and frames pass", || alpha.pings("a", "10.78.0.2"));
    kept(
        "ovn",
        "the helper killed and started again changes nothing for guests; a link that is set down gives the port back",
    );
}

fn a_vm_moves_to_another_host_and_its_port_with_it() {
    install(&PACKAGES);
    let folder = tempfile::tempdir().expect("a directory");
    let pid = std::process::id();
    let names = [format!("om{pid}a"), format!("om{pid}b")];
    let network = Network::up("ovn.py", folder.path(), &names);
    add_switch(&network);
    nb(&network, &format!("lsp-set-options lsp-a requested-chassis={}", names[0]));
    let lab = ["--guests", "2", "--device", "virtio-net", "--mem", "256"];
    let [a, b] = [("a", MAC_A), ("b", MAC_B)].map(|(name, mac)| vm(name, "virtio-net", mac));
    let first = Host::up(&names[0], folder.path(), &lab, &(a.clone() + &b));
    let config = folder.path().join("second.toml");
    std::fs::write(&config, a + &of_host(folder.path(), &names[1])).expect("a configuration");
    let second = folder.path().join("second");
    let _daemon = daemon(&names[1], &config, &second);
    let _helper = start_helper(&names[1], &config, &second);
    for guest in ["a", "b"] {
        first.until(guest, "bound");
        first.run(guest, &format!("ip link set eth0 mtu {MTU}"));
        first.equip(guest);
    }
    wait_until("a reaches b", || first.pings("a", "10.77.0.2"));

    let gaps = Gaps::of((&first, "b"), (&first, "a"), "10.77.0.1");
    let mut machine = Machine::of_lab(&names[0], "a", &first.runtime_dir());
    let mut measured = Vec::new();
    for (number, (from, to)) in [(0, 1), (1, 0)].into_iter().enumerate() {
        // As OpenStack does it: the port is on both hosts, and the new one may send once the VM is announced
        // there.
        let both = format!("requested-chassis={},{} activation-strategy=rarp", names[from], names[to]);
        nb(&network, &format!("lsp-set-options lsp-a {both}"));
        gaps.forget();
        let run = [first.runtime_dir(), second.clone()];
        let (moved, down) = machine.move_to(&run[to], &folder.path().join(format!("move{number}")));
        machine = moved;
        let longest = gaps.longest();
        nb(&network, &format!("lsp-set-options lsp-a requested-chassis={}", names[to]));
        wait_until("the port is bound at its new place", || state(&run[to], "a") == "bound");
        gaps.longest();
        measured.push(format!("down {down} ms, stream silent {longest} ms"));
    }
    kept(
        "ovn",
        &format!(
            "a VM moves to the other host and back, its port with it, and a TCP stream to it goes on: {}",
            measured.join("; ")
        ),
    );
}
