//! What is wrong with a configuration, found without a daemon and without any effect: for `vmlane check`.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use vmlane_access::{Accounts, Owner};

use crate::added::AddedVms;
use crate::paths::Paths;
use crate::{Config, ConfigError, Problem, Sources, UplinkKind, VmConfig, host_memory, interrupts, mtu};

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    /// The files, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// A daemon would not start with these.
    pub problems: Vec<Problem>,
    /// It would start, and something would not work on this host as it is now.
    pub warnings: Vec<Problem>,
    pub vms: usize,
    pub uplinks: usize,
}

/// Judges the configuration `main` with what belongs to it, for a daemon that serves in `runtime` and keeps
/// its state in `state`. `owners`: users beside root and this process's own who may own its directories.
pub fn check(main: &Path, runtime: &Path, state: &Path, owners: impl Fn(&Sources) -> Vec<u32>) -> Findings {
    let mut findings = Findings::default();
    let sources = match Sources::read(main) {
        Ok(sources) => sources,
        Err(error) => {
            findings.problems = problems(main, error);
            return findings;
        }
    };
    let added = match AddedVms::find(state, &owners(&sources)) {
        Ok(None) => Some(Vec::new()),
        Ok(Some(added)) => match added.read() {
            Ok(vms) => Some(vms),
            Err(error) => {
                findings.problems.extend(problems(state, error));
                None
            }
        },
        Err(error) => {
            let text = format!("VMs that were added at run time are not checked: {error}; run it as root");
            findings.warnings.push(Problem::about(state, text));
            None
        }
    };
    let is_complete = added.is_some();
    let sources = sources.with(added.unwrap_or_default());
    findings.files = sources.0.iter().map(|source| source.path.clone()).collect();
    let checked = if is_complete { Config::check(&sources) } else { Config::check_without_added(&sources) };
    match checked {
        Ok(config) => {
            findings.vms = config.vms.len();
            findings.uplinks = config.uplinks.len();
            findings.problems.extend(too_long(&config, main, runtime));
            findings.warnings.extend(on_this_host(&config, main));
        }
        Err(error) => findings.problems.extend(problems(main, error)),
    }
    findings
}

fn problems(path: &Path, error: ConfigError) -> Vec<Problem> {
    match error {
        ConfigError::Invalid { problems } => problems,
        ConfigError::Unreadable { path, cause } | ConfigError::File { path, cause } => {
            vec![Problem::about(&path, format!("{cause}; make it readable, or name another file"))]
        }
        other => vec![Problem::about(path, other.to_string())],
    }
}

/// About a VM, where it is described.
fn of_vm(config: &Config, vm: &str, text: String) -> Problem {
    let place = config.places.get(vm).cloned().unwrap_or_default();
    Problem { path: place.path, line: Some(place.line), text: format!("vm {vm:?}: {text}") }
}

/// About something else that the configuration describes: `what` is its mark.
fn of_mark(config: &Config, main: &Path, what: &str, text: String) -> Problem {
    let mark = config.marks.get(what);
    let path = mark.map_or(main, |(path, _)| path);
    Problem { path: path.to_owned(), line: mark.map(|(_, line)| *line), text }
}

/// Sockets whose paths the kernel would not take.
fn too_long(config: &Config, main: &Path, runtime: &Path) -> Vec<Problem> {
    let paths = match Paths::new(runtime) {
        Ok(paths) => paths,
        Err(error) => return vec![Problem::about(main, format!("{}: {error}", runtime.display()))],
    };
    let sockets = config.vms.iter().map(|vm| {
        let nics = (0..vm.nics.len()).map(|number| paths.nic(&vm.name, number).err());
        (vm, [vm.vsock_socket(&paths).err()].into_iter().chain(nics).flatten().next())
    });
    sockets.filter_map(|(vm, error)| Some(of_vm(config, &vm.name, error?.to_string()))).collect()
}

