//! Several files are as one, and what is wrong is found in the file where it stands.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;

use crate::sources::{MOST_BYTES, MOST_FILES, Source, SourceKind, Sources};
use crate::{Config, ConfigError, VmPlace, Workers};

const WEB: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";
const DB: &str = "[[vm]]\nname = \"db\"\ncid = 4\n";

fn source(path: &str, text: &str, kind: SourceKind) -> Source {
    Source { path: path.into(), text: text.into(), kind }
}

fn files(texts: &[(&str, &str)]) -> Sources {
    Sources(texts.iter().map(|(path, text)| source(path, text, SourceKind::Whole)).collect())
}

fn error(sources: &Sources) -> String {
    Config::check(sources).unwrap_err().to_string()
}

#[test]
fn lists_of_several_files_add_up_in_their_order() {
    let group = "[[port_group]]\nname = \"prod\"\nvlan = 10\n";
    let nic = "nic = [{ model = \"virtio-net\", port_group = \"prod\" }]\n";
    let sources = files(&[
        ("main", &format!("[daemon]\nworkers = 2\n{WEB}")),
        ("10", &format!("{DB}{nic}")),
        ("20", &format!("[limits]\nconnections = 9\n{group}")),
    ]);
    let config = Config::check(&sources).unwrap();
    assert_eq!(config.names(), "web, db");
    assert_eq!((config.daemon.workers, config.vms[1].limits.connections), (Workers::Count(2), 9));
    assert_eq!(config.vms[1].nics[0].port_group, "prod");
    let place = |path: &str, line| VmPlace { path: path.into(), line, added: false };
    assert_eq!(config.places["web"], place("main", 3));
    assert_eq!(config.places["db"], place("10", 1));
}

#[test]
fn what_is_no_list_stands_in_one_file_only() {
    let twice = error(&files(&[
        ("main", "\n[daemon]\nworkers = 2\n"),
        ("10", WEB),
        ("20", "[daemon]\nmode = \"poll\"\n"),
    ]));
    assert_eq!(twice, "20:1: daemon is in main:2 already, and may be in one file only; remove one");
    let mixed = error(&files(&[("main", "[limits]\n"), ("10", "limits = {}\n")]));
    assert!(mixed.contains("10:1: limits is in main:1 already"), "{mixed}");
}

#[test]
fn mistakes_name_the_file_and_the_line_where_they_stand() {
    for (text, words) in [
        ("\n[[vm]\n", &["10:2: ", "[[vm]"][..]),
        (
            "\n\n[[vm]]\nname = \"db\"\ncidd = 4\n",
            &["10:5: vm \"db\": cidd = 4: there is no such key; did you mean cid?"],
        ),
        ("[[wm]]\nname = \"db\"\n", &["10:1: [[wm]]: there is no such table; did you mean [[vm]]?"]),
        (
            "[[vm]]\nname = \"db\"\ncid = \"4\"\n",
            &["10:3: vm \"db\": cid = \"4\": write the number without quotes: cid = 4"],
        ),
        ("[[vm]]\nname = \"db\"\ncid = 1\n", &["10:3: vm \"db\": cid = 1"]),
        ("[[vm]]\nname = \"db\"\n", &["10:1: vm \"db\": cid is missing"]),
        ("[[vm]]\nname = \"db\"\ncid = 3\n", &["10:3: vm \"db\": cid = 3 is taken by VM \"web\" (main:4)"]),
        ("\n[[vm]]\nname = \"web\"\ncid = 4\n", &["10:3: vm: name = \"web\" is taken by the VM of main:3"]),
        (
            "[[vm]]\nname = \"db\"\ncid = 4\nnic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n",
            &["10:4: vm \"db\": nic 0: mac = \"52:54:00:00:00:03\" is taken by VM \"web\" (main:5)"],
        ),
    ] {
        let main = "# first\n[[vm]]\nname = \"web\"\ncid = 3\nnic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n";
        let error = error(&files(&[("main", main), ("10", text), ("20", "")]));
        assert!(
            words.iter().all(|word| error.contains(word)) && error.lines().count() == 1,
            "{text:?}: {error}"
        );
    }
    let both = error(&files(&[("main", "[[vm]]\ncid = 1\n"), ("10", "[daemon]\nworkers = 0\n")]));
    let lines: Vec<&str> = both.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["main:1:", "main:2:", "10:2:"], "{both}");
}

