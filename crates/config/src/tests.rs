//! What a configuration file may contain, and how mistakes in it are reported.

use std::path::Path;

use vmlane_device::vmxnet3::Profile;
use vmlane_switch::{Policy, Rate};
use vmlane_wire::ethernet::Mac;

use crate::limits::SHARED_OUT;
use crate::memory::{address_space, host_memory};
use crate::{Config, DaemonConfig, ForwardConfig, Limits, Mode, Vlan, VmConfig, Vsock, Workers};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("t.toml"), text).map_err(|error| error.to_string())
}

const TWO: &str = "[[vm]]\nname = \"web\"\ncid = 3\n[[vm]]\nname = \"db\"\ncid = 4\n";

#[test]
fn the_example_of_the_contract_is_understood() {
    let config = parse(
        r#"
        [daemon]
        workers = 2
        mode = "poll"

        [limits]
        connections = 10
        overflow_bytes = "8M"

        [[vm]]
        name = "web"
        group = "tenant-1"
        cid = 3
        vsock = "vmci"
        forward = [ { port = 5000, to = "db:6000" } ]
        limits = { connections = 20 }
        restricted = true

        [[vm]]
        name = "db"
        group = "tenant-1"
        cid = 0x7fffffff
        trusted = true
        "#,
    )
    .unwrap();
    assert_eq!(
        config.daemon,
        DaemonConfig { workers: Workers::Count(2), mode: Mode::Poll, ..DaemonConfig::default() }
    );
    let [web, db] = &config.vms[..] else { panic!("{config:?}") };
    assert_eq!((web.name.as_str(), web.group.as_str(), web.cid), ("web", "tenant-1", 3));
    assert_eq!(web.forwards, [ForwardConfig { port: 5000, to_vm: Some("db".into()), to_port: 6000 }]);
    assert_eq!((web.restricted, web.trusted, db.restricted, db.trusted), (true, false, false, true));
    assert_eq!((web.limits.connections, db.limits.connections), (20, 10));
    assert_eq!((web.limits.vmci.overflow_bytes, db.limits.vmci.overflow_bytes), (8 << 20, 8 << 20));
    assert_eq!(db.limits.vmci.doorbells, Limits::default().vmci.doorbells);
    assert_eq!(db.cid, 0x7fff_ffff);
}

#[test]
fn a_domain_is_named_once() {
    let with = |web: &str, db: &str| {
        parse(
            &TWO.replace("name = \"web\"", &format!("name = \"web\"\n{web}"))
                .replace("cid = 4", &format!("cid = 4\n{db}")),
        )
    };
    let uuid = "4DEA22B3-1d52-d8f3-2516-782e98ab3fa0";
    let config = with(&format!("domain = \"{uuid}\""), "domain = \"Data Base\"").unwrap();
    let domains: Vec<_> = config.vms.iter().map(|vm| vm.domain.as_deref()).collect();
    assert_eq!(domains, [Some(&*uuid.to_ascii_lowercase()), Some("Data Base")]);
    for (web, db) in [("domain = \"x\"", "domain = \"x\""), ("domain = \"db\"", ""), ("", "domain = \"web\"")]
    {
        let error = with(web, db).unwrap_err();
        assert!(error.contains("give each a domain of its own"), "{error}");
    }
    assert!(with("domain = \"db\"", "domain = \"web\"").is_ok());
    for domain in ["", "a/b", "a\\nb"] {
        let error = with(&format!("domain = \"{domain}\""), "").unwrap_err();
        assert!(error.contains("name or the UUID"), "{error}");
    }
}

#[test]
fn everything_has_a_default_but_name_and_cid() {
    let empty = parse("").unwrap();
    assert_eq!((empty.daemon, empty.vms, empty.uplinks), (DaemonConfig::default(), vec![], vec![]));
    assert_eq!(empty.port_groups.len(), 1, "the default one");
    let config = parse(TWO).unwrap();
    assert_eq!(config.vms[0].group, "default");
    let DaemonConfig { workers, mode, spin_us, .. } = config.daemon;
    assert_eq!((workers, mode, spin_us), (Workers::Auto, Mode::Adaptive, 500));
    assert_eq!(parse("[daemon]\nworkers = \"auto\"").unwrap().daemon.workers, Workers::Auto);
    assert_eq!(config.names(), "web, db");
}

