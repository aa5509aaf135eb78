//! Packs come back as they were sent, name no host and no user, and cannot harm their reader.

use std::io::Read;

use flate2::read::GzDecoder;

use super::*;
use crate::plan::Plan;
use crate::rows::{PlanSource, Writer};

const PLAN: &str = "vsock-siblings";

fn plan() -> Plan {
    Settings::default().plans(&[PLAN.into()]).unwrap().remove(0)
}

/// A row for every run of the plan, as a machine of this speed makes them.
pub fn rows_of(plan: &Plan, speed: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (number, factors) in plan.combinations.iter().enumerate() {
        for run in 1..=3 {
            let mut row = Row { version: rows::VERSION, run, wall_seconds: 61.0, ..Row::default() };
            row.describe(factors, &plan.named);
            row.accelerator = "kvm".into();
            let value = speed * (number + 1) as f64 + f64::from(run);
            match factors.test.is_transactional() {
                true => row.transactions_per_second = Some(value * 1e3),
                false => row.throughput_bps = Some(value * 1e9),
            }
            row.host_cpu_seconds = Some(10.0);
            row.setup.plan.clone_from(&plan.name);
            row.setup.seconds = 60.0;
            rows.push(row);
        }
    }
    rows[0].plan_source = Some(PlanSource { text: plan.source.clone(), quick: false });
    rows
}

fn keep(dir: &Path, rows: &[Row]) -> PathBuf {
    let mut writer = Writer::create(&dir.join(PLAN)).unwrap();
    rows.iter().for_each(|row| writer.add(row).unwrap());
    dir.join(PLAN)
}

fn about() -> About {
    let machine = Machine {
        cpu_model: "Some CPU".into(),
        cores: 8,
        governor: "powersave".into(),
        ..Machine::default()
    };
    About::new(Settings::default(), machine, Some("c0ffee".into()))
}

/// All of an archive, unpacked.
fn contents(path: &Path) -> Vec<(String, String)> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(path).unwrap()));
    let of = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry: tar::Entry<'_, GzDecoder<File>> = entry.unwrap();
        assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
        assert_eq!(entry.header().username_bytes().map(<[u8]>::len), Some(0));
        let (name, mut text) = (entry.path().unwrap().display().to_string(), String::new());
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    };
    archive.entries().unwrap().map(of).collect()
}

#[test]
fn what_was_packed_comes_back() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let rows = rows_of(&plan, 1.0);
    let results =
        [(PLAN.to_owned(), keep(dir.path(), &rows)), ("devices".to_owned(), dir.path().join("devices"))];
    let path = dir.path().join("a.tar.gz");
    let about = about();
    write(&path, &about, &results).unwrap();
    let pack = read(&path).unwrap();
    assert_eq!((pack.about, pack.results.len()), (about, 1));
    let mut wanted = rows;
    wanted[0].plan_source = None;
    assert_eq!(pack.results[PLAN], wanted);
    let names: Vec<String> = contents(&path).into_iter().map(|(name, _)| name).collect();
    let of = |name: &str| format!("vmlane-paper/{name}");
    assert_eq!(
        names,
        [
            of("README.txt"),
            of("about.json"),
            of("vsock-siblings/results.jsonl"),
            of("vsock-siblings/report.html")
        ]
    );
    assert!(!dir.path().join("a.tar.partial").exists() && !dir.path().join("a.partial").exists());
}

#[test]
fn nothing_in_a_pack_names_the_machine_its_user_or_its_paths() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut rows = rows_of(&plan, 1.0);
    let told = format!("{host}: cannot open {}: 52:54:00:12:34:56", dir.path().join("x").display());
    rows[1].failed = Some(told.clone());
    rows[1].log = Some(told.clone());
    rows[2].report = serde_json::json!({ "remote": { "said": told } });
    let path = dir.path().join("a.tar.gz");
    write(&path, &about(), &[(PLAN.to_owned(), keep(dir.path(), &rows))]).unwrap();
    let mac = "52:54:00:12:34:56";
    for (name, text) in contents(&path) {
        assert!(!text.contains(&dir.path().display().to_string()) && !text.contains(mac), "{name}");
        assert!(!text.contains(&format!("{host}: cannot")), "{name}");
    }
    let (_, results) = contents(&path).swap_remove(2);
    assert_eq!(results.matches("<host>: cannot open <path> <mac>").count(), 2, "{results}");
}

