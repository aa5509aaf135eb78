//! Descriptions as strangers have them: networks that were apart stay apart, what is not understood
//! is noted, and one bad line refuses only what it is about.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use vmlane_import::{
    Configuration, Format, Machine, Options, configuration, host, libvirt, ovf, ovf_with, references, vmx,
    words,
};

fn read(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn machine(name: &str) -> Machine {
    let text = read(name);
    match name.rsplit_once('.').unwrap().1 {
        "vmx" => vmx(text).unwrap(),
        "ovf" => ovf(text).unwrap().remove(0),
        _ => libvirt(text).unwrap(),
    }
}

fn made(name: &str) -> Configuration {
    configuration(&[machine(name)], &Options::default())
}

fn listed(machine: &Machine, listing: &str) -> Configuration {
    configuration(std::slice::from_ref(machine), &options(read(listing)))
}

fn options(listing: impl AsRef<[u8]>) -> Options {
    Options { hosts: vec![host("esx1", listing).unwrap()], ..Options::default() }
}

/// The VLANs of port groups, in their order.
fn vlans(toml: &str) -> Vec<&str> {
    toml.lines().filter_map(|line| line.strip_prefix("vlan = ")).collect()
}

/// The names of port groups, in their order.
fn names(toml: &str) -> Vec<&str> {
    let groups = toml.split("[[port_group]]\nname = \"").skip(1);
    groups.filter_map(|group| group.split('"').next()).collect()
}

/// The switches of port groups, in their order.
fn switches(toml: &str) -> Vec<&str> {
    let groups = toml.split("[[port_group]]").skip(1);
    let lines = groups.filter_map(|group| group.lines().find_map(|line| line.strip_prefix("switch = \"")));
    lines.map(|rest| rest.trim_end_matches('"')).collect()
}

/// How many different ones there are.
fn kinds(all: &[&str]) -> usize {
    all.iter().collect::<BTreeSet<_>>().len()
}

/// The port groups of cards, in their order.
fn groups(toml: &str) -> Vec<&str> {
    let cards = toml.lines().filter_map(|line| line.split_once("port_group = \""));
    cards.filter_map(|(_, rest)| rest.split('"').next()).collect()
}

fn has_note(done: &Configuration, parts: &[&str]) -> bool {
    let mut notes = done.notes.iter().map(ToString::to_string);
    notes.any(|note| parts.iter().all(|part| note.contains(part)))
}

#[track_caller]
fn noted(done: &Configuration, parts: &[&str]) {
    assert!(has_note(done, parts), "{parts:?} is in no note: {:#?}", done.notes);
}

#[test]
fn networks_that_were_apart_stay_apart_and_are_named() {
    for (file, names) in [
        ("dvs.vmx", &["dvportgroup-101", "dvportgroup-202"][..]),
        ("pvn.vmx", &["00 00 00 00 00 01\"", "00 00 00 00 00 02\""]),
        ("custom.vmx", &["VMnet2", "/dev/vmnet2", "ethernet2"]),
        ("vds.xml", &["dvportgroup-1\"", "dvportgroup-2\""]),
        ("portgroups.xml", &["\"prod\"", "\"dmz\""]),
        ("slots.vmx", &["ethernet0", "ethernet1"]),
    ] {
        let done = made(file);
        let (groups, switches) = (groups(&done.toml), switches(&done.toml));
        assert!(kinds(&groups) == names.len() && kinds(&switches) == names.len(), "{file}: {}", done.toml);
        for (name, group) in names.iter().zip(&groups) {
            noted(&done, &[name, group]);
        }
        // Neither vmlane's own port group nor its own switch is theirs.
        assert!(!groups.contains(&"default") && !switches.contains(&"default"), "{file}: {}", done.toml);
    }
    assert_eq!(switches(&made("many-cards.xml").toml), ["default-2"], "libvirt's network, and not vmlane's");
}

#[test]
fn a_network_of_no_listing_is_not_beside_those_of_the_listing() {
    let options = options(read("portgroups.esxcli.txt"));
    for file in ["dvs.vmx", "pvn.vmx", "custom.vmx"] {
        let done = configuration(&[machine("four-cards.vmx"), machine(file)], &options);
        let switches = switches(&done.toml);
        let (listed, others) = switches.split_at(5);
        assert_eq!(listed, ["vSwitch0", "vSwitch0", "vSwitch0", "vSwitch1", "vSwitch1"], "{file}");
        assert!(others.iter().all(|other| !listed.contains(other)), "{file}: {}", done.toml);
        assert_eq!(kinds(others), others.len(), "{file}: {}", done.toml);
    }
}

#[test]
fn one_vlan_of_two_switches_is_two_networks() {
    let options = options(read("portgroups.esxcli.txt"));
    let done = configuration(&["web.vmx", "four-cards.vmx"].map(machine), &options);
    assert_eq!(vlans(&done.toml), ["0", "10", "0", "10", "\"trunk\""], "{}", done.toml);
    assert_eq!(kinds(&switches(&done.toml)), 2, "{}", done.toml);
    assert_eq!(groups(&done.toml), ["VM-Network", "uplink", "dmz", "trunk", "dmz"], "{}", done.toml);
    assert_eq!(done.toml.matches("[[switch]]").count(), 2, "{}", done.toml);
}

#[test]
fn port_groups_are_on_one_switch_only_if_their_vlans_alone_kept_them_apart() {
    for (interfaces, is_one) in [
        (["bridge'><source bridge='a'/>"; 2], true),
        (["bridge'><source bridge='a'/>", "bridge'><source bridge='b'/>"], false),
        (["bridge'><source bridge='a'/>", "network'><source network='a'/>"], false),
        (["network'><source network='a' portgroup='x'/>", "network'><source network='a'/>"], true),
        (
            ["network'><source network='a' portgroup='x'/>", "network'><source network='b' portgroup='x'/>"],
            false,
        ),
        (
            ["vds'><source switchid='a' portgroupid='x'/>", "vds'><source switchid='a' portgroupid='y'/>"],
            true,
        ),
        (
            ["vds'><source switchid='a' portgroupid='x'/>", "vds'><source switchid='b' portgroupid='x'/>"],
            false,
        ),
        (["direct'><source dev='a' mode='bridge'/>", "direct'><source dev='a' mode='vepa'/>"], false),
        (["server'><source address='a' port='1'/>", "server'><source address='a' port='2'/>"], false),
        (["user'>"; 2], false),
        (
            [
                "bridge'><source bridge='br-int'/><virtualport><parameters interfaceid='1'/></virtualport>",
                "bridge'><source bridge='br-int'/><virtualport><parameters interfaceid='2'/></virtualport>",
            ],
            false,
        ),
    ] {
        let interface = |(rest, number)| {
            format!(
                "<interface type='{rest}<vlan trunk='yes'><tag id='42'/><tag id='{number}'/></vlan><model type='virtio'/></interface>"
            )
        };
        let devices: String = interfaces.iter().zip(43..).map(interface).collect();
        let machine =
            libvirt(format!("<domain><name>t</name><devices>{devices}</devices></domain>")).unwrap();
        let done = configuration(&[machine], &Options::default());
        assert_eq!(vlans(&done.toml), ["[42, 43]", "[42, 44]"]);
        assert_eq!(kinds(&switches(&done.toml)) == 1, is_one, "{interfaces:?}: {}", done.toml);
    }
}

#[test]
fn a_port_group_whose_switch_is_not_known_has_one_of_its_own() {
    let listing = String::from_utf8(read("listings/pg-silent.txt")).unwrap();
    let (switch, rows) = listing.split_once("\n\n").unwrap();
    let (heading, row) = switch.split_once('\n').unwrap();
    let (vm_network, customers) = rows.trim_end().rsplit_once('\n').unwrap();
    let columns = vm_network.split_once('\n').unwrap().0;
    let text = String::from_utf8(read("pg.vmx")).unwrap();
    let machine =
        vmx(text.replace("Department servers VLAN 20 floor", "Customer networks room 12 b")).unwrap();
    let second = |switch: &str| format!("{heading}\n{switch}\n\n{columns}\n{customers}\n");
    let other = row.replace("vSwitch0", "vSwitch9");
    let of = "Customer-networks-room-12-b";
    for (listing, expected, why) in [
        (listing.clone(), ["vSwitch0", "vSwitch0"], None),
        (format!("{switch}\n\n{vm_network}\n{}", second(&other)), ["vSwitch0", "vSwitch9"], None),
        // A row that cannot be read: it is not the switch above it.
        (
            format!("{switch}\n\n{vm_network}\n{}", second("vSwitch9")),
            ["vSwitch0", of],
            Some("without its switch"),
        ),
        // Which of the two switches the VM was on is not known.
        (
            format!("{listing}{}", second(&other)),
            ["vSwitch0", "Customer-networks-room-12-b-3"],
            Some("several switches"),
        ),
    ] {
        let done = configuration(std::slice::from_ref(&machine), &options(&listing));
        let all: BTreeMap<&str, &str> = names(&done.toml).into_iter().zip(switches(&done.toml)).collect();
        let of_cards: Vec<&str> = groups(&done.toml).into_iter().map(|group| all[group]).collect();
        assert_eq!(of_cards, expected, "{listing}");
        why.iter().for_each(|why| noted(&done, &[why, of]));
    }
}

#[test]
fn an_envelope_has_a_network_for_each_card_of_the_largest_configuration() {
    let router = ovf_with(read("many-networks.ovf"), Some("16-cards")).unwrap();
    let done = configuration(&router, &Options::default());
    assert_eq!((kinds(&groups(&done.toml)), kinds(&switches(&done.toml))), (16, 16), "{}", done.toml);
}

#[test]
fn many_networks_stay_apart_to_the_last() {
    let machines: Vec<Machine> = (0..500)
        .map(|number| {
            let mut text = format!("config.version = \"8\"\ndisplayName = \"vm{number}\"\n");
            for card in 0..10 {
                text += &format!(
                    "ethernet{card}.present = \"TRUE\"\nethernet{card}.virtualDev = \"vmxnet3\"\nethernet{card}.networkName = \"n{number}.{card}\"\n"
                );
            }
            vmx(text).unwrap()
        })
        .collect();
    let done = configuration(&machines, &Options::default());
    assert_eq!((groups(&done.toml).len(), kinds(&switches(&done.toml))), (5000, 5000));
}

#[test]
fn vmci_reaches_only_whom_it_reached() {
    let vmci = |lines: &str| {
        let text = format!("config.version = \"8\"\ndisplayName = \"t\"\nvmci0.present = \"TRUE\"\n{lines}");
        configuration(&[vmx(text).unwrap()], &Options::default())
    };
    for lines in ["", "vmci0.unrestricted = \"FALSE\"\n", "vmci0.unrestricted = \"perhaps\"\n"] {
        assert!(vmci(lines).toml.contains("restricted = true\n"), "{lines}");
    }
    let open = vmci("vmci0.unrestricted = \"TRUE\"\n");
    assert!(!open.toml.contains("restricted"), "{}", open.toml);
    noted(&open, &["vmci0.unrestricted"]);
    // So it is with VMCI in an envelope, and with Linux's vhost-vsock.
    for file in ["appliance.ovf", "virtio.xml"] {
        assert!(made(file).toml.contains("restricted = true\n"), "{file}");
    }
}

#[test]
fn filters_and_shares_are_noted() {
    let card = "config.version = \"8\"\nethernet0.present = \"TRUE\"\nethernet0.virtualDev = \"vmxnet3\"\n";
    for (line, part) in [
        ("ethernet0.filter4.name = \"dvfilter-maclearn\"", "ethernet0.filter4.name"),
        ("vmci.filter.enable = \"TRUE\"", "vmci.filter.enable"),
        ("sched.cpu.shares = \"high\"", "sched.cpu.shares"),
        ("sched.scsi0:0.shares = \"2000\"", "sched.scsi0:0.shares"),
        ("ethernet0.shares = \"high\"", "ethernet0.shares"),
    ] {
        let machine = vmx(format!("{card}{line}\n")).unwrap();
        noted(&configuration(&[machine], &Options::default()), &[part]);
    }
}

#[test]
fn every_image_has_its_format() {
    let drives = |machine: &Machine| {
        let words = words("t", machine);
        words.into_iter().filter(|word| word.starts_with("if=none")).collect::<Vec<String>>()
    };
    let cdrom = machine("windows.vmx");
    let iso = drives(&cdrom).into_iter().find(|drive| drive.contains(".iso")).unwrap();
    assert!(iso.contains("format=raw"), "{iso}");
    let disk = "<disk type='file'><source file='/d.img'/><target dev='vda' bus='virtio'/></disk>";
    let bare =
        libvirt(format!("<domain type='kvm'><name>t</name><devices>{disk}</devices></domain>")).unwrap();
    assert_eq!(drives(&bare), ["if=none,id=disk0,file=/d.img,format=raw"]);
    // QEMU would take a folder of the host for a disk.
    let fat = disk.replace("<source", "<driver type='fat'/><source");
    let fat = libvirt(format!("<domain type='kvm'><name>t</name><devices>{fat}</devices></domain>")).unwrap();
    assert!(fat.disks.is_empty() && fat.notes[0].to_string().contains("\"fat\""), "{:?}", fat.notes);
}

#[test]
fn disks_outside_of_the_folder_are_noted() {
    for file in [
        "/etc/shadow",
        "../other/a.vmdk",
        "C:\\\\VMs\\\\a.vmdk",
        "[datastore1] web/web.vmdk",
        "http://x/a.vmdk",
    ] {
        let text = format!(
            "config.version = \"8\"\nvmci0.present = \"TRUE\"\nscsi0.present = \"TRUE\"\nscsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"{file}\"\n"
        );
        let done = configuration(&[vmx(text).unwrap()], &Options::default());
        noted(&done, &["disk \""]);
    }
}

#[test]
fn envelopes_have_configurations_formats_and_compressed_files() {
    let small = machine("conf.ovf");
    assert_eq!((small.cpus, small.memory_mib, small.nics.len()), (Some(2), Some(4096), 1));
    let images: Vec<_> = small.disks.iter().filter_map(|disk| disk.image.as_ref()).collect();
    assert_eq!(images.iter().map(|image| image.format).collect::<Vec<_>>(), [Format::Vmdk, Format::Qcow2]);
    let done = made("conf.ovf");
    noted(&done, &["configuration \"small\"", "default", "\"large\"", "--configuration"]);
    noted(&done, &["a.vmdk.gz", "gzip", "gunzip"]);
    let large = ovf_with(read("conf.ovf"), Some("large")).unwrap().remove(0);
    assert_eq!((large.cpus, large.memory_mib, large.nics.len()), (Some(24), Some(98304), 2));
    let unknown = ovf_with(read("conf.ovf"), Some("huge")).unwrap_err().to_string();
    assert!(unknown.contains("\"huge\"") && unknown.contains("\"small\", \"large\""), "{unknown}");

    let text = String::from_utf8(read("conf.ovf")).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        ovf(text.replace(from, to)).unwrap().remove(0)
    };
    // Without a default, it is the first; without a declaration, only items of all configurations count.
    assert_eq!(changed(" ovf:default=\"true\"", "").cpus, Some(2));
    let undeclared = changed("DeploymentOptionSection", "OtherSection");
    assert!(undeclared.cpus.is_none() && undeclared.nics.len() == 1, "{undeclared:?}");
    let chunks = changed("ovf:href=\"b.qcow2\"", "ovf:href=\"b.qcow2\" ovf:chunkSize=\"1000\"");
    assert!(
        chunks.notes.iter().any(|note| note.to_string().contains("cat b.qcow2.0*")),
        "{:?}",
        chunks.notes
    );
    // An item of the configuration takes the place of the general one; bounds of a range are no hardware.
    let same = changed("<Item ovf:configuration=\"large\"><rasd:InstanceID>1<", "<Item><rasd:InstanceID>1<");
    assert_eq!(same.cpus, Some(2));
    let bound = changed(
        "<Item ovf:configuration=\"large\"><rasd:InstanceID>1<",
        "<Item ovf:bound=\"max\"><rasd:InstanceID>99<",
    );
    assert!(bound.cpus == Some(2) && bound.notes.iter().any(|note| note.what.contains("bound")), "{bound:?}");
    let ovirt = changed("ovf:diskId=\"d2\"", "ovf:diskId=\"d2\" ovf:volume-format=\"RAW\"");
    assert_eq!(ovirt.disks[1].image.as_ref().map(|image| image.format), Some(Format::Raw));
}

