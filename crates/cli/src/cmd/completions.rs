//! `vmlane completions`, and what its scripts ask for at each press of the tab key: the program itself, which
//! completes its own command line (clap_complete's engine), with names that the daemon knows or, without one,
//! the configuration.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::Command;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use vmlane_api::{Client, call};
use vmlane_config::{Config, Sources, nic_name};

const EXAMPLES: &str = "Examples:
  vmlane completions bash > /usr/share/bash-completion/completions/vmlane
  vmlane completions zsh > /usr/share/zsh/vendor-completions/_vmlane
  vmlane completions fish > /usr/share/fish/vendor_completions.d/vmlane.fish

The scripts complete names of VMs, cards, uplinks, port groups, switches, wires, mirrors and labs, too: those of the running daemon or, without one, of the configuration.";

/// By this variable of the environment, a script asks for completions.
const VARIABLE: &str = "VMLANE_COMPLETE";
/// zsh loads the script at the first press of the tab key, as a function that is to complete, too.
const ZSH_AT_ONCE: &str = "if [[ $funcstack[1] == _vmlane ]]; then _clap_dynamic_completer_vmlane; fi\n";
/// How long names may take. A shell that completes nothing is better than one that waits.
const LONGEST: Duration = Duration::from_secs(2);
/// How long the daemon may take for an answer, before the configuration is read instead.
const ANSWER: Duration = Duration::from_millis(500);

/// Prints a script that completes vmlane's command line in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let shells = Shells::builtins();
        let shell = shells.completer(&self.shell.to_string()).context("this shell is not supported")?;
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "vmlane", "vmlane", "vmlane", &mut script)?;
        if self.shell == Shell::Zsh {
            script.extend_from_slice(ZSH_AT_ONCE.as_bytes());
        }
        io::Write::write_all(&mut io::stdout(), &script).context("writing the script")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Completes a command line, if a shell asks for it. An error has no place in the line that a user types.
pub fn complete() -> bool {
    let here = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(crate::command).var(VARIABLE);
    asked.try_complete(std::env::args_os(), here.as_deref()).unwrap_or(true)
}

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Vm,
    Nic,
    Uplink,
    PortGroup,
    Switch,
    Wire,
    Mirror,
    Lab,
}

/// Arguments that name something: the end of the command's words, the argument, and what it may name.
static NAMED: [(&str, &str, &[Kind]); 12] = [
    ("", "vm", &[Kind::Vm]),
    ("", "lab", &[Kind::Lab]),
    ("vm remove", "name", &[Kind::Vm]),
    ("link", "port", &[Kind::Nic, Kind::Uplink]),
    ("capture", "points", &[Kind::Nic, Kind::Uplink]),
    ("capture", "switch", &[Kind::Switch]),
    ("mirror add", "from", &[Kind::Nic, Kind::Uplink, Kind::PortGroup]),
    ("mirror add", "to", &[Kind::Nic, Kind::Uplink]),
    ("mirror remove", "name", &[Kind::Mirror]),
    ("mirror show", "name", &[Kind::Mirror]),
    ("wire", "name", &[Kind::Wire]),
    ("wire set", "to", &[Kind::Nic, Kind::Uplink]),
];

/// A command whose arguments, and those of all below it, complete names. `path`: its words behind `vmlane`.
pub fn with_names(command: Command, path: &str) -> Command {
    let command = command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        with_names(sub, &path)
    });
    let above = path.rsplit_once(' ').map_or("", |(above, _)| above);
    let is_at = |end: &str| end.is_empty() || path == format!(" {end}") || above == format!(" {end}");
    command.mut_args(|arg| {
        let named = NAMED.iter().find(|(end, id, _)| is_at(end) && arg.get_id() == *id);
        match named {
            Some((.., kinds)) => arg.add(ArgValueCandidates::new(move || candidates(kinds))),
            None => arg,
        }
    })
}

