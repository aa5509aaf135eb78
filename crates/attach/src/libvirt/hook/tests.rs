use super::*;
use crate::libvirt::Attach;

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nowner = \"500:501\"\nvsock = \"virtio\"\n\
                      nic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\" }, { model = \"vmxnet3\" }]\n\
                      [[vm]]\nname = \"db\"\nvsock = \"none\"\nowner = \"600:601\"\nnic = [{ model = \"virtio-net\" }]\n\
                      domain = \"Data Base\"\n\
                      [[vm]]\nname = \"id\"\ncid = 5\ndomain = \"4DEA22B3-1d52-d8f3-2516-782e98ab3fa0\"\n";

fn config() -> Config {
    Config::parse(Path::new("t.toml"), CONFIG).unwrap()
}

fn paths() -> Paths {
    Paths::new(Path::new("/run/vmlane-test")).unwrap()
}

fn domain(vm: &str) -> String {
    let config = config();
    let attach = Attach { config: &config, paths: &paths(), vm: config.vm(vm).unwrap(), emulator: None };
    attach.domain(64).unwrap().xml
}

fn asked(name: &str, operation: Operation, xml: &str) -> Result<Option<String>, String> {
    let (config, accounts) = (config(), Accounts::default());
    let answer = judge(&config, &paths(), &accounts, Start { name, operation, xml });
    answer.map(|vm| vm.map(|vm| vm.name.clone())).map_err(|error| error.to_string())
}

fn denied(name: &str, xml: &str, words: &[&str]) {
    let error = asked(name, Operation::Prepare, xml).unwrap_err();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn a_domain_is_a_vm_by_its_name_or_by_what_the_configuration_calls_it() {
    let is = |name: &str, xml: &str, vm: Option<&str>| {
        assert_eq!(asked(name, Operation::Prepare, xml), Ok(vm.map(str::to_owned)), "{name}");
    };
    is("web", &domain("web"), Some("web"));
    is("Data Base", &domain("db"), Some("db"));
    let uuid = "<uuid>4dea22b3-1d52-d8f3-2516-782e98ab3fa0</uuid>";
    is("x", &domain("id").replace("<memory ", &format!("{uuid}<memory ")), Some("id"));
    is("other", "<domain type='kvm'><name>other</name></domain>", None);
    is("web", "<domain type='kvm'><name>web</name></domain>", None);
    denied("db", &domain("db"), &["of VM db", "domain = \"db\""]);
    denied("x", &domain("id"), &["vmci.sock of VM id", "neither by name nor by UUID"]);
    denied(
        "Data Base",
        "<domain type='kvm'><name>Data Base</name></domain>",
        &["VM db", "lacks", "nic0.sock"],
    );
}

#[test]
fn sockets_of_other_vms_are_refused_wherever_they_are_named() {
    let add = |element: &str| domain("web").replace("</devices>", &format!("{element}</devices>"));
    let words = &["it is VM web", "/vm/db/nic0.sock", "belongs to VM db"];
    let path = "/run/vmlane-test/vm/db/nic0.sock";
    denied("web", &add(&format!("<interface type='vhostuser'><source path='{path}'/></interface>")), words);
    denied("web", &add(&format!("<disk><source file='{path}'/></disk>")), words);
    denied("web", &add(&format!("<rng><backend>{path}</backend></rng>")), words);
    let escaped = path.replace("db", "&#100;b");
    denied("web", &add(&format!("<disk><source file='{escaped}'/></disk>")), words);
    let arg = |value: &str| {
        let arg = format!("<qemu:arg value='{value}'/></qemu:commandline>");
        domain("web").replace("</qemu:commandline>", &arg)
    };
    denied("web", &arg(&format!("socket,id=x,path={path},reconnect=1")), words);
    denied("web", &arg(&format!("{{&quot;path&quot;:&quot;{}&quot;}}", path.replace('/', "\\/"))), words);
    // libvirt reads the name of a namespace without its entities.
    let hidden = arg(path).replace("http://libvirt.org/", "http:&#47;&#x2f;libvirt.org/");
    denied("web", &hidden, words);
    denied("other", &format!("<domain><a b='{path}'/></domain>"), &["of VM db", "domain = \"other\""]);
    // A domain's description opens nothing.
    let text = format!("<domain><name>o</name><description>{path}</description></domain>");
    assert_eq!(asked("o", Operation::Prepare, &text), Ok(None));
}

#[test]
fn links_to_sockets_are_the_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    std::fs::create_dir_all(real.join("vm/db")).unwrap();
    std::fs::write(real.join("vm/db/nic0.sock"), "").unwrap();
    std::os::unix::fs::symlink(&real, dir.path().join("link")).unwrap();
    let paths = Paths::new(&real).unwrap();
    for way in ["link/vm/db", "real/vm/../vm/db", "real/./vm//db"] {
        let xml = format!("<domain><a>{}/{way}/nic0.sock</a></domain>", dir.path().display());
        let start = Start { name: "x", operation: Operation::Prepare, xml: &xml };
        let error = judge(&config(), &paths, &Accounts::default(), start).unwrap_err();
        assert!(matches!(error, Denied::NoVm { ref vm, .. } if vm == "db"), "{way}: {error}");
    }
}

#[test]
fn a_domain_that_does_not_go_with_its_vm_is_refused() {
    let web = domain("web");
    denied("web", &web.replace("52:54:00:00:00:03", "52:54:00:00:00:04"), &[":04", ":03", "--into"]);
    denied("web", &web.replace("mode='shared'", "mode='private'"), &["memory is not shared"]);
    denied("web", &web.replace("+500:+501", "+500000:+501"), &["+500000:+501", "+500:+501"]);
    denied("web", &web.replace("model='dac'", "model='selinux'"), &["libvirt's own user", "+500:+501"]);
    denied("web", &web.replace("nic1.sock", "nic7.sock"), &["lacks", "nic1.sock"]);
    denied("web", "<!DOCTYPE a><domain/>", &["DOCTYPE"]);
}

/// Else a tenant could have the label, and with it the sockets, of another tenant's VM.
#[test]
fn an_owners_label_is_for_that_owners_domain() {
    let label = |kind: &str, label: &str| {
        format!("<domain><seclabel type='{kind}' model='dac'><label>{label}</label></seclabel></domain>")
    };
    denied("x", &label("static", "+600:+9"), &["+600:+9", "owner of VM db"]);
    denied("x", &label("static", "9:601"), &["owner of VM db"]);
    assert_eq!(asked("x", Operation::Prepare, &label("static", "+7:+7")), Ok(None));
    assert_eq!(asked("x", Operation::Prepare, &label("dynamic", "+600:+601")), Ok(None));
}

#[test]
fn memory_can_come_along_with_virtio_nics_only() {
    for operation in [Operation::Restore, Operation::Migrate] {
        assert_eq!(asked("Data Base", operation, &domain("db")), Ok(Some("db".into())));
        let error = asked("web", operation, &domain("web")).unwrap_err();
        assert!(error.contains("VMXNET3") && error.contains("--force-boot"), "{error}");
    }
    assert_eq!(Operation::of("prepare", "begin"), Some(Operation::Prepare));
    assert_eq!(Operation::of("stopped", "end"), None);
}
