use std::fs;
use std::path::Path;

use super::*;
use crate::Config;
use crate::plan::plan;
use crate::shape::Applied;

const UPLINK: &str = "[[uplink]]\nname = 'u'\ntap = 't0'\n";
const VMS: &str = "[[vm]]\nname = 'a'\ncid = 3\nnic = [{ model = 'virtio-net' }]\n";

/// Configurations to which a key of a table can be added; of several for one table, a key fits to one at
/// least.
const PLACES: [(&str, &str); 19] = [
    ("[daemon]", "[daemon]\n"),
    ("[limits]", "[[vm]]\nname = 'a'\ncid = 3\n[limits]\n"),
    ("[[vm]]", "[[vm]]\nname = 'a'\ncid = 3\n"),
    ("[[vm]]", "[[vm]]\nname = 'a'\ncid = 3\nvsock = 'virtio'\n"),
    ("[[vm]]", "[[vm]]\nname = 'a'\ncid = 3\nvsock = 'hybrid'\n"),
    ("nic of [[vm]]", "[[vm]]\nname = 'a'\ncid = 3\n[[vm.nic]]\nmodel = 'vmxnet3'\n"),
    ("nic of [[vm]]", "[[vm]]\nname = 'a'\ncid = 3\n[[vm.nic]]\nmodel = 'virtio-net'\n"),
    ("[[switch]]", "[[switch]]\nname = 's'\n"),
    ("[[port_group]]", "[[port_group]]\nname = 'p'\n"),
    ("in of shape of [[port_group]]", "[[port_group]]\nname = 'p'\n[port_group.shape.in]\naverage = 1000\n"),
    (
        "impair of [[wire]]",
        "[[wire]]\nname = 'l'\nends = ['a/nic0', 'u']\n[wire.impair]\ndelay_us = 10000000\n",
    ),
    ("[[uplink]]", "[[uplink]]\nname = 'v'\ntap = 't1'\n"),
    ("[[uplink]]", "[[uplink]]\nname = 'v'\nvhost_user = '/v'\n"),
    ("[[mirror]]", "[[mirror]]\nname = 'm'\nfrom = ['a/nic0']\nto = 'u'\n"),
    ("[[team]]", "[[uplink]]\nname = 'v'\ntap = 't1'\n[[team]]\nname = 't'\nuplinks = ['v']\n"),
    ("[[host]]", "[[host]]\n"),
    ("[[control]]", "[[control]]\nmay = 'own'\nuid = 0\n"),
    (
        "[route]",
        "[[vm]]\nname = 'a'\ncid = 3\n[route]\nname = 'x'\ncids = ['3-9']\ncertificate = '/c'\nkey = '/k'\nauthority = '/a'\n",
    ),
    ("[ovn]", "[ovn]\n"),
];

/// A value that is not the default, where neither the kind nor the values of the key give one.
const OTHERS: [(&str, &str); 14] = [
    ("cpus", "'0'"),
    ("domain", "'web'"),
    ("forward", "[{ port = 1, to = 'a:2' }]"),
    ("group", "'g'"),
    ("log", "'debug'"),
    ("mac", "'52:54:00:00:00:09'"),
    ("nic", "[{ model = 'vmxnet3' }]"),
    ("ovn", "'lsp'"),
    ("owner", "1"),
    ("port_group", "'default'"),
    ("uds_path", "'/v'"),
    ("user", "'root'"),
    ("vlan", "7"),
    ("workers", "2"),
];

fn parsed(text: &str) -> Option<Config> {
    Config::parse(Path::new("t.toml"), text).ok()
}

/// A configuration of a table, to which a key is added at the end: so all else keeps its lines.
fn with(base: &str, name: &str, value: Option<&str>) -> Option<Config> {
    let line = value.map(|value| format!("{name} = {value}\n")).unwrap_or_default();
    let kept: String = base
        .split_inclusive('\n')
        .filter(|line| !line.starts_with(&format!("{name} = ")) || line.contains("'a'"))
        .collect();
    let vm = if base.contains("[[vm]]") { "" } else { VMS };
    parsed(&format!("{UPLINK}{vm}{kept}{line}"))
}

/// The keys of all tables that have a configuration here, each with these.
fn keys() -> Vec<(String, &'static str, Key, Vec<&'static str>)> {
    let shape = RawConfig::shape();
    let mut found = Vec::new();
    for (name, key) in ordered(table(&shape).unwrap()) {
        collect(key.shape.shown(name), key, &mut found);
    }
    let mut keys = Vec::new();
    for Found { keys: of_table, places, .. } in &found {
        let bases = PLACES.iter().filter(|(place, _)| *place == places[0]);
        let bases: Vec<&str> = bases.map(|(_, base)| *base).collect();
        for (name, key) in ordered(of_table) {
            keys.push((places[0].clone(), name, key.clone(), bases.clone()));
        }
    }
    keys
}

