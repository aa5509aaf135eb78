use std::path::Path;

use super::document::{DEEPEST, Edits, MOST_NODES, parse};
use super::*;

/// A VM `web` of these keys, beside a VM `db`.
fn config(keys: &str) -> Config {
    let text = format!("[[vm]]\nname = \"web\"\n{keys}\n[[vm]]\nname = \"db\"\ncid = 99\nowner = \"7:8\"\n");
    Config::parse(Path::new("t.toml"), &text).unwrap()
}

fn with<T>(keys: &str, emulator: Option<&str>, act: impl FnOnce(Attach<'_>) -> T) -> T {
    let (config, paths) = (config(keys), Paths::new(Path::new("/run/a'&b")).unwrap());
    let vm = config.vm("web").unwrap();
    act(Attach { config: &config, paths: &paths, vm, emulator: emulator.map(Path::new) })
}

fn xml(keys: &str) -> String {
    with(keys, None, |attach| attach.domain(512)).unwrap().xml
}

fn into(keys: &str, existing: &str) -> Result<Domain, Refused> {
    with(keys, None, |attach| attach.put_into(existing))
}

const ALL: &str = "cid = 3\nowner = \"500:501\"\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\" }, \
                   { model = \"vmxnet3\", mac = \"52:54:00:00:00:04\" }]";

/// As an administrator could have written it.
const EXISTING: &str = "<?xml version='1.0' encoding='UTF-8'?>
<!-- made by hand -->
<domain type='kvm' id='7'>
  <name>web</name>
  <uuid>4dea22b3-1d52-d8f3-2516-782e98ab3fa0</uuid>
  <memory unit='KiB'>1048576</memory>
  <os>
    <type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
  </os>
  <metadata>
    <app:note xmlns:app='urn:app'><app:name>a &lt; b</app:name></app:note>
  </metadata>
  <devices>
    <emulator>/usr/bin/kvm</emulator>
    <!-- the disk -->
    <disk type='file'><source file='/a&apos;b.img'/></disk>
    <interface type='bridge'>
      <mac address='52:54:00:00:00:03'/>
      <source bridge='br0'/>
      <target dev='vnet0'/>
      <model type='e1000'/>
      <vlan><tag id='5'/></vlan>
      <!-- its place -->
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </interface>
    <interface type='network'>
      <mac address='52:54:00:00:00:99'/>
      <source network='default'/>
    </interface>
  </devices>
  <seclabel type='dynamic' model='apparmor' relabel='yes'/>
</domain>
";

#[test]
fn virtio_nics_are_interfaces() {
    let xml = xml(
        "vsock = \"none\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", queues = 2, mtu = 9000 }]",
    );
    assert!(
        xml.contains("<source type='unix' path='/run/a&apos;&amp;b/vm/web/nic0.sock' mode='client'>"),
        "{xml}"
    );
    assert!(xml.contains("<driver queues='2' rx_queue_size='1024' tx_queue_size='1024'/>"), "{xml}");
    assert!(xml.contains("<mtu size='9000'/>") && !xml.contains("commandline"), "{xml}");
    assert!(xml.contains("<access mode='shared'/>"), "{xml}");
}

#[test]
fn a_vmm_that_listens_is_configured_to_listen() {
    let xml = xml("vsock = \"none\"\nnic = [{ model = \"virtio-net\", role = \"client\" }]");
    assert!(xml.contains("/vm/web/nic0.sock' mode='server'/>") && !xml.contains("reconnect"), "{xml}");
}

#[test]
fn what_libvirt_does_not_know_goes_to_qemu() {
    let xml = xml("cid = 3\nnic = [{ model = \"vmxnet3\" }, { model = \"virtio-net\" }]");
    let devices = xml.matches("&quot;driver&quot;:&quot;vfio-user-pci&quot;").count();
    assert_eq!((devices, xml.matches("<interface").count()), (2, 1), "{xml}");
    assert!(!xml.contains("memory-backend"), "{xml}");
}

