use std::path::Path;

use crate::Config;

fn problems(text: &str) -> Vec<String> {
    let error = Config::parse(Path::new("t.toml"), text).unwrap_err().to_string();
    error.lines().map(str::to_owned).collect()
}

fn vm(name: &str, cid: u32, keys: &str) -> String {
    format!("[[vm]]\nname = \"{name}\"\ncid = {cid}\n{keys}\n")
}

#[test]
fn a_value_of_another_kind_is_met_with_what_to_write() {
    for (text, words) in [
        ("[[vm]]\nname = 7\n", "t.toml:2: vm number 1: name = 7: write it in quotes: name = \"7\""),
        ("[[vm]]\nname = web\n", "t.toml:2: "),
        ("[[vm]]\ncid = 3.5\n", "t.toml:2: vm number 1: cid = 3.5: write a whole number, without quotes"),
        ("[[vm]]\ncid = 99999999999999999999\n", "cid = 99999999999999999999: the number is too large"),
        (
            "[daemon]\ncoalesce = \"yes\"\n",
            "t.toml:2: daemon: coalesce = \"yes\": write true or false, without quotes",
        ),
        (
            "[limits]\noverflow_bytes = true\n",
            "limits: overflow_bytes = true: write a number, or a text such as overflow_bytes = \"64M\"",
        ),
        (
            "[[team]]\nname = \"t\"\nuplinks = \"lan\"\n",
            "team \"t\": uplinks = \"lan\": write a list: uplinks = [\"lan\"]",
        ),
        (
            "[[vm]]\nname = \"a\"\nnic = { model = \"vmxnet3\" }\n",
            "vm \"a\": nic = { model = \"vmxnet3\" }: write a list of tables",
        ),
        ("limits = 3\n", "t.toml:1: limits = 3: write a table: limits = { connections = ... }"),
    ] {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].contains(words), "{text}: {found:?}");
        for jargon in ["i64", "sequence", "unknown field", "invalid type", "duplicate key"] {
            assert!(!found[0].contains(jargon), "{found:?}");
        }
    }
}

#[test]
fn brackets_are_one_pair_for_one_table_and_two_for_several() {
    let several = "there may be several of these tables, so each has two brackets; write [[";
    for text in
        ["[vm]\nname = \"a\"\ncid = 3\n", "[vm]\nname = \"a\"\n[vm]\nname = \"b\"\n", "[vm]\n[[vm]]\n"]
    {
        assert_eq!(problems(text), [format!("t.toml:1: [vm]: {several}vm]]")], "{text}");
    }
    assert_eq!(problems("[[vm]]\n[vm.nic]\n[vm.nic]\n"), [format!("t.toml:2: [vm.nic]: {several}vm.nic]]")]);
    assert_eq!(
        problems("[[daemon]]\n"),
        ["t.toml:1: [[daemon]]: there is only one such table; write [daemon]"]
    );
    let twice = problems("[daemon]\nworkers = 1\nworkers = 2\n");
    assert!(twice.len() == 1 && twice[0].contains("t.toml:3: this is there twice; remove one"), "{twice:?}");
}

#[test]
fn a_key_that_is_misspelt_or_misplaced_is_recognized() {
    for (text, words) in [
        ("[[vm]]\nname = \"a\"\nvsock-role = \"client\"\n", "did you mean vsock_role?"),
        (
            "[[vm]]\nname = \"a\"\nmac = \"52:54:00:00:00:03\"\n",
            "it is a key of nic of [[vm]]; here there are cid,",
        ),
        ("[limits]\nworkers = 2\n", "it is a key of [daemon]; here there are connections,"),
        (
            "[[uplinks]]\nname = \"a\"\n",
            "t.toml:1: [[uplinks]]: there is no such table; did you mean [[uplink]]?",
        ),
        ("wrokers = 2\n", "t.toml:1: wrokers = 2: there is no such key; "),
    ] {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].contains(words), "{text}: {found:?}");
    }
    let all = problems("[daemon]\nworkres = 1\nmode = 3\n[[vm]]\nnmae = \"a\"\n");
    let lines: Vec<&str> = all.iter().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(lines, ["t.toml:2", "t.toml:3", "t.toml:5"], "{all:?}");
}