#[test]
fn listings_have_names_of_any_length_and_lines_that_are_no_rows() {
    let named = |name: &str| {
        let text = String::from_utf8(read("pg.vmx")).unwrap();
        vmx(text.replace("Department servers VLAN 20 floor", name)).unwrap()
    };
    let done = listed(&named("Standard Switch - L2VPN - Trunk"), "listings/pg-long.txt");
    assert_eq!(vlans(&done.toml), ["0", "\"trunk\""], "{}", done.toml);
    let done = listed(&named("Customer networks room 12 b"), "listings/pg-silent.txt");
    assert_eq!(vlans(&done.toml), ["0", "3120"], "{}", done.toml);
    let done = listed(&machine("pg.vmx"), "listings/pg-prompt.txt");
    assert_eq!((vlans(&done.toml), kinds(&switches(&done.toml))), (vec!["7", "0"], 2), "{}", done.toml);
    // A row with a bad VLAN says nothing of the others.
    let listing = String::from_utf8(read("listings/pg-silent.txt")).unwrap().replace("3120", "5000");
    let done = configuration(&[named("Customer networks room 12 b")], &options(listing));
    assert_eq!((vlans(&done.toml), kinds(&switches(&done.toml))), (vec!["0", "0"], 2), "{}", done.toml);
    noted(&done, &["Customer networks room 12 b", "\"5000\""]);
}