/// A mistake, the line in which it must be found, and words that the message must contain.
const MISTAKES: &[(&str, usize, &[&str])] = &[
    ("[daemon]\nworkres = 1", 2, &["daemon: workres = 1: there is no such key; did you mean workers?"]),
    ("[deamon]\nworkers = 1", 1, &["[deamon]: there is no such table; did you mean [daemon]?"]),
    (
        "[daemon]\nworkers = \"two\"",
        2,
        &["daemon: workers = \"two\": write a whole number, without quotes, or \"auto\""],
    ),
    ("[daemon]\nworkers = \"2\"", 2, &["write the number without quotes: workers = 2"]),
    ("[daemon]\nworkers = 0", 2, &["daemon: workers = 0", "from 1 to 256"]),
    ("[daemon]\nmode = \"fast\"", 2, &["mode = \"fast\"", "\"adaptive\" or \"poll\""]),
    ("[daemon]\nspin_us = -1", 2, &["spin_us = -1", "from 0 to 1000000"]),
    ("[daemon]\nhold = -1", 2, &["daemon: hold = -1", "from 0 to 86400"]),
    ("[daemon\n", 1, &["[daemon"]),
    ("[limits]\nconnections = 0", 2, &["limits: connections = 0", "from 1 to 65536"]),
    ("[limits]\ninbox_bytes = \"1k\"", 2, &["inbox_bytes = \"1k\"", "from 131072 to"]),
    ("[limits]\ninbox_bytes = \"2G\"", 2, &["inbox_bytes = \"2G\"", "to 1073741824"]),
    ("[daemon]\nflood_limit = -1", 2, &["daemon: flood_limit = -1", "from 0 to 100000000"]),
    ("[daemon]\nhuge_pages = \"all\"", 2, &["daemon: huge_pages = \"all\"", "(or \"64M\") from 0 to"]),
    ("[limits]\noverflow_bytes = \"lots\"", 2, &["overflow_bytes = \"lots\"", "(or \"64M\")"]),
    ("[limits]\noverflow_bytes = -5", 2, &["overflow_bytes = -5"]),
    ("[limits]\nsockets = 5", 2, &["limits: sockets = 5: there is no such key; there are", "queue_pairs"]),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", slot = 0 }]",
        4,
        &["slot = 0", "from 1 to 8191"],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", slot = 5 },\n  { model = \"vmxnet3\", slot = 5 }]",
        5,
        &["nic 1: slot = 5: nic 0 is in it"],
    ),
    ("[[port_group]]\nvlan = 10", 1, &["port_group number 1: name is missing"]),
    ("[[port_group]]\nname = \"p\"\nvlan = 4095", 3, &["vlan = 4095", "1 to 4094", "trunk"]),
    ("[[port_group]]\nname = \"p\"\nvlan = [1, 0]", 3, &["vlan = [1, 0]"]),
    (
        "[[port_group]]\nname = \"p\"\nshape = { in = { peak = \"1G\" } }",
        3,
        &["port_group \"p\": shape: in: average is missing", "average = \"1G\""],
    ),
    (
        "[[port_group]]\nname = \"p\"\nshares = 0",
        3,
        &["port_group \"p\": shares = 0; use a number from 1 to 10000"],
    ),
    (
        "[[port_group]]\nname = \"p\"\nshape = { out = { average = \"1G\", peak = \"10M\" } }",
        3,
        &["shape: out: peak = \"10M\" is less than average = \"1G\""],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", shape = { in = { average = \"fast\" } } }]",
        4,
        &["nic 0: shape: in: average = \"fast\"", "from 1000 to"],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", shape = { in = { average = 1000, burst = 64 } } }]",
        4,
        &["shape: in: burst = 64", "bytes from 1500"],
    ),
    (
        "[[port_group]]\nname = \"p\"\nflood_limit = -1",
        3,
        &["port_group \"p\": flood_limit = -1", "from 0 to"],
    ),
    (
        "[[port_group]]\nname = \"p\"\nshape = { ingress = 5 }",
        3,
        &["port_group \"p\": shape: ingress = 5: there is no such key; there are in, out"],
    ),
    (
        "[[port_group]]\nname = \"p\"\nmulticast = \"some\"",
        3,
        &["multicast = \"some\"", "\"snoop\"", "\"flood\""],
    ),
    ("[[port_group]]\nname = \"p\"\n[[port_group]]\nname = \"p\"", 4, &["name = \"p\" is taken"]),
    ("[[uplink]]\ntap = \"t\"", 1, &["uplink number 1: name is missing"]),
    ("[[uplink]]\nname = \"u\"", 1, &["uplink \"u\": add tap = ", "interface = ", "is missing"]),
    ("[[uplink]]\nname = \"u\"\ntap = \"t\"\nvhost_user = \"/s\"", 4, &["tap and vhost_user", "remove one"]),
    ("[[uplink]]\nname = \"u\"\nvhost_user = \"vh0\"", 3, &["vhost_user = \"vh0\"", "absolute path"]),
    ("[[uplink]]\nname = \"u\"\nvhost_user = \"/s\"\nmtu = 100", 4, &["mtu = 100", "1280 to 9190"]),
    ("[[uplink]]\nname = \"u\"\nvhost_user = \"/s\"\nqueues = 2", 4, &["queues is for uplinks with tap"]),
    ("[[uplink]]\nname = \"u\"\ntap = \"t\"\nmtu = 9000", 4, &["mtu is for uplinks with vhost_user"]),
    ("[[uplink]]\nname = \"u\"\ntap = \"t\"\nrole = \"server\"", 4, &["role is for uplinks with vhost_user"]),
    (
        "[[uplink]]\nname = \"u\"\nvhost_user = \"/s\"\nrole = \"listen\"",
        4,
        &["uplink \"u\": role = \"listen\"", "\"client\" (the other switch does)"],
    ),
    (
        "[[uplink]]\nname = \"u\"\nvhost_user = \"/s\"\nowner = \"root\"",
        4,
        &["owner is for uplinks with role = \"server\""],
    ),
    (
        "[[uplink]]\nname = \"u\"\nvhost_user = \"/s\"\nrole = \"server\"\nowner = \"no such user\"",
        5,
        &["uplink \"u\": owner = \"no such user\"", "there is no user"],
    ),
    (
        "[[uplink]]\nname = \"u\"\nvhost_user = \"/s\"\n[[uplink]]\nname = \"v\"\nvhost_user = \"/s\"",
        5,
        &["uplink \"v\"", "name and vhost_user must be its own"],
    ),
    ("[[uplink]]\nname = \"u\"\ntap = \"t\"\ninterface = \"eth1\"", 4, &["tap and interface", "remove one"]),
    ("[[uplink]]\nname = \"u\"\ninterface = \"eth/1\"", 3, &["interface = \"eth/1\""]),
    ("[[uplink]]\nname = \"u\"\ninterface = \"eth1\"\nqueues = 17", 4, &["queues = 17", "first queues"]),
    (
        "[[uplink]]\nname = \"u\"\ninterface = \"t\"\n[[uplink]]\nname = \"v\"\ntap = \"t\"",
        5,
        &["uplink \"v\"", "name and tap must be its own", "uplink \"u\" has"],
    ),
    (
        "[[uplink]]\nname = \"u\"\ntap = \"t\"\n[[uplink]]\nname = \"v\"\ntap = \"t\"",
        5,
        &["uplink \"v\"", "name and tap must be its own", "uplink \"u\" has"],
    ),
    ("[[uplink]]\nname = \"u\"\ntap = \"sixteen-letters-\"", 3, &["tap = ", "at most 15"]),
    ("[[uplink]]\nname = \"u\"\ntap = \"t\"\nqueues = 17", 4, &["uplink \"u\"", "queues = 17", "1 to 16"]),
    ("[[vm]]\ncid = 3", 1, &["vm number 1: name is missing"]),
    ("[[vm]]\nname = \"a\"", 1, &["vm \"a\": cid is missing", "from 3 on"]),
    ("[[vm]]\nname = \"a/b\"\ncid = 3", 2, &["name = \"a/b\"", "letters, digits"]),
    ("[[vm]]\nname = \"..\"\ncid = 3", 2, &["name = \"..\"", "letter or digit first"]),
    ("[[vm]]\nname = \"\"\ncid = 3", 2, &["name = \"\""]),
    ("[[vm]]\nname = \"a:b\"\ncid = 3", 2, &["name = \"a:b\""]),
    ("[[vm]]\nname = \"a\"\ncid = 3\ngroup = \"x y\"", 4, &["group = \"x y\""]),
    ("[[vm]]\nname = \"a\"\ncid = 2", 3, &["vm \"a\": cid = 2", "reserved", "3 or more"]),
    ("[[vm]]\nname = \"a\"\ncid = 0", 3, &["cid = 0", "reserved"]),
    ("[[vm]]\nname = \"a\"\ncid = -1", 3, &["cid = -1", "from 3 to 2147483647"]),
    ("[[vm]]\nname = \"a\"\ncid = 0x80000000", 3, &["cid = 2147483648", "from 3 to 2147483647"]),
    ("[[vm]]\nname = \"a\"\nvsock = \"virtio\"", 1, &["vm \"a\": cid is missing"]),
    ("[[vm]]\nname = \"a\"\ncid = 3\nparent_cid = 4", 4, &["parent_cid works with vsock = \"virtio\" only"]),
    ("[[vm]]\nname = \"a\"\ncid = 3\nvsock = \"virtio\"\nparent_cid = 3", 5, &["parent_cid = 3", "own cid"]),
    (
        "[[vm]]\nname = \"a\"\ncid = 4\nvsock = \"virtio\"\nparent_cid = 3\n[[vm]]\nname = \"b\"\ncid = 3",
        5,
        &["parent_cid = 3", "cid of VM \"b\""],
    ),
    (
        "[[vm]]\nname = \"a\"\nvsock = \"none\"\nnic = [{ model = \"virtio-net\" }]\numl_pci = true",
        5,
        &["uml_pci = true", "no PCI device", "remove it"],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nmovable = true",
        4,
        &["movable = true", "its VMCI device", "11.1", "vsock = \"virtio\""],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\" }, { model = \"vmxnet3\" }]\n\
         movable = true",
        6,
        &["its nic number 2", "model = \"virtio-net\""],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nvsock_role = \"client\"",
        4,
        &["vsock_role works with vsock = \"virtio\" only"],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nvsock = \"virtio\"\nvsock_role = \"both\"",
        5,
        &["vsock_role = \"both\"", "\"client\" (the VMM does)"],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"virtio-net\", role = \"master\" }]",
        4,
        &["role = \"master\"", "\"server\" (the daemon listens)"],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", role = \"client\" }]",
        4,
        &["role is a key of virtio-net only"],
    ),
    ("[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"ne2k\" }]", 4, &["\"ne2k\"", "\"virtio-net\""]),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", packed = true }]",
        4,
        &["packed is a key of virtio-net only"],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"virtio-net\", trapped = true }]",
        4,
        &["trapped is a key of vmxnet3 only"],
    ),
    ("[[vm]]\nname = \"a\"\ncid = 3\nvsock = \"xen\"", 4, &["vsock = \"xen\" is unknown", "\"vmci\""]),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nlimits = { doorbells = 70000 }",
        4,
        &["vm \"a\": limits: doorbells = 70000", "to 65536"],
    ),
    ("[[vm]]\nname = \"a\"\ncid = 3\n[[vm]]\nname = \"a\"\ncid = 4", 5, &["name = \"a\" is taken", "line 2"]),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\n[[vm]]\nname = \"b\"\ncid = 3",
        6,
        &["vm \"b\": cid = 3 is taken by VM \"a\""],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, to = \"db\" }]",
        4,
        &["to = \"db\" is not \"VM:PORT\""],
    ),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, to = \":7\" }]",
        4,
        &["to = \":7\" is not \"VM:PORT\""],
    ),
    ("[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, to = \"b:x\" }]", 4, &["to = \"b:x\" is not"]),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, to = \"b:7\" }]",
        4,
        &["forward 1 -> \"b:7\"", "no VM \"b\"", "known are a"],
    ),
    ("[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, to = \"a:7\" }]", 4, &["its own target"]),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, too = \"a:7\" }]",
        4,
        &["vm \"a\": forward 0: too = \"a:7\": there is no such key; did you mean to?"],
    ),
];

