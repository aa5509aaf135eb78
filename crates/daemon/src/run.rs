//! The process: from the command line's options to a clean end.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vmlane_api::{Client, ClientError, call};
use vmlane_config::added::{self, AddedVms};
use vmlane_config::files::Files;
use vmlane_config::paths::Paths;
use vmlane_config::{Config, ConfigError, LogFormat, Placement, Sources, sources};
use vmlane_confine::{ConfineError, Directories};
use vmlane_keeper::{Held, Origin};
use vmlane_mem::HugePages;
use vmlane_state::{Found, Store};

use crate::assembly::{AssemblyError, Builder, Daemon, Event};
use crate::control::{Bounds, ControlServer};
use crate::extras::Extras;
use crate::log::{self, LogError, Throttle};
use crate::notify::{self, notify};
use crate::owners::owners;
use crate::periodic::{self, PeriodicThread};
use crate::runtime::{self, Claim, RuntimeError};
use crate::uplink::Uplinks;

/// How often the main thread runs its checks.
const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// How long a daemon may take to make room for another.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub config: PathBuf,
    pub runtime_dir: PathBuf,
    /// Where VMs that are added at run time are kept; see [`added::state_dir`].
    pub state_dir: Option<PathBuf>,
    /// Log filter; comes before the environment's and the configuration's.
    pub log: Option<String>,
    /// Comes before the configuration's.
    pub log_format: Option<LogFormat>,
    /// Take the place of a daemon that serves in the runtime directory.
    pub replace: bool,
    /// Give up what it does not need; false is for debugging.
    pub confine: bool,
    /// The keeper is a service of its own, which this daemon waits for and never starts.
    pub external_keeper: bool,
}

/// Why the daemon did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Confine(#[from] ConfineError),
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The configuration asks for what this program has not.
    #[error("{0}")]
    Extras(String),
    #[error("{what}: {cause}")]
    Host { what: String, cause: io::Error },
}

impl RunError {
    /// The configuration or the command line is wrong: until one of them is changed, another start ends in
    /// the same way.
    pub fn is_configuration(&self) -> bool {
        use ConfineError::{NotRoot, UnknownUser, Unreachable};
        match self {
            RunError::Config(_) | RunError::Extras(_) | RunError::Log(LogError::Filter { .. }) => true,
            RunError::Confine(NotRoot { .. } | UnknownUser { .. } | Unreachable { .. }) => true,
            RunError::Log(LogError::Twice | LogError::Thread(_))
            | RunError::Confine(_)
            | RunError::Runtime(_)
            | RunError::Assembly(_)
            | RunError::Host { .. } => false,
        }
    }
}

/// Serves until a signal or a call at the control socket stops it.
pub fn run(options: Options, extras: Extras) -> Result<(), RunError> {
    let host = |what: String| move |cause: io::Error| RunError::Host { what, cause };
    let judged = judge(&options, &extras)?;
    raise_descriptor_limit();
    let shown = options.runtime_dir.display().to_string();
    let paths = Paths::new(&options.runtime_dir).map_err(host(format!("runtime directory {shown}")))?;
    // Another user's process neither owns what a daemon of this user serves in, nor becomes its user.
    let owners = if geteuid().is_root() { &judged.owners[..] } else { &[] };
    let claim = if options.replace { take_place(&paths, owners)? } else { runtime::claim(&paths, owners)? };
    let added = keep_state(&judged.state_dir, owners, options.state_dir.is_some())?;
    // The daemon that was replaced may have added a VM meanwhile.
    let (files, config) = Files::load(&judged.main, added)?;
    let mut uplinks = Uplinks::prepare(&config.uplinks).map_err(AssemblyError::from)?;
    notify::prepare();
    if let Err(error) = vmlane_transport::prepare() {
        tracing::warn!(
            %error,
            "no asynchronous requests (io_setup): a VMM that makes writes to its event fds wait gets no notifications any more; \
             see `sysctl fs.aio-max-nr`, or the kernel's CONFIG_AIO"
        );
    }
    // A confined daemon could not open the file that this needs.
    let huge_pages = match config.daemon.huge_pages {
        0 => None,
        limit => Some(HugePages::open(limit).map_err(host("huge_pages: /proc/self/pagemap".into()))?),
    };
    // Likewise what describes the host's CPUs.
    let placement = Placement::of(&config.daemon);
    let reached = vmlane_keeper::reach(&vmlane_keeper::socket(paths.runtime()));
    // Before there is any other thread: what is given up here, is given up for all of them.
    give_rights_up(options.confine, &paths, &claim, (&files, &config), &mut uplinks)?;
    let origin = if options.external_keeper { Origin::Service } else { Origin::Daemon };
    let Held { store, mut found, keeper } = vmlane_keeper::connect(paths.runtime(), reached, origin);
    hold_user_lock(&*store, &mut found);
    if found.is_empty() {
        runtime::clear(&paths);
    } else {
        tracing::info!(descriptors = found.0.len(), "taking over from a daemon that ended");
    }

    let (events, inbox) = channel();
    // Before anything is served: a signal during the start must not leave sockets behind.
    forward_signals(events.clone()).map_err(host("signal handlers".into()))?;
    let builder = Builder { paths: paths.clone(), files, config, placement, uplinks, store, found, extras };
    let daemon = Arc::new(builder.start(events)?);
    let control = paths.control();
    let control = ControlServer::start(&control, daemon.clone(), Bounds::default())
        .map_err(host(format!("control socket {}", control.display())))?;
    daemon.open_sockets()?;
    let threads = start_threads(&daemon, huge_pages)?;
    tracing::info!(pid = std::process::id(), runtime_dir = %paths.runtime().display(), "ready");
    notify("READY=1");
    wait_for_stop(&daemon, &inbox, &judged.throttle);
    tracing::info!("stopping");
    notify("STOPPING=1");
    drop((control, threads));
    daemon.stop();
    if let Some(keeper) = keeper {
        keeper.end();
    }
    Ok(())
}

