//! What is wrong with a configuration, found without a daemon and without any effect: for `vmlane check`.

mod mtu;

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::accounts::Accounts;
use crate::added::AddedVms;
use crate::config::{Config, ConfigError, Owner, Problem, Sources, UplinkKind};
use crate::hybrid;
use crate::paths::Paths;

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

/// Judges the configuration `main` with what belongs to it, for a daemon that serves in `runtime` and keeps its state in
/// `state`.
pub fn check(main: &Path, runtime: &Path, state: &Path) -> Findings {
    let mut findings = Findings::default();
    let about = |path: &Path, text: String| Problem { path: path.to_owned(), line: None, text };
    let sources = match Sources::read(main) {
        Ok(sources) => sources,
        Err(error) => {
            findings.problems = problems(main, error);
            return findings;
        }
    };
    let added = match AddedVms::look(state) {
        Ok(None) => Ok(Vec::new()),
        Ok(Some(added)) => added.read().map_err(|error| findings.problems.extend(problems(state, error))),
        Err(error) => {
            let text = format!("VMs that were added at run time are not checked: {error}; run it as root");
            findings.warnings.push(about(state, text));
            Ok(Vec::new())
        }
    };
    let sources = sources.with(added.unwrap_or_default());
    findings.files = sources.0.iter().map(|source| source.path.clone()).collect();
    match Config::check(&sources) {
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
            vec![Problem {
                path,
                line: None,
                text: format!("{cause}; make it readable, or name another file"),
            }]
        }
        other => vec![Problem { path: path.to_owned(), line: None, text: other.to_string() }],
    }
}

/// About a VM, where it is described.
fn of_vm(config: &Config, vm: &str, text: String) -> Problem {
    let place = config.places.get(vm).cloned().unwrap_or_default();
    Problem { path: place.path, line: Some(place.line), text: format!("vm {vm:?}: {text}") }
}

/// Sockets whose paths the kernel would not take.
fn too_long(config: &Config, main: &Path, runtime: &Path) -> Vec<Problem> {
    let paths = match Paths::new(runtime) {
        Ok(paths) => paths,
        Err(error) => {
            return vec![Problem {
                path: main.to_owned(),
                line: None,
                text: format!("{}: {error}", runtime.display()),
            }];
        }
    };
    let sockets = config.vms.iter().map(|vm| {
        let vsock = match (vm.vmci, vm.virtio_vsock) {
            (true, _) => Some(paths.vmci(&vm.name)),
            (_, true) => Some(paths.vsock(&vm.name)),
            _ => vm.hybrid.is_some().then(|| hybrid::path(&paths, vm)),
        };
        let nics = (0..vm.nics.len()).map(|number| paths.nic(&vm.name, number));
        (vm, vsock.into_iter().chain(nics).find_map(Result::err))
    });
    sockets.filter_map(|(vm, error)| Some(of_vm(config, &vm.name, error?.to_string()))).collect()
}

/// What cannot work here, as far as that is quickly seen.
fn on_this_host(config: &Config, main: &Path) -> Vec<Problem> {
    let accounts = Accounts::host();
    let mut warnings = Vec::new();
    let about = |text: String| Problem { path: main.to_owned(), line: None, text };
    if let Some(user) = config.daemon.user.as_deref().filter(|user| accounts.user(user).is_none()) {
        warnings.push(about(format!(
            "daemon: user = {user:?} is not in /etc/passwd; make it (`useradd --system {user}`)"
        )));
    }
    if config.daemon.user.is_some() && !geteuid().is_root() {
        warnings
            .push(about("daemon: user: only a daemon that is started as root becomes another user".into()));
    }
    for vm in &config.vms {
        let unknown = vm.owner.and_then(|owner| unknown(owner, &accounts));
        warnings.extend(unknown.map(|who| of_vm(config, &vm.name, format!("owner: {who}"))));
        let directory = vm.hybrid.as_ref().and_then(|hybrid| hybrid.path.as_ref()?.parent());
        warnings.extend(directory.filter(|directory| !directory.is_dir()).map(|directory| {
            let directory = directory.display();
            let text = format!(
                "uds_path: there is no directory {directory} now; make it before the daemon starts, which may use no other one later"
            );
            of_vm(config, &vm.name, text)
        }));
    }
    for rule in &config.control {
        let who = unknown(Owner { uid: rule.uid, gid: rule.gid }, &accounts);
        warnings.extend(who.map(|who| about(format!("control: {who}"))));
    }
    for rule in &config.hosts {
        let who = unknown(Owner { uid: rule.uid, gid: rule.gid }, &accounts);
        warnings.extend(who.map(|who| about(format!("host: {who}"))));
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
        warnings.extend(
            missing
                .map(|why| about(format!("uplink {:?}: {why}; its port waits until there is", uplink.name))),
        );
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