#[test]
fn mistakes_are_reported_with_line_key_value_and_way_out() {
    for (text, line, words) in MISTAKES {
        let error = parse(text).expect_err(text);
        assert!(error.starts_with(&format!("t.toml:{line}: ")), "{text}\n{error}");
        for word in *words {
            assert!(error.contains(word), "{text}\n{error}\nlacks {word}");
        }
    }
}

#[test]
fn forwards_stay_inside_the_group_and_ports_are_used_once() {
    let forwarding = |group: &str, forward: &str| {
        let db = format!("[[vm]]\nname = \"db\"\ncid = 4\ngroup = \"{group}\"\n");
        parse(&format!("{db}[[vm]]\nname = \"web\"\ncid = 3\nforward = [{forward}]"))
    };
    assert!(forwarding("default", "{ port = 1, to = \"db:7\" }, { port = 2, to = \"db:7\" }").is_ok());
    let error = forwarding("other", "{ port = 1, to = \"db:7\" }").unwrap_err();
    for word in ["\"web\" is in group \"default\"", "\"db\" in group \"other\"", "no traffic crosses groups"]
    {
        assert!(error.contains(word), "{error}");
    }
    let error =
        forwarding("default", "{ port = 1, to = \"db:7\" }, { port = 1, to = \"db:8\" }").unwrap_err();
    assert!(error.contains("port 1 leads to \"db:7\" already"), "{error}");
    let error = forwarding("default", "{ port = 4294967295, to = \"db:7\" }").unwrap_err();
    assert!(error.contains("port = 4294967295 is no vsock port"), "{error}");
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_file() {
    let error = parse("[daemon]\nmode = \"x\"\n[[vm]]\nname = \"a\"\ncid = 1\n[[vm]]\nname = \"a\"\ncid = 9")
        .unwrap_err();
    let lines: Vec<&str> = error.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(lines, ["t.toml:2", "t.toml:5", "t.toml:7"]);
}

#[test]
fn a_missing_file_names_itself_and_the_way_out() {
    let error = Config::load(Path::new("/nonexistent/vmlane.toml")).unwrap_err().to_string();
    for word in ["/nonexistent/vmlane.toml", "No such file", "--config"] {
        assert!(error.contains(word), "{error}");
    }
}

const NIC: &str = "[[vm]]\nname = \"a\"\nvsock = \"none\"\nnic = [";

fn nic(keys: &str) -> Result<Config, String> {
    parse(&format!("[[port_group]]\nname = \"prod\"\nvlan = 10\nmac_changes = false\n{NIC}{{{keys}}}]"))
}

#[test]
fn a_nic_takes_its_port_groups_settings_unless_it_has_its_own() {
    let config = nic("model = \"vmxnet3\", port_group = \"prod\", promiscuous = true, mtu = 9000").unwrap();
    let vm = &config.vms[0];
    assert_eq!((&vm.vsock, vm.cid), (&Vsock::None, 0));
    let nic = &vm.nics[0];
    assert_eq!((nic.profile, nic.mtu, nic.trapped), (Profile::Full, 9000, false));
    let all = Policy { promiscuous: true, mac_changes: false, forged_transmits: true };
    assert_eq!(nic.policy, all);
    assert_eq!(config.port_group("prod").unwrap().vlan, Vlan::Access(10));
}

#[test]
fn a_vm_has_sixty_four_nics_and_the_first_ten_are_as_if_there_were_no_others() {
    let vm = |count: usize| {
        let nics = "{ model = \"vmxnet3\" }, ".repeat(count);
        parse(&format!("[[vm]]\nname = \"a\"\nvsock = \"none\"\nnic = [{nics}]\n"))
    };
    let (few, many) = (vm(10).unwrap().vms.remove(0), vm(64).unwrap().vms.remove(0));
    assert_eq!(few.nics, many.nics[..10]);
    let queues: Vec<u8> = many.nics.iter().map(|nic| nic.queues).collect();
    assert_eq!(queues, [vec![8; 10], vec![2; 54]].concat());
    let macs: std::collections::BTreeSet<_> = many.nics.iter().map(|nic| nic.mac.0).collect();
    assert_eq!(macs.len(), 64);
    let text = vm(65).unwrap_err().to_string();
    assert!(text.contains("nic: 65 are too many; use at most 64"), "{text}");
}

#[test]
fn addresses_are_made_of_names_and_stay() {
    let macs = |text: &str| -> Vec<Mac> {
        parse(text).unwrap().vms.iter().flat_map(|vm| vm.nics.iter().map(|nic| nic.mac)).collect()
    };
    let two =
        "[[vm]]\nname = \"NAME\"\nvsock = \"none\"\nnic = [{model = \"vmxnet3\"}, {model = \"vmxnet3\"}]\n";
    let (a, b) = (two.replace("NAME", "a"), two.replace("NAME", "b"));
    let both = macs(&[a.as_str(), &b].concat());
    assert_eq!(both[..2], macs(&a)[..], "whatever else is configured");
    let mut unique = both.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), 4);
    assert!(both.iter().all(|mac| mac.is_unicast() && mac.0[0] & 2 != 0), "{both:?}");
}

