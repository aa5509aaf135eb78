//! `vmlane route`: the helper that carries streams to other hosts, how it stands with them, certificates.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use vmlane_api::{PeerStatus, call};
use vmlane_config::{Config, PeerConfig, RouteConfig};
use vmlane_daemon::log;
use vmlane_route::authority::{self, Authority};
use vmlane_route::{Bounds, Files, Fingerprint, Helper, PeerSettings, Settings};

use super::control::{Show, peers, print};
use super::exit_codes::CONFIGURATION;
use super::helper_args::HelperArgs;

const EXAMPLES: &str = "Examples:
  vmlane route run
  vmlane route list
  vmlane route certificate alpha --directory /root/authority
  vmlane route revoke alpha --directory /root/authority

The helper is an unprivileged process: it reads the configuration and its certificates, connects to the daemon at route.sock, and speaks TLS with the helpers of other hosts. Under systemd it is vmlane-route.service. docs/guide/hosts.md shows how to set it up.";

const RUN: &str = "SIGHUP makes it read the configuration and the certificates again; open streams stay. SIGTERM stops it and resets the streams between hosts, and no others. While no daemon runs, it waits for one. Exit code 78: the configuration is wrong or cannot be read.";

const CERTIFICATE: &str = "Writes NAME.pem and NAME.key to the directory, and creates the authority there (authority.pem, authority.key) if there is none. The certificate is also added to issued.pem there, where `vmlane route revoke` finds all certificates of a host. Each host needs its own two files and authority.pem; authority.key stays where certificates are created. Certificates of any other authority work as well, if each has its host's name as a subject alternative name (DNS) and is valid for servers and clients.";

const REVOKE: &str = "Adds all certificates that this directory's authority has created for the host NAME to the list crl.pem there. Copy the list to all hosts, name it in [route] as crl, and reload their helpers (systemctl reload vmlane-route): the connections of that host end, and new ones are refused. A certificate that is created for NAME afterwards is not in the list. docs/guide/taken-over.md describes what else to do.";

/// Carries streams to other hosts, and shows their state
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Carry streams between this host and those of the configuration until stopped
    Run(Run),
    /// Show other hosts and their problems
    #[command(visible_alias = "status")]
    List(Show),
    /// Create a certificate for a host
    Certificate(Certificate),
    /// Revoke all certificates of a host
    Revoke(Revoke),
}

#[derive(Debug, clap::Args)]
#[command(after_help = RUN)]
struct Run {
    #[command(flatten)]
    helper: HelperArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = CERTIFICATE)]
struct Certificate {
    /// The host's name, as in [route] and in other hosts' [[peer]]
    name: String,
    /// Directory of the authority, to which the certificate is written
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// How long the certificate is valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: u64,
}

#[derive(Debug, clap::Args)]
#[command(after_help = REVOKE)]
struct Revoke {
    /// The host's name, as in its certificates
    name: String,
    /// Directory of the authority, to which the list is written
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// As JSON.
#[derive(Serialize)]
struct Listed {
    peers: Vec<PeerStatus>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(run) => run.run(),
            Command::List(show) => show.report(
                |client| Ok(Listed { peers: client.call(&call::Status {})?.peers }),
                |Listed { peers: all }| {
                    Ok(if all.is_empty() { "no other hosts are configured\n".into() } else { peers(all) })
                },
            ),
            Command::Certificate(certificate) => certificate.make(),
            Command::Revoke(revoke) => revoke.revoke(),
        }
    }
}

fn settings(config: &Path, runtime_dir: &Path) -> anyhow::Result<Settings> {
    let Some(route) = Config::load(config)?.route else {
        bail!("configuration {}: there is no [route]; see docs/guide/hosts.md", config.display());
    };
    let RouteConfig { name, listen, certificate, key, authority, crl, dead_s, peers, .. } = route;
    let peers = peers.into_iter().map(peer_settings).collect::<anyhow::Result<Vec<_>>>()?;
    // All peers may come at once, when this host was away.
    let bounds = Bounds::default();
    let bounds = Bounds { handshakes: bounds.handshakes + peers.len(), ..bounds };
    Ok(Settings {
        name,
        socket: runtime_dir.join("route.sock"),
        listen,
        files: Files { certificate, key, authority, crl },
        dead: Duration::from_secs(dead_s),
        bounds,
        peers,
    })
}

fn peer_settings(peer: PeerConfig) -> anyhow::Result<PeerSettings> {
    let PeerConfig { name, address, fingerprints, .. } = peer;
    let fingerprints = fingerprints.iter().map(|text| text.parse::<Fingerprint>());
    let fingerprints = fingerprints.collect::<Result<_, _>>();
    let fingerprints = fingerprints.with_context(|| format!("peer {name:?}: fingerprints"))?;
    Ok(PeerSettings { name, address, fingerprints })
}

