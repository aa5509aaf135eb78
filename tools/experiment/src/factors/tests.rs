//! What factors take, what they refuse, and what cannot be together.

use super::*;

#[test]
fn texts_come_back() {
    let mut factors = Factors::default();
    for (name, text) in [
        ("device", "vmxnet3"),
        ("profile", "vmxnet2-class"),
        ("queues", "4"),
        ("machine", "microvm"),
        ("qemu", "7.2"),
        ("guests", "4"),
        ("boot", "3"),
        ("workers", "2"),
        ("to", "host"),
        ("uplinks", "4"),
        ("mtu", "9000"),
        ("offloads", "tso=off,gro=on"),
        ("host_offloads", "tso=off,gso=off"),
        ("coalesce", "false"),
        ("ring", "256"),
        ("moderation", "4000"),
        ("rate", "1G"),
        ("test", "rr"),
        ("message", "1"),
        ("buffer", "256k"),
        ("sessions", "5"),
        ("nodelay", "true"),
        ("ip", "6"),
    ] {
        factors.set(name, text).unwrap();
        let shown = if name == "device" { "vmxnet3".into() } else { factors.text(name) };
        assert_eq!(shown, text, "{name}");
    }
    assert_eq!(factors.text("device"), "vmxnet3:profile=vmxnet2-class,queues=4");
    assert!(
        factors.id().starts_with("device=vmxnet3:profile=vmxnet2-class,queues=4 machine=microvm qemu=7.2")
    );
    for name in NAMES {
        assert_ne!(factors.text(name), "", "{name}");
    }
}

#[test]
fn values_beyond_reason_are_refused() {
    for (name, text) in [
        ("message", "99999999999999999999"),
        ("message", "18446744073709551615k"),
        ("message", "0"),
        ("buffer", "2G"),
        ("guests", "0"),
        ("boot", "0"),
        ("workers", "0"),
        ("guests", "4294967297"),
        ("rate", "99999999999999999999G"),
        ("offloads", "tso"),
        ("kernel", "4.4"),
        ("machine", "pc"),
        ("qemu", "6.0"),
        ("device", "vmxnet4"),
        ("queues", "1"),
        ("ip", "5"),
        ("uplinks", "5"),
        ("coalesce", "maybe"),
        ("moderation", "on"),
        ("moderation", "100"),
        ("colour", "red"),
    ] {
        assert!(Factors::default().set(name, text).is_err(), "{name} = {text}");
    }
}

#[test]
fn what_cannot_be_names_the_factor() {
    let why = |pairs: &[(&str, &str)]| {
        let mut factors = Factors::default();
        pairs.iter().for_each(|(name, text)| factors.set(name, text).unwrap());
        factors.impossible().map(|(name, _)| name)
    };
    assert_eq!(why(&[]), None);
    assert_eq!(why(&[("mtu", "9000")]), Some("mtu"));
    assert_eq!(why(&[("tool", "netperf")]), Some("tool"));
    assert_eq!(why(&[("device", "qemu-e1000"), ("to", "host")]), Some("to"));
    assert_eq!(why(&[("device", "vmxnet3"), ("guests", "3")]), Some("guests"));
    let host = [("device", "vmxnet3"), ("to", "host"), ("nics", "4")];
    assert_eq!(why(&host), Some("nics"));
    assert_eq!(why(&[&host[..], &[("uplinks", "4"), ("rate", "10G")]].concat()), None);
    assert_eq!(why(&[("device", "vmxnet3"), ("uplinks", "2")]), Some("uplinks"));
    assert_eq!(why(&[("device", "vmxnet3"), ("host_offloads", "tso=off")]), Some("host_offloads"));
    assert_eq!(why(&[("device", "qemu-vmxnet3"), ("coalesce", "true")]), Some("coalesce"));
    assert_eq!(why(&[("device", "qemu-vmxnet3"), ("workers", "2")]), Some("workers"));
    let older = [("device", "vmxnet3"), ("profile", "vmxnet2-class"), ("moderation", "off")];
    assert_eq!(why(&older), Some("moderation"));
    assert_eq!(why(&[("device", "vmxnet3"), ("moderation", "4000")]), None);
    assert_eq!(why(&[("device", "qemu-virtio-net:tap"), ("to", "host"), ("guests", "1")]), None);
    assert_eq!(why(&[("machine", "microvm")]), Some("machine"));
    assert_eq!(why(&[("machine", "uml"), ("device", "virtio-net")]), Some("kernel"));
    assert_eq!(why(&[("kernel", "7.2um1"), ("device", "virtio-net")]), Some("kernel"));
    let uml = [("machine", "uml"), ("kernel", "7.2um1"), ("device", "virtio-vsock")];
    assert_eq!(why(&uml), None);
    assert_eq!(why(&[&uml[..], &[("cpus", "2")]].concat()), Some("cpus"));
    let pci = [("machine", "uml"), ("kernel", "7.2pci"), ("device", "vmci")];
    assert_eq!(why(&pci), None);
    assert_eq!(why(&[&pci[..], &[("kernel", "7.2um1")]].concat()), Some("kernel"));
    let own = [("machine", "uml"), ("kernel", "7.2um1"), ("device", "uml-vector")];
    assert_eq!(why(&own), None);
    assert_eq!(why(&[&own[..], &[("kernel", "7.2pci")]].concat()), None);
    assert_eq!(why(&own[2..]), Some("machine"));
    assert_eq!(why(&[&own[..], &[("to", "host")]].concat()), Some("to"));
    assert_eq!(why(&[&own[..], &[("ring", "256")]].concat()), Some("ring"));
    assert_eq!(why(&[&own[..], &[("workers", "2")]].concat()), Some("workers"));
    assert_eq!(why(&[("device", "vmxnet3"), ("qemu", "7.2")]), Some("qemu"));
    assert_eq!(why(&[("device", "virtio-net"), ("machine", "microvm"), ("qemu", "7.2")]), None);
    assert_eq!(why(&[("device", "vmxnet3"), ("tool", "iperf3"), ("test", "rr")]), Some("test"));
    assert_eq!(why(&[("device", "vmxnet3"), ("guests", "3"), ("to", "host"), ("rate", "1G")]), None);
}