/// QEMU 7.2 makes devices in JSON, as libvirt's are, after those in words, whatever their order.
#[test]
fn devices_for_qemu_are_json() {
    let keys = "cid = 3\nvsock = \"virtio\"\nnic = [{ model = \"vmxnet3\", slot = 192 }]";
    let words = with(keys, None, |attach| attach.arguments()).unwrap();
    let devices: Vec<&String> = words.iter().skip_while(|word| *word != "-device").skip(1).collect();
    assert_eq!(devices[0], r#"{"chardev":"vmlane-vsock","driver":"vhost-user-vsock-pci"}"#);
    let port = r#"{"chassis":202,"driver":"pcie-root-port","id":"vmlane-slot192","slot":192}"#;
    assert!(words.iter().any(|word| word == port), "{words:?}");
    for pair in words.windows(2).filter(|pair| pair[0] == "-device") {
        serde_json::from_str::<serde_json::Value>(&pair[1]).unwrap();
    }
}

#[test]
fn sixty_four_nics_are_interfaces_and_devices_behind_ports() {
    let keys = format!(
        "vsock = \"none\"\nnic = [{}]",
        "{ model = \"virtio-net\" }, { model = \"vmxnet3\" }, ".repeat(32)
    );
    let words = with(&keys, None, |attach| attach.arguments()).unwrap();
    let ports: Vec<serde_json::Value> = words
        .iter()
        .filter(|word| word.contains("pcie-root-port"))
        .map(|word| serde_json::from_str(word).unwrap())
        .collect();
    assert_eq!(ports.len(), 27);
    assert!(ports.iter().all(|port| port["multifunction"] == true && port["io-reserve"] == 0), "{ports:?}");
    assert_eq!((&ports[0]["addr"], &ports[8]["addr"]), (&"0x12.0".into(), &"0x13.0".into()));
    let xml = xml(&keys);
    assert_eq!((xml.matches("<interface").count(), xml.matches("vfio-user-pci").count()), (32, 32));
    let pc = EXISTING.replace("pc-q35-7.2", "pc");
    let refused = into(&keys, &pc).unwrap_err().to_string();
    assert!(refused.contains("NIC 11") && refused.contains("at most ten NICs"), "{refused}");
}

#[test]
fn the_owner_is_the_label_and_its_absence_a_note() {
    let domain = with(ALL, None, |attach| attach.domain(64)).unwrap();
    let label = "<seclabel type='static' model='dac' relabel='yes'><label>+500:+501</label></seclabel>";
    assert!(domain.xml.contains(label), "{}", domain.xml);
    assert!(domain.notes.iter().any(|note| note.contains("--emulator")), "{:?}", domain.notes);
    let notes = |keys: &str| with(keys, Some("/q"), |attach| attach.domain(64)).unwrap().notes.join("\n");
    assert!(notes("cid = 3").contains("no owner"));
    assert!(notes("cid = 3\nowner = \":5\"").contains("owned by a group"));
    assert!(notes("cid = 3\nowner = \"4000000\"").contains("not in /etc/passwd"));
    assert!(notes("cid = 3\nowner = \"7\"").contains("the domain of db may open the sockets"));
    assert!(notes("cid = 3\nowner = \"9:8\"").contains("the domain of db may open the sockets"));
    assert_eq!(notes("cid = 3\nowner = \"500:501\""), "");
}

#[test]
fn an_existing_domain_keeps_everything_else() {
    let domain = into(ALL, EXISTING).unwrap();
    let xml = &domain.xml;
    for word in [
        "<?xml version='1.0' encoding='UTF-8'?>\n<!-- made by hand -->\n<domain type='kvm' id='7' xmlns:qemu='",
        "<app:note xmlns:app='urn:app'><app:name>a &lt; b</app:name></app:note>",
        "<!-- the disk -->\n    <disk type='file'><source file='/a&apos;b.img'/></disk>",
        "<!-- its place -->\n      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>",
        "<mac address='52:54:00:00:00:99'/>\n      <source network='default'/>",
        "  <seclabel type='dynamic' model='apparmor' relabel='yes'/>\n  <seclabel type='static' model='dac'",
        "<memory unit='KiB'>1048576</memory>\n  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n  <os>",
        "    <interface type='vhostuser'>\n      <mac address='52:54:00:00:00:03'/>\n      <source type='unix' path='/run/a&apos;&amp;b/vm/web/nic0.sock' mode='client'>\n        <reconnect",
        "      <model type='virtio'/>",
        "  <qemu:commandline>\n    <qemu:arg value='-chardev'/>\n    <qemu:arg value='socket,id=vmlane-vsock,",
        "  </qemu:commandline>\n</domain>\n",
    ] {
        assert!(xml.contains(word), "{word}\n{xml}");
    }
    for word in ["br0", "vnet0", "<vlan>", "e1000"] {
        assert!(!xml.contains(word), "{word}\n{xml}");
    }
    assert!(
        domain.notes.iter().any(|note| note.contains("bridge") && note.contains(":03")),
        "{:?}",
        domain.notes
    );
}

#[test]
fn a_second_time_changes_nothing() {
    let once = into(ALL, EXISTING).unwrap().xml;
    assert_eq!(into(ALL, &once).unwrap().xml, once);
    // Neither in the domain that is printed complete, nor in one of fewer lines.
    let whole = xml(ALL);
    assert_eq!(into(ALL, &whole).unwrap().xml, whole);
    let short = "<domain type='qemu'><name>x</name><memory>9</memory><devices/></domain>";
    let once = into(ALL, short).unwrap().xml;
    assert!(once.contains("<devices>\n"), "{once}");
    assert_eq!(into(ALL, &once).unwrap().xml, once);
}

#[test]
fn a_changed_configuration_changes_what_was_put_in() {
    let once = into(ALL, EXISTING).unwrap().xml;
    let other = "cid = 3\nowner = \"500:501\"\nnic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]";
    let domain = into(other, &once).unwrap();
    let xml = &domain.xml;
    assert_eq!(xml.matches("<interface").count(), 1, "{xml}");
    assert_eq!(
        (xml.matches("vfio-user-pci").count(), xml.matches("vhost-user-vsock").count()),
        (2, 0),
        "{xml}"
    );
    assert!(domain.notes.iter().any(|note| note.contains("taken out")), "{:?}", domain.notes);
    assert_eq!(into(other, xml).unwrap().xml, *xml);
    let queues = ALL.replace("\"52:54:00:00:00:03\"", "\"52:54:00:00:00:03\", queues = 2, packed = true");
    let xml = into(&queues, &once).unwrap().xml;
    assert!(
        xml.contains("<driver queues='2' rx_queue_size='1024' tx_queue_size='1024' packed='on'/>"),
        "{xml}"
    );
    assert!(xml.contains("slot='0x00' function='0x0'/>"), "{xml}");
    assert_eq!(into(ALL, &xml).unwrap().xml, once);
}

#[test]
fn other_arguments_for_qemu_stay() {
    let own = "  <qemu:commandline>\n    <qemu:arg value='-device'/>\n    <qemu:arg value='pvpanic'/>\n    <!-- mine -->\n  \
               </qemu:commandline>\n</domain>";
    let existing = EXISTING
        .replace("id='7'", "id='7' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'")
        .replace("</domain>", own);
    let once = into(ALL, &existing).unwrap().xml;
    assert!(once.contains("<qemu:arg value='pvpanic'/>") && once.contains("<!-- mine -->"), "{once}");
    assert_eq!(once.matches("<qemu:commandline>").count(), 1);
    let without = into("vsock = \"none\"\nowner = \"500:501\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\" }]", &once).unwrap().xml;
    assert!(without.contains("pvpanic") && !without.contains("vmlane-vsock"), "{without}");
    // Another prefix is as good, and so is a default namespace of the element's own.
    let other = existing.replace("qemu:", "q:").replace("xmlns:qemu", "xmlns:q");
    assert!(into(ALL, &other).unwrap().xml.contains("<q:arg value='socket,id=vmlane-vsock,"));
    let other = existing
        .replace("<qemu:commandline>", "<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'>")
        .replace("</qemu:c", "</c")
        .replace("<qemu:arg", "<arg");
    let once = into(ALL, &other).unwrap().xml;
    assert!(once.contains("<arg value='socket,id=vmlane-vsock,"), "{once}");
    assert_eq!(into(ALL, &once).unwrap().xml, once);
    // So is a name of the namespace that is written with entities.
    let other = existing.replace("'http://libvirt.org/", "'http:&#47;&#x2f;libvirt.org/");
    let once = into(ALL, &other).unwrap().xml;
    assert_eq!(once.matches("<qemu:commandline>").count(), 1, "{once}");
    assert_eq!(into(ALL, &once).unwrap().xml, once);
}

#[test]
fn all_memory_is_shared() {
    let memory = |backing: &str| {
        let existing = EXISTING.replace("  <os>", &format!("  {backing}\n  <os>"));
        let xml = into(ALL, &existing).unwrap().xml;
        assert_eq!(into(ALL, &xml).unwrap().xml, xml);
        let from = xml.find("<memoryBacking>").unwrap();
        xml[from..xml.find("</memoryBacking>").unwrap()].to_owned()
    };
    let plain = memory("<memoryBacking><locked/></memoryBacking>");
    assert!(plain.contains("<locked/>") && plain.contains("memfd") && plain.contains("shared"), "{plain}");
    let huge = memory("<memoryBacking><hugepages/><access mode='private'/></memoryBacking>");
    assert!(!huge.contains("source") && huge.contains("<access mode='shared'/>"), "{huge}");
    let anonymous = memory("<memoryBacking><source type='anonymous'/></memoryBacking>");
    assert!(anonymous.contains("<source type='memfd'/>"), "{anonymous}");
    let file = memory("<memoryBacking><source type='file'/><access mode='shared'/></memoryBacking>");
    assert!(file.contains("<source type='file'/>"), "{file}");
    let cells = EXISTING.replace(
        "  <os>",
        "  <cpu><numa><cell id='0' cpus='0' memory='9' memAccess='private'/><cell id='1' memory='9'/></numa></cpu>\n  <os>",
    );
    let xml = into(ALL, &cells).unwrap().xml;
    assert!(xml.contains("memory='9' memAccess='shared'/><cell id='1' memory='9'/>"), "{xml}");
}

#[test]
fn what_does_not_fit_is_refused_with_the_way_out() {
    let is = |keys: &str, existing: &str, words: &[&str]| {
        let error = into(keys, existing).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let with = |from: &str, to: &str| EXISTING.replace(from, to);
    is(ALL, "<network/>", &["<network>", "dumpxml"]);
    is(ALL, &with("type='kvm'", "type='xen'"), &["\"xen\"", "kvm and qemu"]);
    is(ALL, "<domain type='kvm'><name>a</name></domain>", &["<devices>"]);
    is(ALL, &with("<emulator>", "<vsock model='virtio'/><emulator>"), &["<vsock>", "vsock = \"none\""]);
    let other = "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:arg value='-chardev'/>\
                 <qemu:arg value='socket,id=c,path=/run/a&apos;&amp;b/vm/db/vsock.sock,x=y'/></qemu:commandline></domain>";
    is(ALL, &with("</domain>", other), &["/vm/db/vsock.sock", "VM db", "not to web"]);
    let label = "<seclabel type='static' model='dac'><label>+107:+104</label></seclabel></domain>";
    is(ALL, &with("</domain>", label), &["+107:+104", "+500:+501"]);
    let slot = ALL.replace("\"52:54:00:00:00:04\"", "\"52:54:00:00:00:04\", slot = 192");
    is(&slot, &with("pc-q35-7.2", "pc-i440fx-7.2"), &["pc-i440fx-7.2", "NIC 1", "q35", "remove slot"]);
    is(ALL, &with("pc-q35-7.2", "microvm"), &["microvm", "q35"]);
    is(ALL, &with("id='7'", "xmlns:qemu='urn:x'"), &["urn:x"]);
}

#[test]
fn labels_are_read_as_libvirt_reads_them() {
    let accounts = Accounts::of("web:x:500:501::/:/bin/false\n", "kvm:x:104:\n");
    let is = |text, uid, gid| assert_eq!(Label::parse(text, &accounts), Some(Label { uid, gid }), "{text}");
    is("+500:+501", 500, 501);
    is("web:kvm", 500, 104);
    is(" 7:8\n", 7, 8);
    for text in ["", "web", "nobody-here:kvm", ":", "+:+", "500:"] {
        assert_eq!(Label::parse(text, &accounts), None, "{text}");
    }
}

#[test]
fn an_owner_that_other_domains_run_as_is_noted() {
    let accounts = Accounts::of("libvirt-qemu:x:64055:104::/:/bin/false\n", "kvm:x:104:\n");
    let note = |owner: &str| {
        let config = config(&format!("cid = 3\nowner = \"{owner}\""));
        label::of_all_domains(config.vm("web").unwrap(), &accounts)
    };
    assert!(note("64055").unwrap().contains("libvirt-qemu"));
    assert!(note("500:104").unwrap().contains("kvm"));
    assert_eq!((note("500"), note("500:501")), (None, None));
}

#[test]
fn hostile_documents_are_refused() {
    let is = |text: &str, word: &str| {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    is(&" ".repeat(MOST_BYTES + 1), "bytes");
    is(&("<a>".repeat(DEEPEST + 1) + &"</a>".repeat(DEEPEST + 1)), "deep");
    is(&format!("<a>{}</a>", "<b/>".repeat(MOST_NODES as usize)), "elements");
    is("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "DOCTYPE");
    is("<a>&b;</a>", "1:4");
    is("<a b='&c;'/>", "1:7");
    is("<?xml version='1.0' encoding='latin1'?><a/>", "UTF-8");
    for text in ["", "a", "<a>", "<a></b>", "<a/><b/>", "<a/>x", "</a>", "<a b='1' b='2'/>", "<a b=1/>"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn edits_of_one_element_do_not_meet() {
    let source = "<a>\n  <b c='1'/>\n  <d/>\n</a>";
    let root = parse(source).unwrap();
    let mut edits = Edits::of(source);
    edits.set(root.first("b").unwrap(), "c", "<2>");
    edits.set(root.first("b").unwrap(), "e", "3");
    edits.remove(root.first("d").unwrap());
    edits.append(&root, "<f/>\n");
    assert_eq!(edits.apply(), "<a>\n  <b c='&lt;2&gt;' e='3'/>\n  <f/>\n</a>");
}

proptest::proptest! {
    /// Whatever a tenant writes, the answer is a domain or a refusal; and a second time changes nothing.
    #[test]
    fn mutilated_domains_are_answered(from in 0..EXISTING.len(), len in 0usize..60, what in "[<>/'& a-z=:]{0,8}") {
        let mut text = EXISTING.to_owned();
        text.replace_range(from..(from + len).min(EXISTING.len()), &what);
        if let Ok(domain) = into(ALL, &text) {
            proptest::prop_assert_eq!(into(ALL, &domain.xml).unwrap().xml, domain.xml);
        }
    }
}