/// An archive of entries with any names and kinds.
fn archive(dir: &Path, entries: &[(&str, tar::EntryType, &[u8])]) -> PathBuf {
    let path = dir.join("h.tar.gz");
    let mut archive = tar::Builder::new(GzEncoder::new(File::create(&path).unwrap(), Compression::fast()));
    for (name, kind, bytes) in entries {
        let mut header = tar::Header::new_ustar();
        // As hostile tools do it: without the checks of `append_data`.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        if kind.is_symlink() {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        archive.append(&header, *bytes).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap();
    path
}

fn said(path: &Path) -> String {
    format!("{:#}", read(path).unwrap_err())
}

#[test]
fn hostile_packs_are_refused_by_the_name_of_what_is_wrong() {
    use tar::EntryType::{Directory, Regular, Symlink};
    let dir = tempfile::tempdir().unwrap();
    let about = serde_json::to_vec(&about()).unwrap();
    let (top, results) = ("vmlane-paper/about.json", "vmlane-paper/vsock-siblings/results.jsonl");
    let many: Vec<(&str, tar::EntryType, &[u8])> = vec![("vmlane-paper/README.txt", Regular, b""); 300];
    let long = vec![b' '; (32 << 20) + 1];
    let newer = br#"{"version":9}"#;
    let negative = {
        let mut row = rows_of(&plan(), 1.0).remove(0);
        row.throughput_bps = Some(-1.0);
        serde_json::to_vec(&row).unwrap()
    };
    let crowd = b"{}\n".repeat(5001);
    for (entries, parts) in [
        (vec![("vmlane-paper/../../x", Regular, &b"x"[..])], ["../../x", "no file that a pack has"]),
        (vec![("/etc/cron.d/x", Regular, b"x")], ["/etc/cron.d/x", "no file that a pack has"]),
        (vec![(top, Symlink, b"")], ["about.json", "no plain file"]),
        (vec![("vmlane-paper/devices", Directory, b"")], ["devices", "no plain file"]),
        (vec![("vmlane-paper/mine/results.jsonl", Regular, b"")], ["mine", "does not have"]),
        (vec![(top, Regular, &about), (top, Regular, &about)], ["about.json", "twice"]),
        (vec![(results, Regular, b"")], ["h.tar.gz", "has no vmlane-paper/about.json"]),
        (vec![(top, Regular, b"{")], ["about.json", "EOF"]),
        (vec![(top, Regular, newer)], ["version 9", "use the vmlane that wrote it"]),
        (vec![(results, Regular, b"\xff\xfe")], ["results.jsonl", "no text"]),
        (vec![(results, Regular, b"{\"version\":1}\n")], ["results.jsonl", "line 1"]),
        (vec![(results, Regular, &negative)], ["line 1", "-1 is nothing"]),
        (vec![(results, Regular, &crowd)], ["results.jsonl", "more than 5000 rows"]),
        (vec![(results, Regular, &long)], ["results.jsonl", "longer than 32 MiB"]),
        (many, ["h.tar.gz", "more than 256 files"]),
    ] {
        let error = said(&archive(dir.path(), &entries));
        for part in parts {
            assert!(error.contains(part), "{part} is missing: {error}");
        }
    }
    // Much that is nothing, in a small file.
    let readme: Vec<(&str, tar::EntryType, &[u8])> = vec![("vmlane-paper/README.txt", Regular, &long); 5];
    let bomb = archive(dir.path(), &readme);
    assert!(std::fs::metadata(&bomb).unwrap().len() < 2 << 20);
    assert!(said(&bomb).contains("more than 128 MiB"), "{}", said(&bomb));
    std::fs::write(dir.path().join("x.tar.gz"), "no archive").unwrap();
    assert!(said(&dir.path().join("x.tar.gz")).contains("no .tar.gz"));
    assert!(said(dir.path()).contains("no file"));
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "nothing was unpacked: {left:?}");
}

#[test]
fn a_pack_that_was_cut_short_is_refused() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = dir.path().join("a.tar.gz");
    write(&path, &about(), &[(PLAN.to_owned(), keep(dir.path(), &rows_of(&plan, 1.0)))]).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for part in [0, 1, 5, 9] {
        std::fs::write(&path, &bytes[..bytes.len() * part / 10]).unwrap();
        assert!(!said(&path).is_empty());
    }
}

#[test]
fn rows_are_what_the_plan_says_and_not_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = rows_of(&plan(), 1.0);
    rows.truncate(3);
    rows[0].device = "<script>".into();
    rows[0].factors.insert("colour".into(), "red".into());
    rows[0].setup.cpu_model = format!("x\u{1b}[2J{}", "y".repeat(5000));
    rows[1].id = "device=mine".into();
    let mut bytes = serde_json::to_vec(&about()).unwrap();
    bytes.push(b'\n');
    let lines: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
    let text = lines.join("\n") + "\n";
    let file = archive(
        dir.path(),
        &[
            ("vmlane-paper/about.json", tar::EntryType::Regular, &bytes),
            ("vmlane-paper/vsock-siblings/results.jsonl", tar::EntryType::Regular, text.as_bytes()),
        ],
    );
    let rows = read(&file).unwrap().results.remove(PLAN).unwrap();
    assert_eq!((rows.len(), rows[0].device.as_str()), (2, "vmci"));
    assert_eq!(rows[0].factor("colour"), "default");
    assert_eq!(rows[0].setup.cpu_model.len(), 120);
    assert!(!rows[0].setup.cpu_model.contains('\u{1b}'));
}