#[test]
fn a_mistake_makes_no_second_one() {
    let nic = "nic = [{ model = \"vmxnet3\", mac = \"52:54\" }]";
    let route = "[route]\nname = \"alpha\"\ncertificate = \"/c\"\nkey = \"/k\"\nauthority = \"/a\"\n";
    let uplinks = "[[uplink]]\nname = \"up0\"\n[[team]]\nname = \"t\"\nuplinks = [\"up0\"]\n\
                   [[mirror]]\nname = \"m\"\nfrom = [\"a/nic0\"]\nto = \"up0\"\n";
    let mirrored = vm("a", 3, "nic = [{ model = \"virtio-net\" }]");
    let forward = "forward = [{ port = 1, to = \"b:2\" }]";
    for (what, text, count) in [
        ("addresses that are none", vm("a", 3, nic) + &vm("b", 4, nic), 2),
        ("an address that is none", vm("a", 3, nic), 1),
        ("a VM without a name", format!("[[vm]]\ncid = 4\n{}", vm("a", 3, forward)), 1),
        (
            "VMs without a name",
            format!("{0}{0}", "[[vm]]\nvsock = \"none\"\nnic = [{ model = \"virtio-net\" }]\n"),
            2,
        ),
        ("a target's vsock", vm("a", 3, forward) + &vm("b", 4, "vsock = \"virtoi\""), 1),
        ("a target's group", vm("a", 3, forward) + &vm("b", 4, "group = \"x y\""), 1),
        (
            "a kind of vsock",
            vm("a", 3, "vsock = \"virtoi\"\nvsock_role = \"client\"\nparent_cid = 7\nuds_path = \"/v\""),
            1,
        ),
        ("a model", vm("a", 3, "vsock = \"virtio\"\nmovable = true\nnic = [{ model = \"virtoi\" }]"), 1),
        ("a reserved CID", vm("a", 1, "") + &vm("b", 1, ""), 2),
        (
            "a name twice",
            vm("a", 3, "nic = [{ model = \"vmxnet3\" }]") + &vm("a", 4, "nic = [{ model = \"vmxnet3\" }]"),
            1,
        ),
        (
            "a path",
            vm("a", 3, "vsock = \"hybrid\"\nuds_path = \"v\"\nforward = [{ port = 1, to = \"host\" }]"),
            1,
        ),
        ("an uplink", mirrored + uplinks, 1),
        (
            "a port group",
            format!(
                "[[port_group]]\nvlan = 3\n{}",
                vm("a", 3, "nic = [{ model = \"vmxnet3\", port_group = \"p\" }]")
            ),
            1,
        ),
        ("the CIDs of a host", format!("{route}{}{}", vm("a", 3, ""), vm("b", 4, "")), 1),
        ("three of a name", vm("a", 3, "") + &vm("a", 4, "") + &vm("a", 5, ""), 2),
        ("both", vm("a", 3, "vsock = \"virtoi\"") + &vm("b", 3, ""), 2),
    ] {
        let found = problems(&text);
        assert_eq!(found.len(), count, "{what}: {found:#?}");
    }
}

#[test]
fn the_schema_has_every_table_and_takes_no_other_key() {
    let schema = Config::schema();
    let workers = &schema["properties"]["daemon"]["properties"]["workers"];
    assert_eq!(workers["anyOf"], serde_json::json!([{ "type": "integer" }, { "const": "auto" }]));
    let vm = &schema["properties"]["vm"];
    assert_eq!(
        (&vm["type"], &vm["items"]["properties"]["cid"]["type"]),
        (&"array".into(), &"integer".into())
    );
    assert_eq!(vm["items"]["properties"]["nic"]["items"]["additionalProperties"], false);
    assert_eq!(
        schema["properties"]["port_group"]["items"]["properties"]["shape"]["properties"]["in"]["type"],
        "object"
    );
    assert_eq!(schema["additionalProperties"], false);
}
