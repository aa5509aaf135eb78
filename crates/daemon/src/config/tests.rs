//! What a configuration file may say, and how mistakes in it are told.

use super::*;

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
        spill_bytes = "8M"

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
    assert_eq!(config.daemon, DaemonConfig { workers: 2, mode: Mode::Poll, ..DaemonConfig::default() });
    let [web, db] = &config.vms[..] else { panic!("{config:?}") };
    assert_eq!((web.name.as_str(), web.group.as_str(), web.cid), ("web", "tenant-1", 3));
    assert_eq!(web.forwards, [ForwardConfig { port: 5000, to_vm: "db".into(), to_port: 6000 }]);
    assert_eq!((web.restricted, web.trusted, db.restricted, db.trusted), (true, false, false, true));
    assert_eq!((web.limits.connections, db.limits.connections), (20, 10));
    assert_eq!((web.limits.spill_bytes, db.limits.spill_bytes), (8 << 20, 8 << 20));
    assert_eq!(db.limits.doorbells, Limits::default().doorbells);
    assert_eq!(db.cid, 0x7fff_ffff);
}

#[test]
fn everything_has_a_default_but_name_and_cid() {
    assert_eq!(parse("").unwrap(), Config { daemon: DaemonConfig::default(), vms: vec![] });
    let config = parse(TWO).unwrap();
    assert_eq!(config.vms[0].group, "default");
    assert_eq!((config.daemon.workers, config.daemon.mode, config.daemon.spin_us), (1, Mode::Adaptive, 500));
    assert_eq!(config.names(), "web, db");
}

/// A mistake, the line it must be found in, and the words that must tell of it.
const MISTAKES: &[(&str, usize, &[&str])] = &[
    ("[daemon]\nworkres = 1", 2, &["unknown field `workres`", "`workers`", "workres = 1"]),
    ("[deamon]\nworkers = 1", 1, &["unknown field `deamon`", "`daemon`"]),
    ("[daemon]\nworkers = \"two\"", 2, &["workers = \"two\"", "expected i64"]),
    ("[daemon]\nworkers = 0", 2, &["daemon: workers = 0", "from 1 to 256"]),
    ("[daemon]\nmode = \"fast\"", 2, &["mode = \"fast\"", "\"adaptive\" or \"poll\""]),
    ("[daemon]\nspin_us = -1", 2, &["spin_us = -1", "from 0 to 1000000"]),
    ("[daemon\n", 1, &["[daemon"]),
    ("[limits]\nconnections = 0", 2, &["limits: connections = 0", "from 1 to 65536"]),
    ("[limits]\ninbox_bytes = \"1k\"", 2, &["inbox_bytes = \"1k\"", "from 131072 to"]),
    ("[limits]\ninbox_bytes = \"2G\"", 2, &["inbox_bytes = \"2G\"", "to 1073741824"]),
    ("[limits]\nspill_bytes = \"lots\"", 2, &["spill_bytes = \"lots\"", "(or \"64M\")"]),
    ("[limits]\nspill_bytes = -5", 2, &["spill_bytes = -5"]),
    ("[limits]\nsockets = 5", 2, &["unknown field `sockets`", "`queue_pairs`"]),
    ("[[port_group]]\nname = \"prod\"\nvlan = 10", 1, &["port_group", "no switch yet", "remove"]),
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
    ("[[vm]]\nname = \"a\"\ncid = 3\nvsock = \"virtio\"", 4, &["\"virtio\" is not served yet", "\"vmci\""]),
    ("[[vm]]\nname = \"a\"\ncid = 3\nvsock = \"xen\"", 4, &["vsock = \"xen\" is unknown", "\"vmci\""]),
    (
        "[[vm]]\nname = \"a\"\ncid = 3\nnic = [ { model = \"vmxnet3\" } ]",
        4,
        &["vm \"a\": nic: this version serves no NICs yet", "VMXNET3"],
    ),
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
    ("[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, too = \"a:7\" }]", 4, &["unknown field `too`"]),
];

#[test]
fn mistakes_are_told_with_line_key_value_and_way_out() {
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
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
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
