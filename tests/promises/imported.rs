//! VMs of VMware with several networks, imported and booted: their cards have the names and addresses of
//! before, and reach those that they reached.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use vmlane_lab::{LabSpec, Running};
use vmlane_tests::alone::{output, vmlane};
use vmlane_tests::{Bed, TIMEOUT, kept, lab, python, wait_until};

vmlane_tests::tests! {
    guests { vms_of_esxi_keep_names_addresses_and_vlans }
    long { vms_of_other_vmware_products_keep_their_networks }
}

/// A VM's description, and what is known of it without vmlane.
struct Case {
    /// In the fixtures of `import`, whose tests name the public file that it has the shape of.
    file: &'static str,
    /// How it names its VM.
    name: &'static str,
    words: &'static [&'static str],
    /// In the order of the file.
    cards: &'static [Card],
    /// Names and networks of VLAN devices that the guest has on a card.
    vlans: &'static [(&'static str, &'static str)],
}

/// Name in the guest and address, both empty if the description has none, and network.
type Card = (&'static str, &'static str, &'static str);

/// A slot above 1023 is a function of a bridge: Linux counts 1184 as 160 + 1, and 2240 as 192 + 2. The
/// listing has the same VLAN on two switches, two networks that are one VLAN, and a trunk.
const ESXI: Case = Case {
    file: "ten-cards.vmx",
    name: "\"ten cards\"",
    words: &["vmx", "--listing", "portgroups.esxcli.txt"],
    cards: &[
        ("ens192", "00:50:56:10:00:00", "vSwitch0, 10"),
        ("ens34", "00:50:56:10:00:01", "vSwitch0, 10"),
        ("ens224", "00:50:56:10:00:02", "vSwitch0, 10"),
        ("ens256", "00:50:56:10:00:03", "vSwitch1, 10"),
        ("ens161", "00:50:56:10:00:04", "vSwitch1, 10"),
        ("ens193", "00:50:56:10:00:05", "vSwitch0, untagged"),
        ("ens225", "00:50:56:10:00:06", "vSwitch0, untagged"),
        ("ens257", "00:50:56:10:00:07", "vSwitch0, 10"),
        ("ens162", "00:50:56:10:00:08", "vSwitch0, untagged"),
        ("ens194", "00:50:56:10:00:09", "vSwitch1, untagged"),
    ],
    vlans: &[("ens194.10", "vSwitch1, 10"), ("ens194.20", "vSwitch1, 20")],
};

const WORKSTATION: Case = Case {
    file: "three-networks.vmx",
    name: "\"three networks\"",
    words: &["vmx"],
    cards: &[
        ("ens32", "00:0c:29:10:00:0a", "bridged"),
        ("ens33", "00:50:56:2a:00:01", "nat"),
        ("ens34", "00:0c:29:10:00:1e", "hostonly"),
    ],
    vlans: &[],
};

const ENVELOPE: Case = Case {
    file: "many-networks.ovf",
    name: ">Router<",
    words: &["ovf", "--configuration", "8-cards"],
    cards: &[
        ("", "", "0"),
        ("", "", "1"),
        ("", "", "2"),
        ("", "", "3"),
        ("", "", "4"),
        ("", "", "5"),
        ("", "", "6"),
        ("", "", "7"),
    ],
    vlans: &[],
};

const GUESTS: [&str; 2] = ["a", "b"];
const BROADCAST: &str = "ff:ff:ff:ff:ff:ff";

fn vms_of_esxi_keep_names_addresses_and_vlans() {
    check(&ESXI);
}

fn vms_of_other_vmware_products_keep_their_networks() {
    check(&WORKSTATION);
    check(&ENVELOPE);
}

/// The address of the sibling's card: another fourth octet.
fn address(guest: &str, mac: &str) -> String {
    if guest == "a" || mac.is_empty() { mac.into() } else { format!("{}0b{}", &mac[..9], &mac[11..]) }
}

/// What `vmlane import` makes of the VM, as a, and of a sibling with addresses of its own, as b.
fn imported(case: &Case, folder: &Path) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/import/tests/fixtures");
    let text = std::fs::read_to_string(fixtures.join(case.file)).unwrap();
    assert_eq!(text.matches(case.name).count(), 1, "{}", case.name);
    let mut import = vmlane();
    import.arg("import").args(case.words).current_dir(&fixtures);
    for guest in GUESTS {
        let name = case.name.replace(|c: char| c.is_alphabetic() || c == ' ', "");
        let (open, close) = name.split_at(1);
        let mut text = text.replace(case.name, &format!("{open}{guest}{close}"));
        for (_, mac, _) in case.cards.iter().filter(|(_, mac, _)| !mac.is_empty()) {
            text = text.replace(mac, &address(guest, mac));
        }
        let file = folder.join(guest).with_extension(Path::new(case.file).extension().unwrap());
        std::fs::write(&file, text).unwrap();
        import.arg(file);
    }
    // The lab gives each guest a CID.
    let config = output(&mut import).replace("vsock = \"none\"", "vsock = \"virtio\"");
    let file = folder.join("imported.toml");
    std::fs::write(&file, config).unwrap();
    file
}

