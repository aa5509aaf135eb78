//! Descriptions of the shapes that VMware, VirtualBox and libvirt write, each with all that comes of it.
//! `VMLANE_WRITE=1` writes what comes of them now. Those with many networks have the shape of public files:
//! `ten-cards.vmx` that of github.com/libvirt/libvirt, `tests/vmx2xmldata/vmx2xml-esx-in-the-wild-8.vmx`;
//! `many-networks.ovf` that of github.com/glennmatthews/cot, `COT/tests/iosv.ovf` and `csr1000v.ovf`;
//! `three-networks.vmx` that of github.com/hooklift/govmx, `decode_test.go`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use vmlane_import::{Machine, Options, configuration, host, libvirt, ovf, vmx, words};

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let kinds = ["vmx", "ovf", "xml"];
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| kinds.contains(&path.extension().and_then(|kind| kind.to_str()).unwrap_or_default()))
        .collect();
    files.sort();
    files
}

fn machines(path: &Path, text: &[u8]) -> Vec<Machine> {
    match path.extension().and_then(|kind| kind.to_str()) {
        Some("vmx") => vec![vmx(text).unwrap()],
        Some("ovf") => ovf(text).unwrap(),
        _ => vec![libvirt(text).unwrap()],
    }
}

/// Configuration, notes and QEMU's words, one under another.
fn outcome(machines: &[Machine], options: &Options) -> String {
    let done = configuration(machines, options);
    let mut text = done.toml.clone();
    for note in &done.notes {
        let _ = writeln!(text, "# {note}");
    }
    for (name, machine) in done.names.iter().zip(machines) {
        let name = name.as_deref().unwrap_or("left out");
        let _ = writeln!(text, "# {name}: {} MiB", machine.memory_mib.unwrap_or_default());
        for word in words(name, machine) {
            let _ = writeln!(text, "#   {word}");
        }
    }
    text
}

#[test]
fn each_description_becomes_what_is_expected() {
    let files = fixtures();
    assert!(files.len() >= 20, "{} fixtures", files.len());
    let groups = std::fs::read_to_string(files[0].with_file_name("portgroups.esxcli.txt")).unwrap();
    let esx = host("esx1", &groups).unwrap();
    let mut wrong = String::new();
    for file in files {
        let text = std::fs::read(&file).unwrap();
        let of_esxi = file.extension().is_some_and(|kind| kind == "vmx");
        let hosts = if of_esxi { vec![esx.clone()] } else { Vec::new() };
        let came = outcome(&machines(&file, &text), &Options { hosts, ..Options::default() });
        let mut expected = file.clone().into_os_string();
        expected.push(".expected");
        if std::env::var_os("VMLANE_WRITE").is_some() {
            std::fs::write(&expected, &came).unwrap();
        }
        let expected = std::fs::read_to_string(&expected).unwrap_or_default();
        if expected != came {
            let _ = writeln!(wrong, "==> {} became\n{came}\n<== and not\n{expected}", file.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn strangers_files_are_refused_with_their_reason() {
    for (of, text, words) in [
        (ovf("<Envelope/>").map(drop), "no system", "no VirtualSystem"),
        (ovf("<domain/>").map(drop), "a domain", "not Envelope"),
        (libvirt("<domainsnapshot/>").map(drop), "a snapshot", "not domain"),
        (libvirt("<domain>").map(drop), "cut short", "never closed"),
        (libvirt("<!DOCTYPE d [<!ENTITY a \"b\">]><domain>&a;</domain>").map(drop), "entities", "DTD"),
        (vmx("").map(drop), "nothing", "describes no VM"),
    ] {
        let error = of.expect_err(text).to_string();
        assert!(error.to_lowercase().contains(&words.to_lowercase()), "{text}: {error}");
    }
}
