//! VMs whose VMMs have hybrid Unix sockets.

use std::path::{Component, Path, PathBuf};

use crate::notes::Notes;
use crate::paths::LONGEST_HYBRID;
use crate::raw::RawVm;

/// A hybrid Unix socket, which the VM's VMM makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridConfig {
    /// Where, by an absolute path; None: in the runtime directory.
    pub path: Option<PathBuf>,
}

/// What only such a VM has.
pub fn judge(vm: &str, raw: &RawVm, notes: &mut Notes<'_>) -> HybridConfig {
    let Some(path) = &raw.uds_path else { return HybridConfig { path: None } };
    let written = path.get_ref();
    if let Some(why) = wrong(Path::new(written)) {
        notes.problem(path.span(), format!("{vm}: uds_path = {written:?}: {why}"));
    }
    HybridConfig { path: Some(written.into()) }
}

/// What is wrong with a path, and the way out.
fn wrong(path: &Path) -> Option<&'static str> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let whole = path.as_os_str().as_encoded_bytes();
    if !path.is_absolute() || !path.components().all(plain) {
        return Some(
            "write an absolute path without \"..\", as the daemon sees it: the VMM of a jail knows it by another one",
        );
    }
    if path.file_name().is_none() || whole.ends_with(b"/") || whole.contains(&0) {
        return Some("that is no name of a socket; write for example \"/srv/vm/web/v.sock\"");
    }
    (whole.len() > LONGEST_HYBRID).then_some(
        "it has more than 96 bytes; with \"_PORT\" behind it, the kernel would not take it as a socket's path; use a shorter one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ForwardConfig, Vsock};

    fn check(keys: &str) -> Result<Config, String> {
        let text = format!(
            "[[vm]]\nname = \"web\"\ncid = 3\n{keys}\n[[vm]]\nname = \"db\"\ncid = 4\nvsock = \"hybrid\"\n\
             uds_path = \"/srv/db.sock\"\n"
        );
        Config::parse(Path::new("t.toml"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_vm_needs_a_cid_and_nothing_else() {
        let config = check("vsock = \"hybrid\"").unwrap();
        let web = config.vm("web").unwrap();
        assert_eq!(web.vsock, Vsock::Hybrid(HybridConfig { path: None }));
        assert!(web.takes_connections() && web.devices() == 0);
        let path = Some("/srv/db.sock".into());
        assert_eq!(config.vm("db").unwrap().vsock, Vsock::Hybrid(HybridConfig { path }));
        let text = "[[vm]]\nname = \"web\"\nvsock = \"hybrid\"\n";
        let error = Config::parse(Path::new("t.toml"), text).unwrap_err().to_string();
        assert!(error.contains("\"web\": cid is missing"), "{error}");
    }

    #[test]
    fn its_forwards_lead_to_vms_and_to_programs() {
        let keys = "vsock = \"hybrid\"\nforward = [{ port = 1, to = \"db:2\" }, { port = 3, to = \"host\" }]";
        let config = check(keys).unwrap();
        let expected = [
            ForwardConfig { port: 1, to_vm: Some("db".into()), to_port: 2 },
            ForwardConfig { port: 3, to_vm: None, to_port: 3 },
        ];
        assert_eq!(config.vm("web").unwrap().forwards, expected);
        let forwards = config.forwards(config.vm("web").unwrap());
        let forwarded: Vec<_> = forwards.iter().map(|one| (one.port, one.to_cid, one.to_port)).collect();
        assert_eq!(forwarded, [(1, 4, 2), (3, 2, 3)]);
    }

    #[test]
    fn mistakes_name_the_vm_the_value_and_the_way_out() {
        let long = format!("vsock = \"hybrid\"\nuds_path = \"/{}\"", "d".repeat(96));
        for (keys, words) in [
            (
                "uds_path = \"/srv/a\"",
                ["\"web\": uds_path = \"/srv/a\"", "vsock = \"hybrid\" only; remove it"],
            ),
            ("vsock = \"hybrid\"\nuds_path = \"a.sock\"", ["uds_path = \"a.sock\"", "absolute path"]),
            ("vsock = \"hybrid\"\nuds_path = \"/a/../b\"", ["uds_path", "without \"..\""]),
            ("vsock = \"hybrid\"\nuds_path = \"/srv/\"", ["\"/srv/\"", "write for example"]),
            (
                "vsock = \"hybrid\"\nuds_path = \"/srv/db.sock\"",
                ["is taken by the VM of", "give each VM its own"],
            ),
            (&long, ["uds_path", "96 bytes"]),
            ("vsock = \"hybird\"", ["vsock = \"hybird\" is unknown", "\"hybrid\" or \"none\""]),
            ("vsock = \"hybrid\"\nvsock_role = \"client\"", ["\"web\": vsock_role", "remove it"]),
            (
                "forward = [{ port = 1, to = \"host\" }]",
                ["forward: to = \"host\"", "without a forward; remove it"],
            ),
            ("vsock = \"hybrid\"\nforward = [{ port = 1, to = \"me:1\" }]", ["there is no VM \"me\"", "db"]),
        ] {
            let error = check(keys).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{keys}: {error}");
        }
    }
}