/// What cannot work here, as far as that is quickly seen.
fn on_this_host(config: &Config, main: &Path) -> Vec<Problem> {
    let accounts = Accounts::host();
    let mut warnings = Vec::new();
    let about = |what: &str, text: String| of_mark(config, main, what, text);
    if let Some(user) = config.daemon.user.as_deref().filter(|user| accounts.user(user).is_none()) {
        let text =
            format!("daemon: user = {user:?} is not in /etc/passwd; make it (`useradd --system {user}`)");
        warnings.push(about("daemon: user", text));
    }
    if config.daemon.user.is_some() && !geteuid().is_root() {
        let text = "daemon: user: only a daemon that is started as root becomes another user";
        warnings.push(about("daemon: user", text.into()));
    }
    for vm in &config.vms {
        let unknown = vm.owner.and_then(|owner| unknown(owner, &accounts));
        warnings.extend(unknown.map(|who| of_vm(config, &vm.name, format!("owner: {who}"))));
        let directory = vm.vsock.hybrid().and_then(|hybrid| hybrid.path.as_ref()?.parent());
        warnings.extend(directory.filter(|directory| !directory.is_dir()).map(|directory| {
            let directory = directory.display();
            let text = format!(
                "uds_path: there is no directory {directory} now; make it before the daemon starts, which may use no other one later"
            );
            of_vm(config, &vm.name, text)
        }));
    }
    let too_few = |vm: &VmConfig| Some(of_vm(config, &vm.name, interrupts::too_few(vm)?));
    warnings.extend(config.vms.iter().filter_map(too_few));
    let unlimited = |vm: &&VmConfig| vm.owner.is_some() && vm.memory.is_none() && vm.devices() > 0;
    warnings.extend(config.vms.iter().filter(unlimited).map(|vm| {
        let text = format!(
            "limits: memory: none is set, so its VMM can have the daemon hold as much memory as this host has ({} MiB), which is charged to \
             the daemon and not to the VM's control group; write limits = {{ memory = \"SIZE\" }} with the VM's memory",
            host_memory() >> 20
        );
        of_vm(config, &vm.name, text)
    }));
    for (index, rule) in config.control.iter().enumerate() {
        let who = unknown(Owner { uid: rule.uid, gid: rule.gid }, &accounts);
        warnings.extend(who.map(|who| about(&format!("control {index}"), format!("control: {who}"))));
    }
    for (index, rule) in config.hosts.iter().enumerate() {
        let who = unknown(Owner { uid: rule.uid, gid: rule.gid }, &accounts);
        warnings.extend(who.map(|who| about(&format!("host {index}"), format!("host: {who}"))));
    }
    let too_long = mtu::too_long(config, mtu::of_uplink);
    warnings.extend(too_long.into_iter().map(|(vm, text)| of_vm(config, &vm.name, text)));
    for uplink in &config.uplinks {
        let missing = match &uplink.kind {
            // A TAP interface is made.
            UplinkKind::Tap { .. } => None,
            UplinkKind::Xdp { interface, .. } => {
                let there = Path::new("/sys/class/net").join(interface).exists();
                (!there)
                    .then(|| format!("interface = {interface:?}: there is none of this name now (`ip link`)"))
            }
            // The daemon makes its socket.
            UplinkKind::VhostUser { listens: Some(_), .. } => None,
            UplinkKind::VhostUser { socket, listens: None, .. } => {
                let there = fs::symlink_metadata(socket).is_ok();
                (!there).then(|| format!("vhost_user = {socket:?}: there is no socket of this name now"))
            }
        };
        warnings.extend(missing.map(|why| {
            let text = format!("uplink {:?}: {why}; its port waits until there is", uplink.name);
            about(&format!("uplink {}", uplink.name), text)
        }));
    }
    warnings
}

