use super::*;

#[test]
fn names_cids_and_addresses_follow_the_order() {
    let spec = LabSpec::new("t")
        .device("vmci")
        .and_then(|s| s.device("qemu-e1000"))
        .and_then(|s| s.device("qemu-virtio-net"))
        .unwrap();
    let guests = spec.guests();
    assert_eq!(guests[1].name, "b");
    assert_eq!(guests[1].cid, Some(4));
    assert_eq!(guests[1].nics[0].ipv4, "10.77.0.2/24");
    assert_eq!(guests[1].nics[0].ipv6, "fd77::2/64");
    assert_eq!(guests[1].nics[1].ipv4, "10.78.0.2/24");
    assert_ne!(guests[0].nics[0].mac, guests[1].nics[0].mac);
}

#[test]
fn sixty_four_cards_have_addresses_in_networks_of_their_own() {
    let spec = LabSpec { devices: vec!["virtio-net".parse().unwrap(); 64], ..LabSpec::new("t") };
    spec.check().unwrap();
    let nics = spec.guests().remove(1).nics;
    let network = |address: &str| {
        let (address, _) = address.split_once('/').unwrap();
        match address.parse().unwrap() {
            std::net::IpAddr::V4(address) => address.octets()[..3].to_vec(),
            std::net::IpAddr::V6(address) => address.octets()[..8].to_vec(),
        }
    };
    let networks: std::collections::BTreeSet<_> =
        nics.iter().flat_map(|nic| [network(&nic.ipv4), network(&nic.ipv6)]).collect();
    assert_eq!((nics.len(), networks.len()), (64, 128));
}

#[test]
fn names_go_on_after_z() {
    let name = |index| guest_name(index);
    assert_eq!([0, 25, 26, 27, 51, 52].map(name), ["a", "z", "aa", "ab", "az", "ba"]);
    let spec = LabSpec { guests: MOST_GUESTS, ..LabSpec::new("t") };
    let mut names: Vec<String> = spec.guests().into_iter().map(|guest| guest.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), MOST_GUESTS);
}

#[test]
fn lists_are_for_one_or_for_all() {
    let mut spec = LabSpec::new("t");
    spec.kernels = vec!["5.10".into(), "7.2".into()];
    spec.check().unwrap();
    assert_eq!(spec.guests()[1].kernel, "7.2");
    spec.guests = 3;
    assert!(spec.check().unwrap_err().to_string().contains("one for each of the 3"));
    spec.kernels = vec!["4.19".into()];
    assert!(spec.check().unwrap_err().to_string().contains("5.10, 6.1, 6.12, 7.2"));
}

#[test]
fn a_guest_under_user_mode_linux_is_as_it_can_be() {
    let mut spec = LabSpec::new("t").device("virtio-net").and_then(|s| s.device("virtio-vsock")).unwrap();
    spec.machines = vec![Machine::Uml];
    spec.check().unwrap();
    assert_eq!(spec.kernels_used(), [UML_KERNEL]);
    let why = |change: &dyn Fn(&mut LabSpec)| {
        let mut changed = spec.clone();
        change(&mut changed);
        changed.check().unwrap_err().to_string()
    };
    assert!(why(&|spec| spec.cpus = 2).contains("no SMP"));
    assert!(why(&|spec| spec.kernels = vec!["6.12".into()]).contains("leave --kernel away"));
    assert!(why(&|spec| spec.qemu = Some("7.2".into())).contains("leave --qemu away"));
    assert!(why(&|spec| spec.devices = vec!["qemu-e1000".parse().unwrap()]).contains("virtio-vsock"));
    let mut pci = spec.clone();
    pci.devices =
        vec!["vmci".parse().unwrap(), "a:vmxnet3".parse().unwrap(), "b:virtio-net".parse().unwrap()];
    pci.check().unwrap();
    assert_eq!(pci.kernels_used(), [UML_PCI_KERNEL]);
    pci.kernels = vec![UML_KERNEL.into()];
    assert!(pci.check().unwrap_err().to_string().contains("no PCI bus; leave --kernel away"));
    (pci.devices, pci.kernels) = (spec.devices.clone(), vec![UML_PCI_KERNEL.into()]);
    pci.check().unwrap();
    assert_eq!(pci.kernels_used(), [UML_PCI_KERNEL]);
    assert!(
        why(&|spec| (spec.machines, spec.kernels) = (vec![], vec![UML_KERNEL.into()]))
            .contains("add --machine uml")
    );
    assert!(why(&|spec| spec.machines = vec![Machine::Uml; 3]).contains("one for each of the 2"));
}

