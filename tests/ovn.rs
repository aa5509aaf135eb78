//! NICs as ports of OVN: two hosts in network namespaces, each with a daemon, Open vSwitch (its datapath in user space) and
//! ovn-controller, GENEVE between them, and one ovn-northd. Guests: VMXNET3 under QEMU on one host, virtio-net on the other.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vmlane_tests::{kept, wait_until};

const PACKAGES: [&str; 3] = ["ovn-central", "ovn-host", "openvswitch-switch"];
/// Bytes that fit into a packet beside the tunnel's header, in an Ethernet of 1500.
const MTU: &str = "1442";

fn output(command: &mut Command) -> String {
    let output = command.output().expect("a process");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {told}{}", String::from_utf8_lossy(&output.stderr));
    told
}

/// Databases, switches and controllers; they end with this value.
struct Network {
    program: Child,
    directory: PathBuf,
}

impl Network {
    fn up(directory: &Path, hosts: &[String]) -> Network {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/ovn.py");
        let mut program = Command::new("python3")
            .arg(script)
            .arg(directory)
            .args(hosts)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(program.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "OVN is not up");
        Network { program, directory: directory.to_owned() }
    }

    fn nb(&self, words: &str) {
        let database = format!("--db=unix:{}", self.directory.join("nb.sock").display());
        output(
            Command::new("ovn-nbctl")
                .args([database.as_str(), "--timeout=60", "--wait=hv"])
                .args(shell(words)),
        );
    }
}

/// Words, of which those in single quotes may have spaces.
fn shell(words: &str) -> Vec<&str> {
    let mut all = Vec::new();
    for (at, part) in words.split('\'').enumerate() {
        if at % 2 == 1 { all.push(part) } else { all.extend(part.split_whitespace()) }
    }
    all
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.program.stdin.take());
        let _ = self.program.wait();
    }
}

/// One host's lab and its helper.
struct Host {
    name: String,
    vmlane: PathBuf,
    place: PathBuf,
    helper: Option<Child>,
}

impl Host {
    fn up(name: &str, directory: &Path, lab: &[&str], config: &str) -> Host {
        let vmlane = vmlane_lab::find_vmlane().expect("the program was built");
        let file = directory.join(format!("{name}.toml"));
        let database = directory.join(name).join("db.sock");
        std::fs::write(&file, format!("{config}[ovn]\ndatabase = {database:?}\n")).expect("a configuration");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).arg(&vmlane).args(["lab", "up", name, "--json"]).args(lab);
        let told = output(command.arg("--daemon-config").arg(&file).args(["--boot-timeout", "600"]));
        let told: Value = serde_json::from_str(&told).expect("JSON");
        let place = told["dir"].as_str().expect("a directory").into();
        let mut host = Host { name: name.into(), vmlane, place, helper: None };
        host.start_helper();
        host
    }

    fn start_helper(&mut self) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(&self.vmlane).args(["ovn", "run", "--config"]);
        command.arg(self.place.join("daemon.toml")).arg("--runtime-dir").arg(self.place.join("d"));
        self.helper = Some(command.stderr(Stdio::null()).spawn().expect("a helper"));
    }

    fn kill_helper(&mut self) {
        if let Some(mut helper) = self.helper.take() {
            let _ = helper.kill();
            let _ = helper.wait();
        }
    }

    fn status(&self) -> Option<Value> {
        let mut command = Command::new(&self.vmlane);
        let told = command.args(["status", "--json", "--runtime-dir"]).arg(self.place.join("d")).output();
        serde_json::from_slice(&told.expect("a process").stdout).ok()
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

    fn command(&self, guest: &str, script: &str) -> Command {
        let mut command = Command::new(&self.vmlane);
        command.args(["lab", "exec", &self.name, guest, "--", "sh", "-c", script]);
        command
    }

    fn run(&self, guest: &str, script: &str) -> String {
        output(&mut self.command(guest, script))
    }

    fn pings(&self, guest: &str, address: &str) -> bool {
        self.command(guest, &format!("ping -c 1 -W 2 {address} >/dev/null")).status().expect("ping").success()
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
        let _ = Command::new(&self.vmlane).args(["lab", "down", &self.name]).output();
    }
}

/// 64 MiB of noise over TCP, which must arrive as they were.
fn carry((from, sender): (&Host, &str), (to, receiver): (&Host, &str), address: &str) {
    let receive = "socat -u TCP-LISTEN:5001,reuseaddr - | sha256sum";
    let mut receiving = to.command(receiver, receive).stdout(Stdio::piped()).spawn().expect("a receiver");
    let sent = from.run(
        sender,
        &format!(
            "head -c 67108864 /dev/urandom >/tmp/noise; sha256sum </tmp/noise; \
             socat -u OPEN:/tmp/noise TCP:{address}:5001,retry=600,interval=0.1; rm /tmp/noise"
        ),
    );
    let mut got = String::new();
    let mut out = BufReader::new(receiving.stdout.take().expect("a pipe"));
    out.read_line(&mut got).expect("a line");
    assert!(receiving.wait().expect("a receiver").success());
    assert_eq!(got, sent, "{sender} to {receiver}");
}