/// An interface of a guest.
struct End {
    /// With the guest's name in front: `a/ens192`.
    name: String,
    mac: String,
    network: &'static str,
}

/// The cards of a guest, which must be those of its description, and the VLAN devices on them.
fn ends(bed: &Bed, case: &Case, guest: &str) -> Vec<End> {
    let shown: Vec<[String; 3]> = serde_json::from_value(python(&bed.guest(guest), "reach name")).unwrap();
    assert_eq!(shown.len(), case.cards.len(), "{}: {shown:?}", case.file);
    let nics = &bed.vm(guest)["nics"];
    let mut ends = Vec::new();
    for (number, (name, mac, network)) in case.cards.iter().enumerate() {
        // A card without slot has its place in the order.
        let card = shown.iter().find(|card| card[0] == *name).unwrap_or(&shown[number]);
        let mac = Some(address(guest, mac)).filter(|mac| !mac.is_empty());
        let mac = mac.unwrap_or_else(|| nics[number]["mac"].as_str().expect("an address").to_owned());
        let name = if name.is_empty() { &card[0] } else { *name };
        let expected = [name, &mac, "vmxnet3"];
        assert_eq!(card.each_ref().map(String::as_str), expected, "{}, guest {guest}: {shown:?}", case.file);
        ends.push(End { name: format!("{guest}/{name}"), mac, network });
    }
    for (name, network) in case.vlans {
        let (card, vlan) = name.split_once('.').expect("CARD.VLAN");
        let line = format!("ip link add link {card} name {name} type vlan id {vlan} && ip link set {name} up");
        bed.guest(guest).sh(&line).unwrap();
        let mac = ends.iter().find(|end| end.name.ends_with(card)).expect("its card").mac.clone();
        ends.push(End { name: format!("{guest}/{name}"), mac, network });
    }
    ends
}

/// By whom, to which address, and where it arrives.
type Arrivals = BTreeSet<[String; 3]>;

/// Between those of one network.
fn expected(ends: &[End]) -> Arrivals {
    let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to)));
    let joined = pairs.filter(|(from, to)| from.network == to.network && from.name != to.name);
    joined
        .flat_map(|(from, to)| [BROADCAST, &to.mac].map(|mac| [&from.name, mac, &to.name].map(str::to_owned)))
        .collect()
}

fn check(case: &Case) {
    let folder = tempfile::tempdir().unwrap();
    let config = Some(imported(case, folder.path()));
    let bed = Bed::up(&LabSpec { daemon_config: config, ..lab("imported", &["virtio-vsock"]) });
    let ends: Vec<End> = GUESTS.iter().flat_map(|guest| ends(&bed, case, guest)).collect();
    let expected = expected(&ends);
    let takers = GUESTS.map(|guest| {
        let taker = bed.guest(guest).spawn(["python3", "/t/reach.py", "take"]).unwrap();
        taker.wait_for("listening", TIMEOUT).unwrap();
        (guest, taker)
    });
    let arrived = || -> Arrivals {
        let of = |(guest, taker): &(&str, Running)| {
            let printed = taker.stdout();
            let (whole, _) = printed.rsplit_once('\n').unwrap_or_default();
            let arrival = |line: &str| {
                let [from, to, card] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
                [from.to_owned(), to.to_owned(), format!("{guest}/{card}")]
            };
            whole.lines().skip(1).map(arrival).collect::<Vec<_>>()
        };
        takers.iter().flat_map(of).collect()
    };
    let macs: BTreeSet<&str> = ends.iter().map(|end| end.mac.as_str()).collect();
    let macs: Vec<&str> = macs.into_iter().collect();
    let give = || {
        for guest in GUESTS {
            bed.guest(guest).sh(&format!("python3 /t/reach.py give {guest} {}", macs.join(" "))).unwrap();
        }
    };
    wait_until("each card has the frames of its network", || {
        give();
        arrived().is_superset(&expected)
    });
    // What is not to arrive has had the time of another turn.
    give();
    let arrived = arrived();
    let astray: Vec<_> = arrived.difference(&expected).collect();
    assert!(astray.is_empty(), "{}: {astray:?}", case.file);
    let (count, pairs) = (ends.len(), expected.len() / 2);
    kept(
        "import",
        &format!(
            "{}, and a sibling: of {} pairs of {count} interfaces, the {pairs} of one network reach each other, no others",
            case.file,
            count * (count - 1)
        ),
    );
    drop(takers);
    bed.finish();
}
