//! Descriptions of VMs by other systems: any text gives machines or an error, and machines give a
//! configuration that vmlane reads, in the sense that its syntax is right and every key known.

use vmlane_import::{Machine, Options, configuration, libvirt, ovf, port_groups, vmx, words};

pub fn run(data: &[u8]) {
    let text = crate::text(data);
    let (kind, text) = text.split_at_checked(1).unwrap_or_default();
    let machines: Vec<Machine> = match kind {
        "v" => vmx(text).into_iter().collect(),
        "o" => ovf(text).unwrap_or_default(),
        "l" => libvirt(text).into_iter().collect(),
        _ => {
            let _ = port_groups(text);
            return;
        }
    };
    let done = configuration(&machines, &Options { group: Some("g".into()), ..Options::default() });
    for (name, machine) in done.names.iter().zip(&machines) {
        name.iter().for_each(|name| drop(words(name, machine)));
    }
    if let Err(error) = vmlane_daemon::config::Config::parse(std::path::Path::new("import.toml"), &done.toml)
    {
        // Two VMs may have the CID or the address of one another.
        let told = error.to_string();
        assert!(!told.contains("unknown") && !told.contains("expected"), "{told}\n{}", done.toml);
    }
}
