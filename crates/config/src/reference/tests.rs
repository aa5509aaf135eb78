use std::fs;
use std::path::Path;

use super::*;
use crate::Config;
use crate::plan::plan;
use crate::shape::Applied;

const UPLINK: &str = "[[switch]]\nname = 'other'\n[[uplink]]\nname = 'u'\ntap = 't0'\n";
const VMS: &str = "[[vm]]\nname = 'a'\ncid = 5\nnic = [{ model = 'virtio-net' }]\n";

/// Configurations to which a key of a table can be added; of several for one table, a key fits to one at
/// least.
const PLACES: [(&str, &str); 20] = [
    ("[daemon]", "[daemon]\n"),
    ("[limits]", "[[vm]]\nname = 'a'\ncid = 5\n[limits]\n"),
    ("[[vm]]", "[[vm]]\nname = 'a'\ncid = 5\n"),
    ("[[vm]]", "[[vm]]\nname = 'a'\ncid = 5\nvsock = 'virtio'\n"),
    ("[[vm]]", "[[vm]]\nname = 'a'\ncid = 5\nvsock = 'hybrid'\n"),
    ("nic of [[vm]]", "[[vm]]\nname = 'a'\ncid = 5\n[[vm.nic]]\nmodel = 'vmxnet3'\n"),
    ("nic of [[vm]]", "[[vm]]\nname = 'a'\ncid = 5\n[[vm.nic]]\nmodel = 'virtio-net'\n"),
    ("[[switch]]", "[[switch]]\nname = 's'\n"),
    ("[[port_group]]", "[[port_group]]\nname = 'p'\n"),
    ("in of shape of [[port_group]]", "[[port_group]]\nname = 'p'\n[port_group.shape.in]\naverage = 1000\n"),
    ("impair of [[wire]]", "[[wire]]\nname = 'l'\nends = ['a/nic0', 'u']\n[wire.impair]\n"),
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
        "[route]\nname = 'x'\ncids = ['3-2147483647']\ncertificate = '/c'\nkey = '/k'\nauthority = '/a'\n",
    ),
    ("[ovn]", "[ovn]\n"),
];

/// A value that is not the default, where neither the kind nor the values of the key give one.
const OTHERS: [(&str, &str); 23] = [
    ("cid", "9"),
    ("cpus", "'0'"),
    ("domain", "'web'"),
    ("forged_transmits", "false"),
    ("forward", "[{ port = 1, to = 'host' }]"),
    ("group", "'g'"),
    ("limits", "{ connections = 5 }"),
    ("log", "'debug'"),
    ("mac", "'52:54:00:00:00:09'"),
    ("mac_changes", "false"),
    ("model", "'virtio-net'"),
    ("nic", "[{ model = 'vmxnet3' }]"),
    ("ovn", "'lsp'"),
    ("owner", "1"),
    ("parent_cid", "9"),
    ("port_group", "'other'"),
    ("promiscuous", "true"),
    ("shape", "{ in = { average = 1000 } }"),
    ("switch", "'other'"),
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
    let vm = if base.contains("[[vm]]") { "" } else { VMS };
    let Some(value) = value else { return parsed(&format!("{UPLINK}{vm}{base}")) };
    let given = format!("{name} = ");
    let is_other = |line: &&str| !line.starts_with(&given) || line.contains("'a'");
    let kept: String = base.split_inclusive('\n').filter(is_other).collect();
    parsed(&format!("{UPLINK}{vm}{kept}{given}{value}\n"))
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
    let (mut wrong, mut tested) = (Vec::new(), 0);
    for (place, name, key, bases) in keys() {
        if key.default_value().is_none() || bases.is_empty() {
            continue;
        }
        let same = |base: &&str| {
            let without = with(base, name, None);
            without.is_some() && without == with(base, name, Some(key.default))
        };
        tested += 1;
        wrong.extend((!bases.iter().any(same)).then(|| format!("{place}: {name} = {}", key.default)));
    }
    assert!(wrong.is_empty() && tested > 50, "{tested}: {wrong:#?}");
}

#[test]
fn ranges_are_those_of_the_code() {
    let (mut wrong, mut tested) = (Vec::new(), 0);
    for (place, name, key, bases) in keys() {
        let Some((low, high)) = key.range().filter(|_| !bases.is_empty()) else { continue };
        let is_taken = |value: &str| bases.iter().any(|base| with(base, name, Some(value)).is_some());
        let beside = |text: &str, step: i64| {
            let digits = text.trim_end_matches(char::is_alphabetic);
            let (number, unit) = (digits.parse::<i64>().unwrap() + step, &text[digits.len()..]);
            if unit.is_empty() { number.to_string() } else { format!("'{number}{unit}'") }
        };
        let inside = [beside(low, 0), beside(high, 0)];
        let outside = [beside(low, -1), beside(high, 1)];
        let wrongly = inside
            .iter()
            .filter(|value| !is_taken(value))
            .chain(outside.iter().filter(|value| is_taken(value)));
        wrong.extend(wrongly.map(|value| format!("{place}: {name} = {value}: {}", key.values)));
        tested += 1;
    }
    assert!(wrong.is_empty() && tested > 35, "{tested}: {wrong:#?}");
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
    assert_eq!(counts, [15, 7, 15, 19], "{tested:?}");
}