#[test]
fn mistakes_of_nics_name_key_value_and_way_out() {
    for (keys, words) in [
        ("", &["vm \"a\": nic 0: model is missing"][..]),
        ("model = \"e1000\"", &["model = \"e1000\"", "use \"vmxnet3\""]),
        ("model = \"vmxnet3\", profile = \"fast\"", &["profile", "\"fast\"", "vmxnet2-class"]),
        ("model = \"vmxnet3\", port_group = \"nope\"", &["port_group = \"nope\"", "known are prod, default"]),
        ("model = \"vmxnet3\", mac = \"zz\"", &["mac = \"zz\"", "52:54:00"]),
        ("model = \"vmxnet3\", mac = \"01:00:5e:00:00:01\"", &["mac = ", "must be even"]),
        ("model = \"vmxnet3\", queues = 33", &["queues = 33", "from 1 to 32"]),
        ("model = \"vmxnet3\", mtu = 68", &["mtu = 68", "from 1280"]),
        ("model = \"vmxnet3\", speed = 1", &["vm \"a\": nic 0: speed = 1: there is no such key"]),
    ] {
        let error = nic(keys).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{keys}: {error}");
    }
    let mac = "mac = \"52:54:00:00:00:01\"";
    let twice = nic(&format!("model = \"vmxnet3\", {mac}}}, {{model = \"vmxnet3\", {mac}")).unwrap_err();
    assert!(twice.contains("52:54:00:00:00:01") && twice.contains("taken"), "{twice}");
}

