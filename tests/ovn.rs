//! NICs as ports of OVN: two hosts in network namespaces, each with a daemon, Open vSwitch (its datapath in user space) and
//! ovn-controller, GENEVE between them, and one ovn-northd. Guests: VMXNET3 under QEMU on one host, virtio-net on the other.

use std::io::Write as _;
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use vmlane_tests::netns::{HostLab, Network, carry_noise, inside, install, output};
use vmlane_tests::{kept, wait_until};

const PACKAGES: [&str; 3] = ["ovn-central", "ovn-host", "openvswitch-switch"];
/// Bytes that fit into a packet beside the tunnel's header, in an Ethernet of 1500.
const MTU: &str = "1442";

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

/// One host's lab and its helper.
struct Host {
    lab: HostLab,
    helper: Option<Child>,
}

impl Deref for Host {
    type Target = HostLab;

    fn deref(&self) -> &HostLab {
        &self.lab
    }
}

impl Host {
    fn up(name: &str, directory: &Path, lab: &[&str], config: &str) -> Host {
        let database = directory.join(name).join("db.sock");
        let config = format!("{config}[ovn]\ndatabase = {database:?}\n");
        let mut host = Host { lab: HostLab::up(name, directory, lab, &config), helper: None };
        host.start_helper();
        host
    }

    fn start_helper(&mut self) {
        let mut command = inside(&self.name, &self.vmlane);
        command.args(["ovn", "run", "--config"]).arg(self.place.join("daemon.toml"));
        command.arg("--runtime-dir").arg(self.runtime_dir());
        self.helper = Some(command.stderr(Stdio::null()).spawn().expect("a helper"));
    }

    fn kill_helper(&mut self) {
        if let Some(mut helper) = self.helper.take() {
            let _ = helper.kill();
            let _ = helper.wait();
        }
    }

    /// How it stands with the first NIC of a guest.
    fn state(&self, guest: &str) -> String {
        let Some(status) = self.status() else { return "no daemon".into() };
        let vm =
            status["vms"].as_array().expect("VMs").iter().find(|vm| vm["name"] == guest).expect("the VM");
        vm["nics"][0]["ovn"]["state"].as_str().expect("a state").to_owned()
    }

    fn until(&self, guest: &str, state: &str) {
        wait_until(&format!("{}: {guest} is {state}", self.name), || self.state(guest) == state);
    }

    /// An external id of its guest's port.
    fn id(&self, network: &Network, guest: &str, key: &str) -> String {
        let database = format!("--db=unix:{}", network.directory.join(&self.name).join("db.sock").display());
        let told = output(Command::new("ovs-vsctl").args([
            database.as_str(),
            "--timeout=60",
            "--bare",
            "--columns=external_ids",
            "find",
            "Interface",
            &format!("external_ids:vm-id={guest}"),
        ]));
        let found =
            told.split_whitespace().find_map(|one| one.strip_prefix(&format!("{key}=")).map(str::to_owned));
        found.unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill_helper();
    }
}

#[test]
fn guests_of_two_hosts_are_in_ovns_networks() {
    install(&PACKAGES);
    let folder = tempfile::tempdir().expect("a directory");
    let pid = std::process::id();
    let names = [format!("ovn{pid}a"), format!("ovn{pid}b")];
    let network = Network::up("ovn.py", folder.path(), &names);
    let (mac_a, mac_b) = ("52:54:00:77:00:01", "52:54:00:77:00:02");
    nb(&network, "ls-add ls0");
    nb(&network, &format!("lsp-add ls0 lsp-a -- lsp-set-addresses lsp-a '{mac_a} 10.77.0.1'"));
    nb(&network, &format!("lsp-add ls0 lsp-b -- lsp-set-addresses lsp-b '{mac_b} 10.77.0.2'"));
    nb(&network, &format!("lsp-set-options lsp-a requested-chassis={}", names[0]));

    let vm = |name: &str, model: &str, mac: &str| {
        format!(
            "[[vm]]\nname = {name:?}\nnic = [{{ model = {model:?}, mac = {mac:?}, ovn = \"lsp-{name}\" }}]\n"
        )
    };
    let alpha = ["--guests", "1", "--device", "vmxnet3"];
    let alpha = Host::up(&names[0], folder.path(), &alpha, &vm("a", "vmxnet3", mac_a));
    // Guest a is here, too, as a VM is on both hosts while it migrates.
    let beta = ["--guests", "2", "--machine", "uml", "--device", "virtio-net"];
    let both = vm("a", "virtio-net", mac_a) + &vm("b", "virtio-net", mac_b);
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
        19,
        "OVN, two hosts: ping and 64 MiB over TCP each way whole between guests with vmxnet3 and virtio-net",
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
        19,
        "an ACL drops what it should, between hosts and on one host; a port moves when requested-chassis changes",
    );

    nb(&network, "ls-add ls1 -- lsp-del lsp-b");
    nb(&network, &format!("lsp-add ls1 lsp-b -- lsp-set-addresses lsp-b '{mac_b} 10.78.0.2'"));
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
    kept(19, "a router between two logical switches works");

    // The helper is killed: frames go on, and the next one finds everything.
    beta.kill_helper();
    assert!(alpha.pings("a", "10.78.0.2"));
    beta.until("b", "no helper");
    beta.start_helper();
    beta.until("b", "bound");
    // The daemon is killed, and the next one has its VM and its interface.
    let pid = || alpha.status().and_then(|status| status["pid"].as_u64());
    let before = pid().expect("a daemon");
    output(Command::new("kill").args(["-9", &before.to_string()]));
    wait_until("another daemon", || pid().is_some_and(|after| after != before));
    alpha.until("a", "bound");
    wait_until("frames pass again", || alpha.pings("a", "10.78.0.2"));
    kept(19, "the daemon killed and started again: the port stays OVN's, and frames pass");
    // A guest's link that is set down is no port of OVN's.
    let mut link = Command::new(&beta.vmlane);
    output(link.args(["link", "b/nic0", "down", "--runtime-dir"]).arg(beta.runtime_dir()));
    beta.until("b", "down");
    wait_until("OVN is told", || beta.id(&network, "b", "iface-id").is_empty());
    let mut link = Command::new(&beta.vmlane);
    output(link.args(["link", "b/nic0", "up", "--runtime-dir"]).arg(beta.runtime_dir()));
    beta.until("b", "bound");
    assert_eq!(beta.id(&network, "b", "iface-id"), "lsp-b");
    wait_until("and frames pass", || alpha.pings("a", "10.78.0.2"));
    kept(
        19,
        "the helper killed and started again changes nothing for guests; a link that is set down gives the port back",
    );
    std::io::stdout().flush().expect("stdout");
}