#[test]
fn the_table_in_the_guide_is_current() {
    const MARKS: [&str; 2] = ["<!-- All keys: made by `make keys`. -->\n", "<!-- The end of all keys. -->\n"];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (table, after) = rest.split_once(MARKS[1]).unwrap();
    let made = format!("\n{}", markdown());
    if std::env::var_os("VMLANE_DRAW").is_some() {
        fs::write(&path, [before, MARKS[0], &made, MARKS[1], after].concat()).unwrap();
        return;
    }
    assert!(table == made, "docs/guide/configuration.md is not current: run `make keys`");
}

#[test]
fn every_key_has_a_meaning_and_a_default() {
    for (place, name, key, _) in keys() {
        assert!(key.meaning().ends_with('.'), "{place}: {name}: {:?}", key.meaning());
        assert!(!key.default.is_empty(), "{place}: {name} has no default, not even \"required\" or \"none\"");
    }
}

#[test]
fn defaults_are_those_of_the_code() {
    let mut tested = 0;
    for (place, name, key, bases) in keys() {
        if key.default_value().is_none() || bases.is_empty() {
            continue;
        }
        let mut pairs = bases.iter().map(|base| (with(base, name, None), with(base, name, Some(key.default))));
        let same = |(without, given): (Option<Config>, Option<Config>)| without.is_some() && without == given;
        assert!(pairs.any(same), "{place}: {name} = {}", key.default);
        tested += 1;
    }
    assert!(tested > 50, "{tested}");
}

#[test]
fn ranges_are_those_of_the_code() {
    let mut tested = 0;
    for (place, name, key, bases) in keys() {
        let Some((low, high)) = key.range().filter(|_| !bases.is_empty()) else { continue };
        let is_taken = |value: String| bases.iter().any(|base| with(base, name, Some(&value)).is_some());
        let beside = |text: &str, step: i64| {
            let digits = text.trim_end_matches(char::is_alphabetic);
            let (number, unit) = (digits.parse::<i64>().unwrap(), &text[digits.len()..]);
            let number = number + step;
            if unit.is_empty() { number.to_string() } else { format!("'{number}{unit}'") }
        };
        for (value, taken) in [
            (beside(low, 0), true),
            (beside(high, 0), true),
            (beside(low, -1), false),
            (beside(high, 1), false),
        ] {
            assert_eq!(is_taken(value.clone()), taken, "{place}: {name} = {value}: {}", key.values);
        }
        tested += 1;
    }
    assert!(tested > 35, "{tested}");
}

/// A value that is not the default.
fn other(name: &str, key: &Key) -> Option<String> {
    let default = key.default_value();
    if let Some((_, value)) = OTHERS.iter().find(|(other, _)| *other == name) {
        return Some((*value).to_owned());
    }
    if let Some(toml::Value::Boolean(on)) = default {
        return Some((!on).to_string());
    }
    let words: Vec<&str> = key.values.split('\'').skip(1).step_by(2).filter(|_| default.is_some()).collect();
    if !words.is_empty() {
        let word = words.into_iter().find(|word| default != Some(toml::Value::String((*word).into())))?;
        return Some(format!("'{word}'"));
    }
    let (low, high) = key.range()?;
    let number = if default.map(|value| value.to_string()).as_deref() == Some(low) { high } else { low };
    let is_text = number.ends_with(char::is_alphabetic);
    Some(if is_text { format!("'{number}'") } else { number.to_owned() })
}

#[test]
fn what_a_reload_applies_is_what_the_plan_applies() {
    let mut tested = Vec::new();
    for (place, name, key, bases) in keys() {
        let Some(value) = other(name, &key).filter(|_| key.applied != Applied::Helper) else { continue };
        let pairs =
            bases.iter().filter_map(|base| Some((with(base, name, None)?, with(base, name, Some(&value))?)));
        for (old, new) in pairs.filter(|(old, new)| old != new) {
            let plan = plan(&old, &new, |_| true).unwrap();
            let expected = match key.applied {
                Applied::Daemon => format!("daemon: {name} changes when the daemon is started again"),
                Applied::Vm => "cannot change while a VMM is attached to it".to_owned(),
                Applied::Reload | Applied::Helper => String::new(),
            };
            let refused = plan.refused.join("; ");
            assert!(refused.contains(&expected), "{place}: {name} = {value}: {refused}");
            assert_eq!(refused.is_empty(), expected.is_empty(), "{place}: {name} = {value}: {refused}");
            assert_eq!(plan.effective == new, expected.is_empty(), "{place}: {name} = {value}");
            tested.push((place.clone(), name));
        }
    }
    tested.dedup();
    let of = |wanted: &str| tested.iter().filter(|(place, _)| place == wanted).count();
    let counts = ["[daemon]", "[limits]", "[[vm]]", "nic of [[vm]]"].map(of);
    assert_eq!(counts, [15, 7, 14, 17], "{tested:?}");
}