#[test]
fn a_vm_without_vsock_needs_a_nic_and_no_cid() {
    let none = parse("[[vm]]\nname = \"a\"\nvsock = \"none\"").unwrap_err();
    assert!(none.contains("no nic"), "{none}");
    let cid =
        parse("[[vm]]\nname = \"a\"\nvsock = \"none\"\ncid = 3\nnic = [{model = \"vmxnet3\"}]").unwrap_err();
    assert!(cid.contains("no use for cid"), "{cid}");
}

#[test]
fn address_space_is_shared_out_to_devices_and_no_vm_without_a_limit_has_more_than_the_host() {
    let three =
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{model = \"vmxnet3\"}]\n[[vm]]\nname = \"b\"\ncid = 4\n";
    let limits = |text: &str| {
        let config = parse(text).unwrap();
        let limits = |limit: &dyn Fn(&VmConfig) -> u64| config.vms.iter().map(limit).collect::<Vec<_>>();
        assert_eq!(
            limits(&|vm| config.memory_limit(vm)),
            limits(&|vm| vm.memory.unwrap_or_else(|| address_space(&config.vms, vm).min(host_memory())))
        );
        limits(&|vm| address_space(&config.vms, vm))
    };
    let share = SHARED_OUT / 3;
    assert_eq!(limits(three), [share, share]);
    let config = parse(three).unwrap();
    assert!(host_memory() < share, "as on any host");
    assert!(config.vms.iter().all(|vm| config.memory_limit(vm) == host_memory()));
    // What one VM is given is not shared out to the others.
    let given = [three, "limits = {memory = \"64G\"}\n"].concat();
    assert_eq!(limits(&given), [(SHARED_OUT - (64 << 30)) / 2, 64 << 30]);
    let all = ["[limits]\nmemory = \"8G\"\n", three].concat();
    assert_eq!(limits(&all), [8 << 30, 8 << 30]);
    // Two devices of a VM map its memory, each for itself.
    let too_much = ["[limits]\nmemory = \"20000G\"\n", three].concat();
    let error = parse(&too_much).unwrap_err();
    assert!(error.contains("may map 49152G, not 60000G"), "{error}");
    let nothing_left = [three, "limits = {memory = \"49152G\"}\n"].concat();
    let error = parse(&nothing_left).unwrap_err();
    assert!(error.contains("vm \"a\"") && error.contains("less than 1G"), "{error}");
    let small = ["[limits]\nmemory = 1\n", three].concat();
    assert!(parse(&small).unwrap_err().contains("memory = 1;"));
}

#[test]
fn a_port_group_has_its_own_flood_limit_and_its_nics_share_it() {
    let config = parse(
        "[daemon]\nflood_limit = 7\n[[port_group]]\nname = \"p\"\nflood_limit = 0\nmulticast = \"snoop\"\n[[vm]]\nname = \"a\"\ncid = 3\n\
         nic = [{ model = \"vmxnet3\", port_group = \"p\" }, { model = \"vmxnet3\" }]",
    )
    .unwrap();
    let limits: Vec<_> = config.vms[0].nics.iter().map(|nic| nic.traffic.floods).collect();
    assert_eq!((limits, config.daemon.flood_limit), (vec![Some(0), None], 7));
    let snoops: Vec<_> = config.vms[0].nics.iter().map(|nic| nic.traffic.snoop).collect();
    assert_eq!(snoops, [true, false]);
}

#[test]
fn a_nic_overrides_its_port_groups_shares() {
    let config = parse(
        "[[port_group]]\nname = \"p\"\nshares = 300\n[[vm]]\nname = \"a\"\ncid = 3\n\
         nic = [{ model = \"vmxnet3\", port_group = \"p\" }, { model = \"vmxnet3\", port_group = \"p\", shares = 50 }, \
         { model = \"vmxnet3\" }]",
    )
    .unwrap();
    let shares: Vec<_> = config.vms[0].nics.iter().map(|nic| nic.traffic.shares).collect();
    assert_eq!(shares, [Some(300), Some(50), None]);
}

#[test]
fn nics_of_both_models_may_be_endpoints() {
    let config = parse(
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", endpoint = true }, \
         { model = \"virtio-net\", endpoint = true }, { model = \"vmxnet3\" }]",
    )
    .unwrap();
    let endpoints: Vec<_> = config.vms[0].nics.iter().map(|nic| nic.traffic.endpoint).collect();
    assert_eq!(endpoints, [true, true, false]);
}

#[test]
fn a_nic_overrides_one_direction_of_its_port_groups_shape() {
    let config = parse(
        "[[port_group]]\nname = \"p\"\nshape = { in = { average = \"1G\", peak = \"2G\", burst = \"1M\" }, \
         out = { average = \"10M\" } }\n\
         [[vm]]\nname = \"a\"\ncid = 3\nnic = [{ model = \"vmxnet3\", port_group = \"p\" }, \
         { model = \"vmxnet3\", port_group = \"p\", shape = { in = { average = 5000000000 } } }, \
         { model = \"vmxnet3\" }]",
    )
    .unwrap();
    let rate = |average, peak, burst| Some(Rate { average, peak, burst });
    let out = rate(10_000_000, 10_000_000, 64 << 10);
    let shapes: Vec<_> = config.vms[0].nics.iter().map(|nic| nic.traffic.shape).collect();
    let [first, second, third] = &shapes[..] else { panic!("{shapes:?}") };
    assert_eq!((first.input, first.output), (rate(1_000_000_000, 2_000_000_000, 1 << 20), out));
    assert_eq!((second.input, second.output), (rate(5_000_000_000, 5_000_000_000, 12_500_000), out));
    assert_eq!((third.input, third.output), (None, None));
}