#[test]
fn beside_qemu_user_mode_linux_has_what_speaks_with_it() {
    let mut spec = LabSpec::new("t").device("vmci").and_then(|s| s.device("vmxnet3:mtu=9000")).unwrap();
    spec.machines = vec![Machine::Q35, Machine::Uml];
    spec.kernels = vec!["7.2".into()];
    spec.check().unwrap();
    let guests = spec.guests();
    let kernels: Vec<&str> = guests.iter().map(|guest| guest.kernel.as_str()).collect();
    assert_eq!(kernels, ["7.2", UML_KERNEL]);
    let asked: Vec<Device> = spec.devices.iter().map(|given| given.device.clone()).collect();
    assert_eq!(guests[0].devices, asked);
    assert_eq!(guests[1].devices[0], Device::VirtioVsock);
    assert_eq!((guests[1].nics[0].device.as_str(), guests[1].cid), ("virtio-net:mtu=9000", Some(4)));
    assert_eq!(guests[1].nics[0].mtu, Some(9000));
}

#[test]
fn a_device_for_one_guest_is_that_guests_alone() {
    let mut spec = LabSpec::new("t");
    for device in ["a:vmci", "b:virtio-vsock", "vmxnet3", "b:virtio-net", "a:vmxnet3:mtu=9000"] {
        spec = spec.device(device).unwrap();
    }
    spec.check().unwrap();
    let devices = |guest: &GuestSpec| guest.devices.iter().map(Device::to_string).collect::<Vec<_>>();
    let guests = spec.guests();
    assert_eq!(devices(&guests[0]), ["vmci", "vmxnet3", "vmxnet3:mtu=9000"]);
    assert_eq!(devices(&guests[1]), ["virtio-vsock", "vmxnet3", "virtio-net"]);
    // The second card of either is in the second network.
    let second = |guest: &GuestSpec| guest.nics[1].ipv4.clone();
    assert_eq!((second(&guests[0]), second(&guests[1])), ("10.78.0.1/24".into(), "10.78.0.2/24".into()));
    assert_eq!((guests[0].cid, guests[1].cid), (Some(3), Some(4)));

    let why = |devices: &[&str]| {
        let mut spec = LabSpec::new("t");
        spec.devices = devices.iter().map(|text| text.parse().unwrap()).collect();
        spec.check().unwrap_err().to_string()
    };
    assert!(why(&["c:vmci"]).contains("no guest \"c\"; it has a, b"));
    assert!(why(&["vmci", "a:virtio-vsock"]).contains("guest a was given 2"));
    assert!(why(&["a:vmxnet3:vlan=10", "b:virtio-net"]).contains("card 0 of every guest"));
    assert!(why(&["a:vmxnet3", "b:qemu-e1000"]).contains("same switch"));
    // The VMMs' own cards meet on one bridge, and not on another kind of switch.
    let mut own =
        LabSpec::new("t").device("a:qemu-virtio-net:tap").and_then(|s| s.device("b:uml-vector")).unwrap();
    own.machines = vec![Machine::Q35, Machine::Uml];
    own.check().unwrap();
    own.devices[0] = "a:qemu-virtio-net".parse().unwrap();
    assert!(own.check().unwrap_err().to_string().contains("same switch"));
    // Named, a device is not exchanged for what a machine has instead.
    let mut mixed = LabSpec::new("t").device("b:vmci").unwrap();
    mixed.machines = vec![Machine::Q35, Machine::Uml];
    mixed.check().unwrap();
    assert_eq!(
        (&mixed.guests()[1].devices[..], &mixed.guests()[1].kernel[..]),
        (&[Device::Vmci][..], UML_PCI_KERNEL)
    );
}

