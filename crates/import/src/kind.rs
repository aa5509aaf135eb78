//! Files that are no description of the kind that is read, named as what they are.

use crate::Error;

/// What a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Vmx,
    Ovf,
    Libvirt,
    /// What ESXi's tools print.
    Listing,
}

/// How files begin that are no text: where, with what, what they are, and the way out.
const MAGIC: &[(usize, &[u8], &str, &str)] = &[
    (0, b"\x1f\x8b", "compressed by gzip", "unpack it with gunzip first"),
    (0, b"BZh", "compressed by bzip2", "unpack it with bunzip2 first"),
    (0, b"\xfd7zXZ\0", "compressed by xz", "unpack it with unxz first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with unzstd first"),
    (0, b"PK\x03\x04", "a zip archive", "unpack it and give the description that is in it"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and give the description that is in it"),
    (257, b"ustar", "a tar archive, as an .ova is", "unpack it with tar -xf and give the .ovf that is in it"),
    (0, b"KDMV", "a VMDK disk", DESCRIPTION),
    (0, b"COWD", "a VMDK disk", DESCRIPTION),
    (0, b"# Disk DescriptorFile", "the descriptor of a VMDK disk", DESCRIPTION),
    (0, b"QFI\xfb", "a qcow2 disk", DESCRIPTION),
    (0, b"vhdxfile", "a VHDX disk", DESCRIPTION),
    (0, b"conectix", "a VHD disk", DESCRIPTION),
    (0, b"<<< ", "a VDI disk", DESCRIPTION),
    (0, b"\xff\xfe", "text in UTF-16", UTF_16),
    (0, b"\xfe\xff", "text in UTF-16", UTF_16),
];
const DESCRIPTION: &str = "give the description of its VM (.vmx, .ovf, or libvirt's XML)";
const UTF_16: &str = "convert it with iconv -f UTF-16 -t UTF-8 first";
/// So much is examined for bytes that no text has.
const HEAD: usize = 4096;

/// Refuses a file that is of another kind than the expected one.
pub fn refuse_others(bytes: &[u8], expected: Expected) -> Result<(), Error> {
    for (at, magic, is, way_out) in MAGIC {
        if bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)) {
            return Err(Error::kind(*is, *way_out));
        }
    }
    let head = bytes.get(..HEAD).unwrap_or(bytes);
    match head {
        [0, letter, 0, ..] if *letter != 0 => {
            return Err(Error::kind("text in UTF-16", "convert it with iconv -f UTF-16BE -t UTF-8 first"));
        }
        [letter, 0, next, 0, ..] if *letter != 0 && *next != 0 => {
            return Err(Error::kind("text in UTF-16", "convert it with iconv -f UTF-16LE -t UTF-8 first"));
        }
        _ => {}
    }
    if head.contains(&0) {
        return Err(Error::kind("a binary file", DESCRIPTION));
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    match outermost(text) {
        Some(root) => other_xml(root, expected),
        None => other_text(text, expected),
    }
}

/// The name of the outermost element, if a text begins as XML does.
fn outermost(text: &str) -> Option<&str> {
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.split_once("-->")?.1;
        } else if rest.starts_with("<?") || rest.starts_with("<!") {
            rest = rest.split_once('>')?.1;
        } else {
            let element = rest.strip_prefix('<')?;
            let end = |letter: char| letter.is_whitespace() || "/>".contains(letter);
            let name = element.split(end).next()?;
            return Some(name.rsplit(':').next().unwrap_or(name)).filter(|name| !name.is_empty());
        }
    }
}

fn other_xml(root: &str, expected: Expected) -> Result<(), Error> {
    let wanted = match expected {
        Expected::Ovf => "Envelope",
        Expected::Libvirt => "domain",
        Expected::Listing => {
            return Err(Error::kind("XML", "print the listing as text, or with --formatter=json"));
        }
        Expected::Vmx => "",
    };
    if root == wanted {
        return Ok(());
    }
    let (is, way_out) = match root {
        "Envelope" => ("an OVF envelope".into(), "use vmlane import ovf"),
        "domain" => ("a libvirt domain".into(), "use vmlane import libvirt"),
        "domainsnapshot" | "domaincheckpoint" | "domstatus" | "domainbackup" | "network" | "pool"
        | "volume" | "interface" | "nwfilter" | "capabilities" | "domainCapabilities" | "secret" => {
            (format!("libvirt's <{root}>"), "give the VM's domain: virsh dumpxml VM")
        }
        "VirtualBox" => {
            ("VirtualBox's own description".into(), "export it as OVF: VBoxManage export VM -o VM.ovf")
        }
        "Foundry" => {
            ("VMware's .vmxf, which lacks the VM's devices".into(), "give the .vmx that is beside it")
        }
        "html" | "HTML" => ("a web page".into(), "download the file itself"),
        _ => (format!("XML with the outermost element <{root}>"), "give a description of a VM"),
    };
    let not = if wanted.is_empty() { String::new() } else { format!(" and not {wanted}") };
    Err(Error::kind(format!("{is}{not}"), way_out))
}