fn candidates(kinds: &'static [Kind]) -> Vec<CompletionCandidate> {
    let (sender, names) = mpsc::channel();
    // The process ends before this thread if it waits for a daemon or a file system.
    thread::spawn(move || sender.send(names_of(kinds)));
    names.recv_timeout(LONGEST).unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

fn names_of(kinds: &[Kind]) -> Vec<String> {
    if kinds.contains(&Kind::Lab) {
        return vmlane_lab::names().unwrap_or_default();
    }
    let known = of_daemon().or_else(of_configuration).unwrap_or_default();
    let mut names: Vec<String> =
        known.into_iter().filter(|(kind, _)| kinds.contains(kind)).map(|(_, name)| name).collect();
    names.sort();
    names.dedup();
    names
}

type Names = Vec<(Kind, String)>;

fn of_daemon() -> Option<Names> {
    let given = given("--runtime-dir").or_else(|| std::env::var_os(vmlane_sock::RUNTIME_DIR_VARIABLE));
    let place = given.map_or_else(vmlane_sock::runtime_dir, PathBuf::from);
    let mut client = Client::connect(&place).ok()?.with_timeout(ANSWER);
    let status = client.call(&call::Status {}).ok()?;
    let mut names = Names::new();
    for vm in status.vms {
        for nic in vm.nics {
            names.push((Kind::Nic, format!("{}/{}", vm.name, nic.name)));
            names.push((Kind::PortGroup, nic.port_group));
            names.push((Kind::Switch, nic.switch));
        }
        names.push((Kind::Vm, vm.name));
    }
    for uplink in status.uplinks {
        names.push((Kind::Uplink, uplink.name));
        names.push((Kind::Switch, uplink.switch));
    }
    // Those who may see their own VMs only have no ports.
    if let Ok(ports) = client.call(&call::Ports {}) {
        names.extend(ports.wires.into_iter().map(|wire| (Kind::Wire, wire.name)));
        names.extend(ports.mirrors.into_iter().map(|mirror| (Kind::Mirror, mirror.name)));
    }
    names.retain(|(_, name)| !name.is_empty() && name != "-");
    Some(names)
}

fn of_configuration() -> Option<Names> {
    let path = given("--config").map_or_else(|| vmlane_config::DEFAULT_PATH.into(), PathBuf::from);
    let config = Config::check(&Sources::read(&path).ok()?).ok()?;
    let mut names = Names::new();
    for vm in &config.vms {
        names.push((Kind::Vm, vm.name.clone()));
        names.extend((0..vm.nics.len()).map(|number| (Kind::Nic, nic_name(&vm.name, number))));
    }
    names.extend(config.uplinks.iter().map(|uplink| (Kind::Uplink, uplink.name.clone())));
    names.extend(config.wires.iter().map(|wire| (Kind::Wire, wire.name.clone())));
    names.extend(config.mirrors.iter().map(|mirror| (Kind::Mirror, mirror.name.clone())));
    for group in &config.port_groups {
        names.push((Kind::PortGroup, group.name.clone()));
        names.push((Kind::Switch, group.switch.clone()));
    }
    Some(names)
}

/// The value of an option in the line that is completed.
fn given(option: &str) -> Option<OsString> {
    let mut words = std::env::args_os();
    while let Some(word) = words.next() {
        if word == option {
            return words.next();
        }
        if let Some(value) = word.to_str().and_then(|word| word.strip_prefix(option)?.strip_prefix('=')) {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(command: &Command, of: &mut usize) {
        *of += command.get_arguments().filter(|arg| arg.get::<ArgValueCandidates>().is_some()).count();
        command.get_subcommands().for_each(|sub| count(sub, of));
    }

    #[test]
    fn every_row_is_an_argument() {
        let mut all = 0;
        count(&crate::command(), &mut all);
        for (end, id, _) in NAMED {
            let mut command = crate::command();
            for word in end.split(' ').filter(|word| !word.is_empty()) {
                command = command.find_subcommand(word).unwrap_or_else(|| panic!("{end}")).clone();
            }
            let mut with = 0;
            count(&command, &mut with);
            assert!(with > 0, "{end}: {id}");
        }
        assert!(all > 25, "{all}");
    }
}
