//! EVPN on three hosts in network namespaces, each with a daemon, a bridge, VXLAN and FRR. A guest with
//! virtio-net moves from host to host, and a TCP stream to it goes on: the daemon that serves it now notifies
//! the network.

use std::process::Command;

use vmlane_tests::alone::output;
use vmlane_tests::moving::Machine;
use vmlane_tests::netns::{Gaps, HostLab, Network, carry_noise, daemon, install};
use vmlane_tests::{kept, wait_until};

vmlane_tests::tests! {
    long { a_guest_moves_between_hosts_of_an_evpn_fabric_and_its_stream_goes_on }
}

/// Bytes that fit into a packet beside the tunnel's header, in an Ethernet of 1500.
const MTU: u16 = 1450;
const MAC_A: &str = "52:54:00:77:00:01";
const MAC_B: &str = "52:54:00:77:00:02";

fn config(mac: &str) -> String {
    let uplinks = [10, 20].map(|vlan| {
        format!(
            "[[port_group]]\nname = \"net{vlan}\"\nvlan = {vlan}\n\
             [[uplink]]\nname = \"lan{vlan}\"\ntap = \"lan{vlan}\"\nvlan = {vlan}\n"
        )
    });
    let nic = format!("{{ model = \"virtio-net\", mac = {mac:?}, mtu = {MTU}, port_group = \"net10\" }}");
    format!("{}[[vm]]\nname = \"a\"\nnic = [{nic}]\n", uplinks.concat())
}

/// Makes the uplinks of a host ports of its bridges.
fn join(host: &str) {
    for vlan in [10, 20] {
        let (uplink, bridge) = (format!("lan{vlan}"), format!("br{vlan}"));
        wait_until("the uplink is there", || {
            let mut show = Command::new("ip");
            show.args(["-n", host, "link", "show", &uplink]).output().expect("ip").status.success()
        });
        output(Command::new("ip").args(["-n", host, "link", "set", &uplink, "master", &bridge, "up"]));
    }
}

/// Where an address is by BGP, as the kernel of a host has it: the address of another host.
fn learned(host: &str, mac: &str) -> Option<String> {
    let printed = output(Command::new("bridge").args(["-n", host, "fdb", "show", "dev", "vni10"]));
    let line = printed.lines().find(|line| line.starts_with(mac) && line.contains(" dst "))?;
    assert!(line.contains("extern_learn"), "{line}");
    line.split_whitespace().skip_while(|word| *word != "dst").nth(1).map(str::to_owned)
}

fn vtysh(network: &Network, host: &str, words: &str) -> String {
    let place = network.directory.join(host);
    output(Command::new("vtysh").arg("--vty_socket").arg(place).args(["-c", words]))
}

fn a_guest_moves_between_hosts_of_an_evpn_fabric_and_its_stream_goes_on() {
    install(&["frr"]);
    let folder = tempfile::tempdir().expect("a directory");
    let pid = std::process::id();
    let names = ["a", "b", "c"].map(|host| format!("ev{pid}{host}"));
    let network = Network::up("evpn.py", folder.path(), &names);
    let lab = ["--guests", "1", "--device", "virtio-net", "--mem", "256"];
    let first = HostLab::up(&names[0], folder.path(), &lab, &config(MAC_A));
    let second = HostLab::up(&names[1], folder.path(), &lab, &config(MAC_B));
    let third_run = folder.path().join("third");
    let _third = daemon(&names[2], &first.place.join("daemon.toml"), &third_run);
    names.iter().for_each(|host| join(host));
    for host in [&first, &second] {
        assert_eq!(host.run("a", "cat /sys/class/net/eth0/mtu").trim(), MTU.to_string());
        host.equip("a");
    }

    // Announced by the daemons when the interfaces came up: one guest has sent nothing that got there, the
    // other nothing.
    wait_until("BGP has both addresses on all hosts", || {
        let at = |host: usize, mac, dst| learned(&names[host], mac).as_deref() == Some(dst);
        at(1, MAC_A, "192.0.2.1")
            && at(2, MAC_A, "192.0.2.1")
            && at(0, MAC_B, "192.0.2.2")
            && at(2, MAC_B, "192.0.2.2")
    });
    assert!(vtysh(&network, &names[1], "show evpn mac vni 10010").contains(MAC_A));
    let other = vtysh(&network, &names[1], "show evpn mac vni 10020");
    assert!(!other.contains(MAC_A) && !other.contains(MAC_B), "{other}");
    second.run("a", "ip addr flush dev eth0; ip addr add 10.77.0.2/24 dev eth0; ip link set eth0 up");
    wait_until("the guests reach each other", || first.pings("a", "10.77.0.2"));
    carry_noise(16, (&first, "a"), (&second, "a"), "10.77.0.2");
    carry_noise(16, (&second, "a"), (&first, "a"), "10.77.0.1");
    kept(
        "evpn",
        "three hosts, FRR: addresses learned by BGP, 16 MiB over TCP each way whole, the tunnel's MTU reported to the guests",
    );

    // The guest that moves sends nothing but acknowledgements: the fabric cannot learn from it where it is.
    let gaps = Gaps::of((&second, "a"), (&first, "a"), "10.77.0.1");
    let mut machine = Machine::of_lab(&names[0], "a", &first.runtime_dir());
    let mut measured = Vec::new();
    let hosts = [(&third_run, "192.0.2.3"), (&first.runtime_dir(), "192.0.2.1"), (&third_run, "192.0.2.3")];
    for (number, (run, address)) in hosts.into_iter().enumerate() {
        gaps.forget();
        let (moved, down) = machine.move_to(run, &folder.path().join(format!("move{number}")));
        machine = moved;
        wait_until("BGP has its new place", || learned(&names[1], MAC_A).as_deref() == Some(address));
        let longest = gaps.longest();
        measured.push((longest.saturating_sub(down), format!("down {down} ms, stream silent {longest} ms")));
    }
    let (soonest, _) = measured.iter().min().unwrap();
    assert!(*soonest < 1000, "the stream goes on within 1 s: {measured:?}");
    let measured: Vec<String> = measured.into_iter().map(|(_, words)| words).collect();
    kept(
        "evpn",
        &format!(
            "a VM moves from host to host three times, and a TCP stream to it goes on: {}",
            measured.join("; ")
        ),
    );
}