#[test]
fn a_vm_that_is_added_brings_nothing_else_along() {
    let added = |path: &str, text: &str| {
        Config::check(&Sources(vec![
            source("main", WEB, SourceKind::Whole),
            source(path, text, SourceKind::Vm),
        ]))
    };
    let config = added("/v/db.toml", DB).unwrap();
    assert!(config.places["db"].added && !config.places["web"].added);
    assert_eq!(config.places["db"].to_string(), "/v/db.toml:1");
    for (path, text, words) in [
        (
            "db.toml",
            "[daemon]\nworkers = 2\n",
            "db.toml:1: daemon: a VM that is added at run time has one table",
        ),
        ("db.toml", &format!("{DB}[[control]]\nuid = 1\nmay = \"admin\"\n")[..], "db.toml:4: control: a VM"),
        ("db.toml", "", "there is no VM in it"),
        ("db.toml", "vm = 3\n", "db.toml:1: vm = 3: write a list of tables: vm = [{ ... }]"),
        ("db.toml", &format!("{DB}[[vm]]\nname = \"c\"\ncid = 5\n"), "db.toml:4: a second VM"),
        ("c.toml", DB, "c.toml:1: vm \"db\": its file must be called db.toml"),
    ] {
        let error = added(path, text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn the_directory_is_read_by_name_and_leftovers_of_editors_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("vmlane.toml");
    let missing = Sources::read(&main).unwrap_err().to_string();
    assert!(missing.contains("vmlane.toml") && missing.contains("--config"), "{missing}");
    fs::write(&main, WEB).unwrap();
    assert_eq!(Sources::read(&main).unwrap().0.len(), 1);
    let further = folder.path().join("conf.d");
    fs::create_dir(&further).unwrap();
    for name in ["20-b.toml", "10-c.toml", "9-a.toml"] {
        fs::write(further.join(name), format!("# {name}")).unwrap();
    }
    for name in [
        ".x.toml",
        "x.toml~",
        "#x.toml#",
        "#x.toml",
        "x.toml.dpkg-old",
        "x.toml.swp",
        "README",
        "x.TOML",
        "toml",
    ] {
        fs::write(further.join(name), "[[malformed").unwrap();
    }
    symlink("gone", further.join(".#y.toml")).unwrap();
    let read = Sources::read(&main).unwrap();
    let texts: Vec<&str> = read.0.iter().map(|source| source.text.as_str()).collect();
    assert_eq!(texts, [WEB, "# 10-c.toml", "# 20-b.toml", "# 9-a.toml"]);
    Config::check(&read).unwrap();
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("vmlane.toml");
    fs::write(&main, WEB).unwrap();
    let further = folder.path().join("conf.d");
    fs::create_dir(&further).unwrap();
    let bad = further.join("bad.toml");
    let read = || Sources::read(&main).unwrap_err().to_string();
    fs::create_dir(&bad).unwrap();
    assert!(read().contains("conf.d/bad.toml: it is not a regular file"), "{}", read());
    fs::remove_dir(&bad).unwrap();
    symlink("gone", &bad).unwrap();
    assert!(read().contains("conf.d/gone: No such file"), "{}", read());
    fs::remove_file(&bad).unwrap();
    fs::write(&bad, b"# \xff\n").unwrap();
    assert!(read().contains("conf.d/bad.toml: stream did not contain valid UTF-8"), "{}", read());
    fs::remove_dir_all(&further).unwrap();
    fs::write(&further, "").unwrap();
    assert!(read().contains("conf.d: Not a directory"), "{}", read());
}

#[test]
fn a_pipe_is_not_waited_for_and_what_is_too_much_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("vmlane.toml");
    fs::write(&main, WEB).unwrap();
    let further = folder.path().join("conf.d");
    fs::create_dir(&further).unwrap();
    let one = further.join("one.toml");
    rustix::fs::mknodat(rustix::fs::CWD, &one, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert!(Sources::read(&main).unwrap_err().to_string().contains("it is not a regular file"));
    fs::remove_file(&one).unwrap();
    fs::write(&one, "#".repeat(MOST_BYTES as usize)).unwrap();
    Sources::read(&main).unwrap();
    fs::write(&one, "#".repeat(MOST_BYTES as usize + 1)).unwrap();
    let long = Sources::read(&main).unwrap_err().to_string();
    assert!(long.contains("one.toml: it has more than 4194304 bytes"), "{long}");
    fs::write(&one, "").unwrap();
    (1..MOST_FILES).for_each(|number| fs::write(further.join(format!("{number}.toml")), "").unwrap());
    assert_eq!(Sources::read(&main).unwrap().0.len(), MOST_FILES + 1);
    fs::write(further.join("more.toml"), "").unwrap();
    let many = Sources::read(&main).unwrap_err();
    let bound = MOST_FILES.to_string();
    assert!(matches!(many, ConfigError::TooManyFiles { .. }) && many.to_string().contains(&bound), "{many}");
}

/// Tables of lists as an operator may spread them over files, with mistakes in some.
fn tables() -> impl Strategy<Value = Vec<(String, usize)>> {
    let vm = (0u8..12, 0u8..12).prop_map(|(name, cid)| format!("[[vm]]\nname = \"v{name}\"\ncid = {cid}\n"));
    let group = (0u8..8, 0u16..4200)
        .prop_map(|(name, vlan)| format!("[[port_group]]\nname = \"g{name}\"\nvlan = {vlan}\n"));
    let rule = (0u32..9).prop_map(|uid| format!("[[control]]\nuid = {uid}\nmay = \"own\"\n"));
    proptest::collection::vec((prop_oneof![vm, group, rule], 0usize..4), 0..16)
}

proptest! {
    /// However tables are spread over files, they mean what they mean in one, and the same is wrong with
    /// them.
    #[test]
    fn spread_over_files_or_in_one(tables in tables()) {
        let mut texts = vec![String::new(); 4];
        tables.iter().for_each(|(text, file)| texts[*file] += text);
        let spread = Sources((0..).zip(&texts).map(|(number, text)| source(&format!("{number}"), text, SourceKind::Whole)).collect());
        let one = Sources::of(Path::new("one"), &texts.concat());
        match (Config::check(&spread), Config::check(&one)) {
            (Ok(mut spread), Ok(mut one)) => {
                spread.places.clear();
                one.places.clear();
                spread.marks.clear();
                one.marks.clear();
                prop_assert_eq!(spread, one);
            }
            (Err(ConfigError::Invalid { problems: spread }), Err(ConfigError::Invalid { problems: one })) => {
                prop_assert_eq!(spread.len(), one.len());
                let lines: Vec<usize> = texts.iter().map(|text| text.lines().count()).collect();
                for (spread, one) in spread.iter().zip(&one) {
                    let file: usize = spread.path.to_str().unwrap().parse().unwrap();
                    let before: usize = lines[..file].iter().sum();
                    prop_assert_eq!(spread.line.map(|line| before + line), one.line, "{} {}", spread, one);
                }
            }
            (spread, one) => prop_assert!(false, "{spread:?} {one:?}"),
        }
    }
}
