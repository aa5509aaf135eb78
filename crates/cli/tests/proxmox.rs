//! The hookscript for Proxmox VE, run by Perl with the part of Proxmox that it asks; and a QEMU with its `args`.

#[path = "common/script.rs"]
mod script;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use script::write_program;

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const SCRIPT: &str = include_str!("../../../packaging/proxmox/vmlane.pl");
const CONFIG: &str =
    "[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\" }]\n";
/// In the place of Proxmox VE's own: the lines of the file that it would read.
const STUB: &str = r#"package PVE::QemuConfig;
sub load_config {
    my ($class, $vmid) = @_;
    open(my $file, '<', "$ENV{STUB_DIR}/$vmid.conf") or die "no VM $vmid\n";
    return { map { m/^(\w+): (.*)$/ } <$file> };
}
1;
"#;

struct Setup(tempfile::TempDir);

impl Setup {
    /// The daemon answers, or not.
    fn new(daemon: bool) -> Setup {
        let setup = Setup(tempfile::tempdir().unwrap());
        fs::create_dir(setup.path("PVE")).unwrap();
        fs::write(setup.path("PVE/QemuConfig.pm"), STUB).unwrap();
        fs::write(setup.path("vmlane.toml"), CONFIG).unwrap();
        let (run, config) = (setup.path("run"), setup.path("vmlane.toml"));
        let program = format!(
            "#!/bin/sh\nif [ \"$1\" = status ]; then exit {}; fi\nexec {VMLANE} \"$@\" --config {} --runtime-dir {}\n",
            i32::from(!daemon),
            config.display(),
            run.display()
        );
        write_program(&setup.path("vmlane"), &program);
        let script = SCRIPT
            .replace("'/usr/bin/vmlane'", &format!("'{}'", setup.path("vmlane").display()))
            .replace("'/run/vmlane'", &format!("'{}'", run.display()));
        fs::write(setup.path("vmlane.pl"), script).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn perl(&self, words: &[&str]) -> Output {
        let mut perl = Command::new("perl");
        perl.arg("-I").arg(self.0.path()).args(words).env("STUB_DIR", self.0.path());
        perl.current_dir(self.0.path()).output().expect("perl")
    }

    fn args(&self, mem: &str) -> String {
        let output =
            Command::new(self.path("vmlane")).args(["proxmox-args", "web", "--mem", mem]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn pre_start(&self, config: &str) -> (bool, String) {
        fs::write(self.path("100.conf"), config).unwrap();
        let output = self.perl(&["vmlane.pl", "100", "pre-start"]);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn perl_takes_the_hookscript() {
    let setup = Setup::new(true);
    let output = setup.perl(&["-cw", "vmlane.pl"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "vmlane.pl syntax OK\n");
    for words in [&["vmlane.pl"][..], &["vmlane.pl", "1x", "pre-start"]] {
        assert!(String::from_utf8_lossy(&setup.perl(words).stderr).contains("usage"));
    }
    // Another phase asks nothing.
    assert!(setup.perl(&["vmlane.pl", "99", "post-stop"]).status.success());
}

#[test]
fn a_vm_starts_with_the_args_of_the_configuration_and_a_daemon() {
    let setup = Setup::new(true);
    let args = setup.args("512");
    assert_eq!(setup.pre_start("name: other\nmemory: 2048\n"), (true, String::new()));
    assert_eq!(setup.pre_start(&format!("args: {args}\nmemory: 512\n")), (true, String::new()));
    assert_eq!(setup.pre_start(&format!("args: {args}\nmemory: current=512\n")), (true, String::new()));
    for (config, word) in [
        (
            format!("args: {args}\nmemory: 2048\n"),
            "qm set 100 --args \"$(vmlane proxmox-args web --mem 2048)\"",
        ),
        (format!("args: {args} -S\nmemory: 512\n"), "are not those of vmlane's VM web"),
        (format!("args: {args}\nmemory: 512\nnuma: 1\n"), "numa"),
        (format!("args: {args} {}\n", args.replace("vm/web", "vm/db")), "several VMs: db web"),
        (format!("args: {}\nmemory: 512\n", args.replace("vm/web", "vm/db")), "VM \"db\" is not in"),
    ] {
        let (started, said) = setup.pre_start(&config);
        assert!(!started && said.contains(word), "{config}\n{said}");
    }
    let (started, said) = Setup::new(false).pre_start("name: other\n");
    assert!(started, "{said}");
    let setup = Setup::new(false);
    let (started, said) = setup.pre_start(&format!("args: {}\nmemory: 512\n", setup.args("512")));
    assert!(!started && said.contains("'vmlane status' failed"), "{said}");
}