impl Run {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (key, filter) = log::choose(self.helper.log, None);
        log::init_helper(key, filter)?;
        let first = match settings(&self.helper.config, &self.helper.runtime_dir) {
            Ok(settings) => settings,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "vmlane: {error:#}");
                return Ok(ExitCode::from(CONFIGURATION));
            }
        };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
        let (control, signalled) = UnixStream::pair().context("a socket for signals")?;
        follow_signals(&signalled)?;
        let HelperArgs { config, runtime_dir, .. } = self.helper;
        let load = move || settings(&config, &runtime_dir).map_err(|error| format!("{error:#}"));
        Helper::start(first, Box::new(load), OwnedFd::from(control))?.run().context("waiting for peers")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A thread forwards signals to the helper.
fn follow_signals(signalled: &UnixStream) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]).context("signals")?;
    let mut signalled = signalled.try_clone().context("signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                let byte = if signal == SIGHUP { Helper::RELOAD } else { Helper::STOP };
                if signalled.write_all(&[byte]).is_err() {
                    return;
                }
            }
        })
        .context("a thread for signals")?;
    Ok(())
}

impl Certificate {
    fn make(self) -> anyhow::Result<ExitCode> {
        let at = |name: &str| self.directory.join(name);
        if ["authority", "issued", "crl"].contains(&self.name.as_str()) {
            bail!("{}.pem is a file of the authority's own; give the host another name", self.name);
        }
        let (own, key) = (at("authority.pem"), at("authority.key"));
        let authority = match std::fs::read_to_string(&key) {
            Ok(key) => read_authority(&own, &key)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let made = authority::authority(authority::days(3650)).context("an authority")?;
                write(&key, &made.key, 0o600)?;
                write(&own, &made.certificate, 0o644)?;
                print(&format!("{}: a new authority\n", own.display()))?;
                Authority::of_key(&made.key).context("an authority")?
            }
            Err(error) => return Err(error).context(key.display().to_string()),
        };
        let made = authority.certificate(&self.name, authority::days(self.days));
        let made = made.with_context(|| format!("a certificate for {:?}", self.name))?;
        let (certificate, key) = (at(&format!("{}.pem", self.name)), at(&format!("{}.key", self.name)));
        let issued = at(ISSUED);
        let before = read(&issued)?.unwrap_or_default();
        write(&issued, &(before + &made.certificate), 0o644)?;
        write(&key, &made.key, 0o600)?;
        write(&certificate, &made.certificate, 0o644)?;
        let fingerprint = Fingerprint::of_pem(&made.certificate).context("the new certificate")?;
        print(&format!(
            "{}: valid for {} days, fingerprint {fingerprint}\n",
            certificate.display(),
            self.days
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// All certificates that an authority has made.
const ISSUED: &str = "issued.pem";

fn read_authority(certificate: &Path, key: &str) -> anyhow::Result<Authority> {
    let text = std::fs::read_to_string(certificate).with_context(|| certificate.display().to_string())?;
    Authority::of_pair(&text, key).with_context(|| certificate.display().to_string())
}

/// The text of a file, if there is one.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(path.display().to_string()),
    }
}

impl Revoke {
    fn revoke(self) -> anyhow::Result<ExitCode> {
        let at = |name: &str| self.directory.join(name);
        let (key, list) = (at("authority.key"), at("crl.pem"));
        let text = std::fs::read_to_string(&key);
        let text = text.with_context(|| format!("{}: name the authority's --directory", key.display()))?;
        let authority = read_authority(&at("authority.pem"), &text)?;
        // Those that were made before there was a list of them lie under the host's name only.
        let known = [read(&at(ISSUED))?, read(&at(&format!("{}.pem", self.name)))?];
        let certificates: String = known.into_iter().flatten().collect();
        let (made, count) = authority
            .revoke(read(&list)?.as_deref(), &certificates, &self.name)
            .with_context(|| self.directory.display().to_string())?;
        write(&list, &made, 0o644)?;
        print(&format!(
            "{}: {count} certificate{} of {} revoked; bring the list to all hosts and reload their helpers\n",
            list.display(),
            if count == 1 { "" } else { "s" },
            self.name
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a file anew, so that no one has read rights from before.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let fresh = path.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(&fresh);
    let mut file = opened.with_context(|| fresh.display().to_string())?;
    file.write_all(text.as_bytes()).with_context(|| fresh.display().to_string())?;
    std::fs::rename(&fresh, path).with_context(|| path.display().to_string())
}