#[test]
fn names_are_read_in_the_encoding_of_their_file() {
    let office = machine("gbk.vmx");
    assert_eq!(office.name, "办公室");
    assert_eq!(office.disks[0].image.as_ref().map(|image| image.file.as_str()), Some("办公室.vmdk"));
    let done = made("gbk.vmx");
    assert!(done.toml.contains("网络一") && done.toml.contains("网络二"), "{}", done.toml);
    // Without it, names stay apart, and each is noted.
    let unnamed: Vec<u8> =
        read("gbk.vmx").split_inclusive(|byte| *byte == b'\n').skip(1).collect::<Vec<_>>().concat();
    let done = configuration(&[vmx(unnamed).unwrap()], &Options::default());
    assert_eq!(groups(&done.toml).iter().collect::<BTreeSet<_>>().len(), 2, "{}", done.toml);
    let count = done.notes.iter().filter(|note| note.then.contains("encoding")).count();
    assert_eq!(count, 4, "the VM, two networks and a disk: {:#?}", done.notes);
    let domain = b"<?xml version='1.0' encoding='GBK'?><domain><name>\xcd\xf8\xc2\xe7</name></domain>";
    assert_eq!(libvirt(domain).unwrap().name, "网络");
}

#[test]
fn what_is_lost_is_noted() {
    let done = made("suspended.vmx");
    for part in [
        "checkpoint.vmState",
        "scsi0.sharedBus",
        "scsi0:0.sharing",
        "serial2.present",
        "pciPassthru1.present",
        "sharedFolder0.present",
    ] {
        noted(&done, &[part]);
    }
    let words = words("t", &machine("suspended.vmx"));
    let uuid = ["-uuid", "564d0000-0000-0000-0000-000000000001"].map(String::from);
    assert!(words.windows(2).any(|two| two == uuid), "{words:?}");
}