fn other_text(text: &str, expected: Expected) -> Result<(), Error> {
    let begins = |key: &str| {
        text.lines()
            .any(|line| line.trim_start().to_ascii_lowercase().strip_prefix(key).is_some_and(is_assigned))
    };
    let is_vmx = || begins("config.version") || begins(".encoding");
    if expected != Expected::Vmx && is_vmx() {
        let way_out = match expected {
            Expected::Listing => "give what the host that ran the VM prints of its networks",
            _ => "use vmlane import vmx",
        };
        return Err(Error::kind("one of VMware's .vmx files", way_out));
    }
    let is_json = text.starts_with('{') || text.starts_with('[') && text.contains("\":");
    if expected != Expected::Listing && is_json {
        return Err(Error::kind("JSON", "give a description of a VM"));
    }
    if expected == Expected::Listing && text.starts_with("ActiveClients,") {
        return Err(Error::kind("a listing as CSV", "print it as text, or with --formatter=json"));
    }
    let is_listing = text.contains("PortGroup Name") || text.contains("Virtual Switch  ");
    if expected != Expected::Listing && is_listing && !is_vmx() {
        return Err(Error::kind(
            "a listing of an ESXi host's networks",
            "give it as --listing, beside a description, or use vmlane import esxi",
        ));
    }
    Ok(())
}

fn is_assigned(rest: &str) -> bool {
    rest.trim_start().starts_with('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_kinds_are_named() {
        let mut tar = vec![b'a'; 600];
        tar[257..262].copy_from_slice(b"ustar");
        let utf_16: Vec<u8> = "config.version".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let with_mark = [b"\xff\xfe".to_vec(), utf_16.clone()].concat();
        let cases: [(&[u8], Expected, &str); 15] = [
            (&tar, Expected::Ovf, "an .ova"),
            (b"\x1f\x8b\x08\0", Expected::Ovf, "gzip"),
            (b"PK\x03\x04..", Expected::Vmx, "zip"),
            (&utf_16, Expected::Vmx, "UTF-16"),
            (&with_mark, Expected::Libvirt, "UTF-16"),
            (b"KDMV\x01\0\0\0", Expected::Vmx, "VMDK"),
            (b"# Disk DescriptorFile\nversion=1\n", Expected::Vmx, "VMDK"),
            (b"\0\0\0\x01MRVN", Expected::Vmx, "binary"),
            (b"<?xml version='1.0'?><!-- x --><ovf:Envelope/>", Expected::Vmx, "vmlane import ovf"),
            (b"<domain type='kvm'/>", Expected::Ovf, "vmlane import libvirt"),
            (b".encoding = \"UTF-8\"\n", Expected::Ovf, "vmlane import vmx"),
            (b"<network><name>default</name></network>", Expected::Libvirt, "libvirt's <network>"),
            (b"[{\"ActiveClients\": 0}]", Expected::Vmx, "JSON"),
            (b"ActiveClients,Name,\n", Expected::Listing, "CSV"),
            (b"Name  Virtual Switch  Active Clients  VLAN ID\n", Expected::Vmx, "--listing"),
        ];
        for (bytes, expected, part) in cases {
            let error = refuse_others(bytes, expected).unwrap_err().to_string();
            assert!(error.contains(part), "{expected:?}: {error}");
        }
        for (bytes, expected) in [
            (&b"\xef\xbb\xbf<?xml version=\"1.0\"?>\n<Envelope/>"[..], Expected::Ovf),
            (b"<domain>", Expected::Libvirt),
            (b"#!/usr/bin/vmware\n.encoding = \"GBK\"\n", Expected::Vmx),
            (b"[root@esx1:~] esxcfg-vswitch -l\n", Expected::Listing),
            (b"", Expected::Vmx),
        ] {
            assert_eq!(refuse_others(bytes, expected), Ok(()), "{expected:?}");
        }
    }
}