/// What is known before anything of the host's is touched.
struct Judged {
    /// The configuration's main file.
    main: PathBuf,
    state_dir: PathBuf,
    /// Users beside root and this process's own who may own the daemon's directories.
    owners: Vec<u32>,
    throttle: Throttle,
}

/// Judges the configuration, before a daemon that is to be replaced is asked to go; and starts the log.
fn judge(options: &Options, extras: &Extras) -> Result<Judged, RunError> {
    let state_dir = added::state_dir(&options.runtime_dir, options.state_dir.as_deref());
    let main = std::path::absolute(&options.config).unwrap_or_else(|_| options.config.clone());
    let mut sources = Sources::read(&main)?;
    let owners = owners(&sources, &options.runtime_dir, &state_dir);
    if let Some(added) = AddedVms::find(&state_dir, &owners).ok().flatten() {
        sources = sources.with(added.read()?);
    }
    let config = Config::check(&sources)?;
    if let Some(missing) = extras.missing(&config) {
        return Err(RunError::Extras(missing));
    }
    let (key, filter) = log::choose(options.log.clone(), config.daemon.log);
    let format = options.log_format.unwrap_or(config.daemon.log_format);
    let throttle = log::init(key, filter, format)?;
    Ok(Judged { main, state_dir, owners, throttle })
}

/// Gives up what the daemon does not need; if it is not to be confined, only what is another user's.
fn give_rights_up(
    confined: bool,
    paths: &Paths,
    claim: &Claim,
    (files, config): (&Files, &Config),
    uplinks: &mut Uplinks,
) -> Result<(), RunError> {
    let main = &files.main;
    let directories = Directories {
        runtime: paths.runtime(),
        opened: claim.directory(),
        config: &[main.parent().unwrap_or(main).to_owned(), sources::directory(main)],
        added: files.added.directory(),
        hybrid: &config.hybrid_directories(),
    };
    if !confined {
        tracing::warn!("NOT CONFINED (--no-confine): a fault in the daemon is a fault of its user's rights");
        let what = "taking directories of another user back".into();
        return vmlane_confine::take_back(&directories).map_err(|cause| RunError::Host { what, cause });
    }
    uplinks.keep_rights(main, paths.runtime());
    vmlane_confine::confine(config.daemon.user.as_deref(), &directories)?;
    if let Err(error) = Sources::read(main) {
        tracing::warn!(
            %error,
            "the configuration cannot be read any more: `vmlane reload` will fail; make it readable for the daemon's user"
        );
    }
    Ok(())
}