#[test]
fn domains_that_are_no_pcs_are_refused_and_kernels_noted() {
    let arm = libvirt(read("refused/arm.xml")).unwrap_err().to_string();
    assert!(arm.contains("aarch64") && arm.contains("x86_64"), "{arm}");
    let arm = vmx("config.version = \"8\"\nguestOS = \"arm-debian12-64\"\n").unwrap_err().to_string();
    assert!(arm.contains("arm-debian12-64") && arm.contains("x86_64"), "{arm}");
    for guest in [" osType='arm-debian12-64'>", "><OSType>Debian12_arm64</OSType>"] {
        let system = format!("<OperatingSystemSection{guest}</OperatingSystemSection>");
        let envelope = format!("<Envelope><VirtualSystem>{system}</VirtualSystem></Envelope>");
        let arm = ovf(envelope).unwrap_err().to_string();
        assert!(arm.contains("arm") && arm.contains("x86_64"), "{arm}");
    }
    for (domain, part) in [
        ("<domain type='lxc'><os><type>exe</type></os></domain>", "lxc"),
        ("<domain type='xen'><os><type>linux</type></os></domain>", "\"linux\""),
        ("<domain type='kvm'><os><type arch='s390x'>hvm</type></os></domain>", "s390x"),
    ] {
        let error = libvirt(domain).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let os = "<os><type arch='x86_64' machine='pc-i440fx-2.9'>hvm</type><kernel>/k</kernel><cmdline>ro</cmdline></os>";
    let direct = libvirt(format!("<domain type='xen'><name>t</name>{os}</domain>")).unwrap();
    let done = configuration(&[direct], &Options::default());
    for part in ["-kernel", "-append", "pc-i440fx-2.9", "domain type \"xen\""] {
        noted(&done, &[part]);
    }
}

#[test]
fn a_trunk_of_one_tag_is_a_trunk() {
    assert_eq!(vlans(&made("trunk1.xml").toml), ["[42]"]);
    let text = String::from_utf8(read("trunk1.xml")).unwrap();
    let native = text.replace("<tag id='42'/>", "<tag id='42' nativeMode='untagged'/><tag id='4095'/>");
    let done = configuration(&[libvirt(native).unwrap()], &Options::default());
    assert_eq!(vlans(&done.toml), ["[42]"]);
    noted(&done, &["nativeMode"]);
    noted(&done, &["\"4095\""]);
}

#[test]
fn the_address_in_use_is_taken() {
    let mac = |text: &str| vmx(text).unwrap().nics[0].mac.map(|mac| mac.to_string());
    let text = String::from_utf8(read("addr.vmx")).unwrap();
    assert_eq!(mac(&text).as_deref(), Some("00:0c:29:00:00:01"));
    assert_eq!(mac(&text.replace("\"generated\"", "\"vpx\"")).as_deref(), Some("00:0c:29:00:00:01"));
    assert_eq!(mac(&text.replace("\"generated\"", "\"static\"")).as_deref(), Some("00:50:56:00:00:99"));
    noted(&made("addr.vmx"), &["00:50:56:00:00:99"]);
}

#[test]
fn one_bad_line_refuses_only_what_it_is_about() {
    assert_eq!(machine("trailing.vmx").nics.len(), 1);
    let text = String::from_utf8(read("pg.vmx")).unwrap();
    let broken = configuration(&[vmx(format!("{text}nonsense\n")).unwrap()], &Options::default());
    assert_eq!(groups(&broken.toml).len(), 2);
    noted(&broken, &["line 11", "nonsense"]);
    // Of a card's network, nothing is taken then, lest the card come into another one.
    let card = text.replace("\"Department servers VLAN 20 floor\"", "\"VM Network");
    let done = configuration(&[vmx(card).unwrap()], &Options::default());
    assert_eq!(groups(&done.toml), ["VM-Network", "t-ethernet1"], "{}", done.toml);
    let twice = configuration(
        &[vmx(format!("{text}ethernet1.networkName = \"VM Network\"\n")).unwrap()],
        &Options::default(),
    );
    assert_eq!(groups(&twice.toml), ["VM-Network", "t-ethernet1"], "{}", twice.toml);
    noted(&twice, &["ethernet1.networkName", "twice"]);
}

#[test]
fn slots_addresses_and_cids_that_are_taken_are_left_out_with_a_note() {
    let done = made("slots.vmx");
    assert_eq!(done.toml.matches("slot = 192").count(), 1, "{}", done.toml);
    noted(&done, &["ethernet1", "slot 192", "ethernet0"]);
    let text = String::from_utf8(read("web.vmx")).unwrap();
    let both = [vmx(&text).unwrap(), vmx(&text).unwrap()];
    let done = configuration(&both, &Options::default());
    assert_eq!(done.toml.matches("mac = ").count(), 1, "{}", done.toml);
    noted(&done, &["00:50:56:a1:02:03", "web: ethernet0"]);
    assert!(done.toml.contains("cid = 1498434521\n") && done.toml.contains("cid = 3\n"), "{}", done.toml);
    noted(&done, &["CID 1498434521", "web"]);
}

#[test]
fn files_of_other_kinds_are_named() {
    let utf_16: Vec<u8> = "\u{feff}config.version".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let draft = "<Envelope xmlns:ovf='x' ovf:version='0.9'><References/><Content/></Envelope>";
    for (error, part) in [
        (vmx(&utf_16).map(drop), "UTF-16"),
        (ovf(&utf_16).map(drop), "UTF-16"),
        (host("e", &utf_16).map(drop), "UTF-16"),
        (ovf(b"\x1f\x8b\x08").map(drop), "gunzip"),
        (ovf([vec![b'a'; 257], b"ustar\0".to_vec()].concat()).map(drop), ".ova"),
        (ovf(draft).map(drop), "OVF 0.9"),
        (ovf(read("web.vmx")).map(drop), "vmlane import vmx"),
        (libvirt(read("pair.ovf")).map(drop), "vmlane import ovf"),
        (vmx(read("plain.xml")).map(drop), "vmlane import libvirt"),
        (host("e", read("web.vmx")).map(drop), ".vmx"),
        (vmx(read("portgroups.esxcli.txt")).map(drop), "--listing"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_fail_otherwise_than_by_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        at in 0..6000_usize,
        file in prop::sample::select(vec![
            "gbk.vmx", "suspended.vmx", "conf.ovf", "vds.xml", "cdrom-and-pool.xml", "hosts/both/esx1.txt",
            "hosts/distributed/esx1.txt", "hosts/two-switches/esx1.txt", "hosts/trunks/esx1.txt",
        ]),
    ) {
        let mut text = read(file);
        let at = at % (text.len() + 1);
        text.splice(at..(at + bytes.len() / 8).min(text.len()), bytes.iter().copied().take(40));
        for source in [&bytes, &text] {
            let mut machines: Vec<Machine> = vmx(source).into_iter().chain(libvirt(source)).collect();
            machines.extend(ovf(source).unwrap_or_default());
            let hosts: Vec<_> = host("esx1", source).into_iter().collect();
            let _ = references(&mut std::io::Cursor::new(source));
            let done = configuration(&machines, &Options { hosts, ..Options::default() });
            for (name, machine) in done.names.iter().zip(&machines) {
                name.iter().for_each(|name| drop(words(name, machine)));
            }
        }
    }
}
