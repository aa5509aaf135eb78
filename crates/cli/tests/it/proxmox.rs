//! The hookscript for Proxmox VE, run by Perl with the part of Proxmox that it asks; and a QEMU with its
//! `args`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use vmlane_testkit::{Ran, run, write_program};

use crate::common::VMLANE;

const SCRIPT: &str = include_str!("../../../../packaging/proxmox/vmlane.pl");
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

    fn perl(&self, words: &[&str]) -> Ran {
        let mut perl = Command::new("perl");
        perl.arg("-I").arg(self.0.path()).args(words).env("STUB_DIR", self.0.path());
        perl.current_dir(self.0.path());
        run(perl)
    }

    fn args(&self, mem: &str) -> String {
        let mut command = Command::new(self.path("vmlane"));
        command.args(["proxmox-args", "web", "--mem", mem]);
        run(command).out.trim_end().to_owned()
    }

    fn pre_start(&self, config: &str) -> (bool, String) {
        fs::write(self.path("100.conf"), config).unwrap();
        let ran = self.perl(&["vmlane.pl", "100", "pre-start"]);
        (ran.succeeded(), ran.err)
    }
}

#[test]
fn perl_takes_the_hookscript() {
    let setup = Setup::new(true);
    let ran = setup.perl(&["-cw", "vmlane.pl"]);
    assert_eq!((ran.code, &*ran.err), (0, "vmlane.pl syntax OK\n"));
    for words in [&["vmlane.pl"][..], &["vmlane.pl", "1x", "pre-start"]] {
        assert!(setup.perl(words).err.contains("usage"));
    }
    // Another phase asks nothing.
    setup.perl(&["vmlane.pl", "99", "post-stop"]).good();
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
            "qm set 100 --args \"$(vmlane attach web --for proxmox --mem 2048)\"",
        ),
        (format!("args: {args} -S\nmemory: 512\n"), "are not those of vmlane's VM web"),
        (format!("args: {args}\nmemory: 512\nnuma: 1\n"), "numa"),
        (format!("args: {args} {}\n", args.replace("vm/web", "vm/db")), "several VMs: db web"),
        (format!("args: {}\nmemory: 512\n", args.replace("vm/web", "vm/db")), "VM \"db\" is not in"),
    ] {
        let (started, printed) = setup.pre_start(&config);
        assert!(!started && printed.contains(word), "{config}\n{printed}");
    }
    let (started, printed) = Setup::new(false).pre_start("name: other\n");
    assert!(started, "{printed}");
    let setup = Setup::new(false);
    let (started, printed) = setup.pre_start(&format!("args: {}\nmemory: 512\n", setup.args("512")));
    assert!(!started && printed.contains("'vmlane status' failed"), "{printed}");
}