#[test]
fn guests_of_two_hosts_are_in_ovns_networks() {
    let bootstrap = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/bootstrap.sh");
    output(Command::new(bootstrap).args(PACKAGES).env("START_SERVICES", "no"));
    let folder = tempfile::tempdir().expect("a directory");
    let pid = std::process::id();
    let names = [format!("ovn{pid}a"), format!("ovn{pid}b")];
    let network = Network::up(folder.path(), &names);
    let (mac_a, mac_b) = ("52:54:00:77:00:01", "52:54:00:77:00:02");
    network.nb("ls-add ls0");
    network.nb(&format!("lsp-add ls0 lsp-a -- lsp-set-addresses lsp-a '{mac_a} 10.77.0.1'"));
    network.nb(&format!("lsp-add ls0 lsp-b -- lsp-set-addresses lsp-b '{mac_b} 10.77.0.2'"));
    network.nb(&format!("lsp-set-options lsp-a requested-chassis={}", names[0]));

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
    carry((&alpha, "a"), (&beta, "b"), "10.77.0.2");
    carry((&beta, "b"), (&alpha, "a"), "10.77.0.1");
    kept(
        19,
        "OVN, two hosts: ping and 64 MiB over TCP each way whole between guests with vmxnet3 and virtio-net",
    );

    network.nb("acl-add ls0 to-lport 1000 'outport == \"lsp-b\" && icmp4' drop");
    wait_until("the ACL drops", || !alpha.pings("a", "10.77.0.2"));
    // It drops nothing else.
    let listens = beta.command("b", "socat -u TCP-LISTEN:5002 - | wc -c").stdout(Stdio::piped()).spawn();
    alpha.run("a", "echo hello | socat -u - TCP:10.77.0.2:5002,retry=600,interval=0.1");
    let listened = listens.expect("a server").wait_with_output().expect("a server");
    assert_eq!(String::from_utf8_lossy(&listened.stdout).trim(), "6");
    // Two VMs of one host do not reach each other past it.
    network.nb("acl-add ls0 to-lport 1001 'outport == \"lsp-b\"' drop");
    network.nb(&format!("lsp-set-options lsp-a requested-chassis={}", names[1]));
    alpha.until("a", "waiting");
    beta.until("a", "bound");
    assert!(!beta.pings("a", "10.77.0.2"));
    network.nb("acl-del ls0");
    wait_until("without ACLs they do", || beta.pings("a", "10.77.0.2"));
    assert!(!alpha.pings("a", "10.77.0.2"), "the port has left this host");
    network.nb(&format!("lsp-set-options lsp-a requested-chassis={}", names[0]));
    alpha.until("a", "bound");
    beta.until("a", "waiting");
    wait_until("the port is back", || alpha.pings("a", "10.77.0.2"));
    kept(
        19,
        "an ACL drops what it should, between hosts and on one host; a port moves when requested-chassis changes",
    );

    network.nb("ls-add ls1 -- lsp-del lsp-b");
    network.nb(&format!("lsp-add ls1 lsp-b -- lsp-set-addresses lsp-b '{mac_b} 10.78.0.2'"));
    network.nb("lr-add r0");
    for (number, switch) in ["ls0", "ls1"].iter().enumerate() {
        let gateway = 77 + number;
        network.nb(&format!("lrp-add r0 r0-{switch} 52:54:00:77:ff:0{number} 10.{gateway}.0.254/24"));
        network.nb(&format!("lsp-add {switch} {switch}-r0 -- lsp-set-type {switch}-r0 router"));
        network.nb(&format!("lsp-set-addresses {switch}-r0 router"));
        network.nb(&format!("lsp-set-options {switch}-r0 router-port=r0-{switch}"));
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
    output(link.args(["link", "b/nic0", "down", "--runtime-dir"]).arg(beta.place.join("d")));
    beta.until("b", "down");
    wait_until("OVN is told", || beta.id(&network, "b", "iface-id").is_empty());
    let mut link = Command::new(&beta.vmlane);
    output(link.args(["link", "b/nic0", "up", "--runtime-dir"]).arg(beta.place.join("d")));
    beta.until("b", "bound");
    assert_eq!(beta.id(&network, "b", "iface-id"), "lsp-b");
    wait_until("and frames pass", || alpha.pings("a", "10.78.0.2"));
    kept(
        19,
        "the helper killed and started again changes nothing for guests; a link that is set down gives the port back",
    );
    std::io::stdout().flush().expect("stdout");
}