/// A user or group that the host does not list, named as a message names it.
fn unknown(owner: Owner, accounts: &Accounts) -> Option<String> {
    let user = owner.uid.filter(|uid| *uid != 0 && accounts.user(&uid.to_string()).is_none());
    let group = owner.gid.filter(|gid| *gid != 0 && accounts.group(&gid.to_string()).is_none());
    let user = user.map(|uid| format!("user {uid} is not in /etc/passwd"));
    let who = user.or_else(|| group.map(|gid| format!("group {gid} is not in /etc/group")))?;
    Some(format!("{who}; that is right if a directory service has it, else make it, or write another number"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn findings(main: &str) -> Findings {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        fs::write(&path, main).unwrap();
        check(&path, &folder.path().join("run"), folder.path(), |_| Vec::new())
    }

    fn lines(problems: &[Problem]) -> Vec<(Option<usize>, &str)> {
        problems.iter().map(|problem| (problem.line, problem.text.as_str())).collect()
    }

    #[test]
    fn every_warning_has_the_line_that_it_is_about() {
        let main = "[daemon]\nuser = \"no-such-user\"\n[[control]]\nuid = 1234567\nmay = \"own\"\n[[host]]\ngid = 1234567\n\
                    [[uplink]]\nname = \"lan\"\ninterface = \"no-such-card\"\n[[vm]]\nname = \"a\"\ncid = 3\nowner = 1234567\nlimits = { memory = \"1G\" }\n";
        let found = findings(main);
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        let warnings = lines(&found.warnings);
        for (line, words) in
            [(2, "daemon: user"), (3, "control"), (6, "host"), (8, "uplink \"lan\""), (11, "vm \"a\"")]
        {
            let is_there = |(at, text): &(Option<usize>, &str)| *at == Some(line) && text.starts_with(words);
            assert!(warnings.iter().any(is_there), "{line} {words}: {warnings:?}");
        }
        assert!(warnings.iter().all(|(line, _)| line.is_some()), "{warnings:?}");
    }

    #[test]
    fn an_owner_without_a_number_is_a_mistake_and_a_number_without_an_account_a_warning() {
        let vm = "[[vm]]\nname = \"a\"\ncid = 3\nlimits = { memory = \"1G\" }\nowner = ";
        let named = findings(&format!("{vm}\"no-such-user\"\n"));
        let numbered = findings(&format!("{vm}\"1234567\"\n"));
        assert_eq!((named.problems.len(), named.warnings.len()), (1, 0), "{named:?}");
        assert_eq!((numbered.problems.len(), numbered.warnings.len()), (0, 1), "{numbered:?}");
    }

    #[test]
    fn a_vm_with_an_owner_and_no_limit_of_memory_is_warned_of() {
        let vm = |rest: &str| format!("[[vm]]\nname = \"a\"\ncid = 3\n{rest}\n");
        for (limits, rest, count) in [
            ("", "owner = \"root\"", 1),
            ("", "owner = \"root\"\nlimits = { memory = \"1G\" }", 0),
            ("[limits]\nmemory = \"1G\"\n", "owner = \"root\"", 0),
            ("", "owner = \"root\"\nvsock = \"hybrid\"", 0),
            ("", "", 0),
        ] {
            let found = findings(&[limits, &vm(rest)].concat());
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            let of_memory = found.warnings.iter().filter(|warning| warning.text.contains("limits: memory"));
            assert_eq!(of_memory.count(), count, "{limits}{rest}: {:?}", found.warnings);
        }
    }

    #[test]
    fn vms_that_cannot_be_read_make_no_forward_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlane.toml");
        fs::write(&path, "[[vm]]\nname = \"a\"\ncid = 3\nforward = [{ port = 1, to = \"added:2\" }]\n")
            .unwrap();
        fs::create_dir(folder.path().join("vms.d")).unwrap();
        fs::create_dir(folder.path().join("vms.d/added.toml")).unwrap();
        let found = check(&path, &folder.path().join("run"), folder.path(), |_| Vec::new());
        let [(None, problem)] = lines(&found.problems)[..] else { panic!("{found:?}") };
        assert!(problem.contains("not a regular file"), "{problem}");
    }
}