#[test]
fn cards_are_spread_over_several_uplinks() {
    let mut spec = LabSpec::new("t").device("vmxnet3").unwrap();
    (spec.guests, spec.uplinks) = (6, 4);
    spec.check().unwrap();
    let networks = |spec: &LabSpec| {
        let of = |guest: GuestSpec| guest.nics.iter().map(|nic| nic.network).collect::<Vec<_>>();
        spec.guests().into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(networks(&spec).concat(), [0, 1, 2, 3, 0, 1]);
    assert_eq!(spec.guests()[2].nics[0].ipv4, "10.79.0.3/24");
    let counts: Vec<usize> = spec.networks().iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 2, 1, 1]);
    spec.guests = 1;
    assert_eq!(spec.networks().len(), 4, "networks of uplinks are there without guests");
    let three = spec.clone().device("vmxnet3").and_then(|spec| spec.device("virtio-net")).unwrap();
    three.check().unwrap();
    assert_eq!(networks(&three), [[0, 1, 2]]);
    let why = |change: &dyn Fn(&mut LabSpec)| {
        let mut changed = three.clone();
        change(&mut changed);
        changed.check().unwrap_err().to_string()
    };
    let mut beside =
        LabSpec::new("t").device("vmxnet3").and_then(|s| s.device("qemu-virtio-net:tap")).unwrap();
    (beside.guests, beside.uplinks) = (1, 1);
    beside.check().unwrap();
    assert_eq!((beside.host_networks(0), beside.host_bridges()), (vec![0, 1], vec![1]));
    beside.devices.reverse();
    assert!(beside.check().unwrap_err().to_string().contains("first card, which is qemu-virtio-net:tap"));
    let own = LabSpec::new("t").device("virtio-net").and_then(|spec| spec.device("uml-vector")).unwrap();
    let mut own = LabSpec { machines: vec![Machine::Uml], ..own };
    own.check().unwrap();
    own.uplinks = 1;
    assert!(own.check().unwrap_err().to_string().contains("uml-vector in a lab with an uplink"));
    assert_eq!(three.host_networks(0), [0, 1]);
    assert_eq!(three.host_networks(1), [2, 3]);
    assert!(why(&|spec| spec.uplinks = 2).contains("guest a has 3 cards and the lab 2 uplinks"));
    assert!(why(&|spec| spec.uplinks = 5).contains("uplinks = 5"));
    assert!(why(&|spec| spec.devices = vec!["vmxnet3:vlan=7".parse().unwrap()]).contains("without a VLAN"));
    assert!(why(&|spec| spec.devices = vec!["vmci".parse().unwrap()]).contains("add --device vmxnet3"));
}

#[test]
fn a_processor_is_qemus() {
    let mut spec = LabSpec::new("t").device("virtio-net").unwrap();
    for (cpu, good) in [("max", true), ("Haswell-v4,-avx2", true), ("", false), ("-x", false), ("a b", false)]
    {
        spec.cpu = Some(cpu.into());
        assert_eq!(spec.check().is_ok(), good, "{cpu:?}");
    }
    (spec.machines, spec.cpu) = (vec![Machine::Uml], Some("max".into()));
    assert!(spec.check().unwrap_err().to_string().contains("leave --cpu away"));
}

#[test]
fn forwards() {
    let forward: Forward = "a:5000=b:6000".parse().unwrap();
    assert_eq!((forward.port, forward.to.as_str(), forward.to_port), (5000, "b", 6000));
    assert!("a=b".parse::<Forward>().is_err());
    let mut spec = LabSpec::new("t").device("vmci").unwrap();
    spec.forwards = vec!["a:1=z:1".parse().unwrap()];
    assert!(spec.check().unwrap_err().to_string().contains("no guest \"z\""));
}