/// The threads that do something again and again. Dropping them ends them.
fn start_threads(
    daemon: &Arc<Daemon>,
    huge_pages: Option<HugePages>,
) -> Result<Vec<PeriodicThread>, RunError> {
    let starting = |what: &str| {
        let what = format!("starting {what}");
        move |cause: io::Error| RunError::Host { what, cause }
    };
    let mut threads = vec![periodic::watchdog(daemon.clone()).map_err(starting("the watchdog"))?];
    let balance = periodic::balance(daemon.clone());
    threads.extend(balance.map_err(starting("the thread that moves NICs"))?);
    if let Some(pages) = huge_pages {
        let started = periodic::huge_pages(daemon.clone(), pages);
        threads.push(started.map_err(starting("the thread that makes huge pages"))?);
    }
    let presence = periodic::presence(daemon.clone());
    threads.push(presence.map_err(starting("the thread that logs who is there"))?);
    Ok(threads)
}

/// The main thread's work: events, and what has to be done every few seconds.
fn wait_for_stop(daemon: &Daemon, inbox: &Receiver<Event>, throttle: &Throttle) {
    loop {
        match inbox.recv_timeout(HOUSEKEEPING) {
            Ok(Event::Reload) => daemon.health.contained("reloading", || reload(daemon)),
            Ok(Event::HandOver) => {
                tracing::info!("another daemon takes over everything");
                // The answer to the one that asks leaves meanwhile; traffic still flows.
                std::thread::sleep(Duration::from_millis(2));
                // Without ending any session: what the other one needs is in the store after every step.
                std::process::exit(0);
            }
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        daemon.health.contained("housekeeping", || daemon.housekeeping());
        throttle.report();
    }
}

/// The directory for VMs that are added at run time. Only if it was named (`wanted`) must there be one.
fn keep_state(state: &Path, owners: &[u32], wanted: bool) -> Result<AddedVms, RunError> {
    let host = |cause| RunError::Host { what: format!("state directory {}", state.display()), cause };
    let added = AddedVms::open(state, owners).map_err(host)?;
    match added.why_not() {
        Some(why) if wanted => return Err(host(io::Error::other(why.to_owned()))),
        Some(why) => {
            tracing::warn!("no VM can be added at run time: {why}; name another directory with --state-dir")
        }
        None => {}
    }
    Ok(added)
}

/// The number of a user of its own stays the daemon's while any process has it: the keeper, too.
fn hold_user_lock(store: &dyn Store, found: &mut Found) {
    const NAME: &str = "user.lock";
    let left = found.take(NAME);
    if let Some(lock) = vmlane_confine::user_lock() {
        if let Err(error) = store.put(NAME, lock.as_fd()) {
            tracing::warn!(%error, "the daemon's user is not held for the next one");
        }
    } else if let Some(lock) = left {
        vmlane_confine::keep_user_lock(lock.into());
    }
}

/// Asks the daemon that serves in the runtime directory to make room, if there is one. It stays where it
/// and this one do not understand each other.
fn take_place(paths: &Paths, owners: &[u32]) -> Result<Claim, RunError> {
    let is_there = runtime::open(paths, owners)?.is_some();
    if is_there && let Ok(client) = Client::connect(paths.runtime()) {
        let mut client = client.with_timeout(TIMEOUT);
        // One that does not answer any more may be gone already; the claim shows.
        let hand_over = call::HandOver { layout: vmlane_state::LAYOUT };
        if let Err(error @ ClientError::Refused { .. }) = client.call(&hand_over) {
            let what = "the daemon that runs does not hand over".into();
            return Err(RunError::Host { what, cause: io::Error::other(error.to_string()) });
        }
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match runtime::claim(paths, owners) {
            Ok(claim) => return Ok(claim),
            Err(error @ (RuntimeError::Trust(_) | RuntimeError::Forbidden { .. })) => {
                return Err(error.into());
            }
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn reload(daemon: &Daemon) {
    match daemon.reload() {
        Ok(report) => {
            report.applied.iter().for_each(|part| tracing::info!("reload: {part}"));
            report.refused.iter().for_each(|part| tracing::warn!("reload: {part}"));
            tracing::info!("reloaded");
        }
        Err(failure) => tracing::error!("reload: {failure}"),
    }
}

fn forward_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let forwarding = move || {
        for signal in signals.forever() {
            let event = if signal == SIGHUP { Event::Reload } else { Event::Stop };
            if events.send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(forwarding).map(drop)
}

/// Every VM needs descriptors for memory and interrupts; the usual soft limit is for other programs.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}
