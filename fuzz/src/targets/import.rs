//! Descriptions of VMs by other systems: any bytes give machines or an error, and machines give a
//! configuration that vmlane takes.

use std::io::Cursor;
use std::path::Path;

use vmlane_config::Config;
use vmlane_import::{Machine, Options, configuration, host, libvirt, ovf, references, vmx, words};

pub fn run(data: &[u8]) {
    let Some((kind, source)) = data.split_first() else { return };
    let mut hosts = Vec::new();
    let machines: Vec<Machine> = match kind {
        b'v' => vmx(source).into_iter().collect(),
        b'o' => ovf(source).unwrap_or_default(),
        b'l' => libvirt(source).into_iter().collect(),
        b'i' => return drop(references(&mut Cursor::new(source))),
        // Listings of several hosts, with this byte between them.
        _ => {
            let parts = source.split(|byte| *byte == b'\x1e').take(3);
            hosts.extend(parts.filter_map(|part| host("esx1", part).ok()));
            Vec::new()
        }
    };
    let done = configuration(&machines, &Options { group: Some("g".into()), hosts, ..Options::default() });
    for (name, machine) in done.names.iter().zip(&machines) {
        name.iter().for_each(|name| drop(words(name, machine)));
    }
    if let Err(error) = Config::parse(Path::new("import.toml"), &done.toml) {
        panic!("{error}\n{}", done.toml);
    }
}
