//! What of a libvirt domain an edit for a VM must leave as it was, as a parser sees it that the editor does
//! not use.

use std::path::Path;

use roxmltree::{Document, Node, NodeType};
use vmlane_attach::libvirt::Attach;
use vmlane_config::VmConfig;

/// The namespace of what libvirt passes on to QEMU.
const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";
/// Parts of QEMU's arguments that may be the VM's.
const OURS: [&str; 4] =
    ["vmlane-", "vfio-user-pci", "acpi-pci-hotplug-with-bridge-support", "ICH9-LPC.disable_s3"];

/// Everything but the VM's own devices: a line for each element, comment and processing instruction, in their
/// order. None: that parser does not take it.
pub fn others(xml: &str, attach: Attach<'_>) -> Option<Vec<String>> {
    let document = Document::parse(xml).ok()?;
    let mut lines = Vec::new();
    for node in document.root().children() {
        collect(node, "", attach, &mut lines);
    }
    Some(lines)
}

fn collect(node: Node<'_, '_>, path: &str, attach: Attach<'_>, lines: &mut Vec<String>) {
    match node.node_type() {
        NodeType::Element => {}
        NodeType::Comment => return lines.push(format!("{path}: comment {:?}", node.text())),
        NodeType::PI => return lines.push(format!("{path}: {:?}", node.pi())),
        _ => return,
    }
    let name = node.tag_name();
    // Names of namespaces may have any letter, so what is libvirt's has none in front.
    let path = match name.namespace() {
        None => format!("{path}/{}", name.name()),
        Some(QEMU) => format!("{path}/qemu {}", name.name()),
        Some(other) => format!("{path}/{{{other}}}{}", name.name()),
    };
    if is_ours(node, &path, attach) {
        return;
    }
    let mut attributes: Vec<String> = node
        .attributes()
        .filter(|attribute| !is_shared_memory(&path, attribute.name()))
        .map(|attribute| format!("{:?} {}={:?}", attribute.namespace(), attribute.name(), attribute.value()))
        .collect();
    attributes.sort();
    let text: String = node.children().filter(Node::is_text).filter_map(|text| text.text()).collect();
    let text: String = text.split_whitespace().collect();
    let may_be_new = ["/domain/memoryBacking", "/domain/qemu commandline"].contains(&path.as_str());
    if !may_be_new || !attributes.is_empty() || !text.is_empty() {
        lines.push(format!("{path} {attributes:?} {text:?}"));
    }
    for child in node.children() {
        collect(child, &path, attach, lines);
    }
}

/// What an edit may change as it likes.
fn is_ours(node: Node<'_, '_>, path: &str, attach: Attach<'_>) -> bool {
    match path {
        "/domain/memoryBacking/source" | "/domain/memoryBacking/access" => true,
        "/domain/seclabel" => node.attribute("model") == Some("dac"),
        "/domain/devices/emulator" => attach.emulator.is_some(),
        "/domain/devices/interface" => is_nic(node, attach.vm, &attach.paths.vm(&attach.vm.name)),
        "/domain/qemu commandline/qemu arg" => {
            let value = node.attribute("value").unwrap_or_default();
            value.starts_with('-') || OURS.iter().any(|part| value.contains(part))
        }
        _ => false,
    }
}

/// An interface with an address or a socket of the VM.
fn is_nic(interface: Node<'_, '_>, vm: &VmConfig, sockets: &Path) -> bool {
    let of = |element: &str, attribute: &str| {
        let child = interface.children().find(|child| child.has_tag_name(element));
        child.and_then(|child| child.attribute(attribute)).unwrap_or_default().to_owned()
    };
    let mac = of("mac", "address");
    let has_mac = vm.nics.iter().any(|nic| nic.mac.to_string().eq_ignore_ascii_case(&mac));
    has_mac || Path::new(&of("source", "path")).starts_with(sockets)
}

/// Attributes that show whether a part of the memory is shared.
fn is_shared_memory(path: &str, attribute: &str) -> bool {
    matches!((path, attribute), ("/domain/cpu/numa/cell", "memAccess") | ("/domain/devices/memory", "access"))
}
