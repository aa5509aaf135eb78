//! `[daemon]`: how the process works, and its log.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;

use crate::cpus::{BadList, CpuList};
use crate::notes::Notes;
use crate::raw::RawDaemon;
use crate::traffic::FLOODS;

const WORKERS: RangeInclusive<i64> = 1..=256;
const SPIN_US: RangeInclusive<i64> = 0..=1_000_000;
/// Faults that put a VM into quarantine; 0: never.
const FAULTS: RangeInclusive<i64> = 0..=1_000_000;
const FAULT_WINDOW_S: RangeInclusive<i64> = 1..=86_400;
/// 0: as long as it takes.
const HOLD_S: RangeInclusive<i64> = 0..=86_400;
/// Bytes of VMs' memory that may be put into huge pages.
const HUGE_PAGES: RangeInclusive<u64> = 0..=1 << 46;

/// The table `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    pub workers: Workers,
    /// Where the workers run; None: anywhere.
    pub cpus: Option<CpuList>,
    /// NICs go to other workers where that helps.
    pub balance: bool,
    pub mode: Mode,
    /// How long streams and NICs are polled after the last byte or frame, at most.
    pub spin_us: u64,
    /// Frames to several that a NIC may send in a second; 0: any number.
    pub flood_limit: u32,
    /// TCP segments of a burst are merged for receivers with LRO.
    pub coalesce: bool,
    /// Bytes of VMs' memory that may be put into huge pages; 0: nothing is.
    pub huge_pages: u64,
    /// How long a virtio-vsock session is held while no daemon runs, at most; None: as long as it takes.
    pub hold: Option<Duration>,
    /// When a VM whose devices fail is taken out of service.
    pub fault_limit: FaultLimit,
    /// Faults on request are allowed.
    pub fault_injection: bool,
    /// The user to become when started as root; None: `vmlane`, or else one without an account.
    pub user: Option<String>,
    /// Log filter.
    pub log: Option<String>,
    pub log_format: LogFormat,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        DaemonConfig {
            workers: Workers::Auto,
            cpus: None,
            balance: true,
            mode: Mode::Adaptive,
            spin_us: 500,
            flood_limit: 4000,
            coalesce: true,
            huge_pages: 0,
            hold: Some(Duration::from_secs(30)),
            fault_limit: FaultLimit::default(),
            fault_injection: false,
            user: None,
            log: None,
            log_format: LogFormat::default(),
        }
    }
}

/// How many workers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// As many as the host's caches and cores suggest ([`crate::Placement`]).
    Auto,
    Count(u16),
}

/// The format of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object a line, for programs: `timestamp`, `level`, `target`, and `fields` with `message`.
    Json,
}

impl LogFormat {
    /// The format with a name of the configuration, `text` or `json`.
    pub fn of_name(name: &str) -> Option<LogFormat> {
        match name {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        }
    }
}

/// How many contained faults within how long put a VM into quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultLimit {
    /// 0: never.
    pub faults: u32,
    pub within: Duration,
}

impl Default for FaultLimit {
    fn default() -> FaultLimit {
        FaultLimit { faults: 5, within: Duration::from_secs(60) }
    }
}

/// How workers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They sleep when nothing moves.
    Adaptive,
    /// They never sleep.
    Poll,
}

impl Mode {
    fn of_name(name: &str) -> Option<Mode> {
        [Mode::Adaptive, Mode::Poll].into_iter().find(|mode| mode.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::Adaptive => "adaptive",
            Mode::Poll => "poll",
        }
    }
}

pub fn judge(raw: &RawDaemon, notes: &mut Notes<'_>) -> DaemonConfig {
    const TABLE: &str = "daemon";
    let default = DaemonConfig::default();
    let cpus = raw.cpus.as_ref().and_then(|cpus| match cpus.get_ref().parse() {
        Ok(list) => Some(list),
        Err(error) => {
            let error: BadList = error;
            notes.problem(cpus.span(), format!("{TABLE}: cpus = {:?} {error}", cpus.get_ref()));
            None
        }
    });
    if let Some(user) = &raw.user {
        notes.mark(format!("{TABLE}: user"), user.span());
    }
    let workers = raw.workers.as_ref().and_then(|count| Some(Spanned::new(count.span(), count.get_ref().0?)));
    let workers = notes.number(TABLE, "workers", &workers, WORKERS);
    let hold = notes.number(TABLE, "hold", &raw.hold, HOLD_S).map(Duration::from_secs);
    let faults = notes.number(TABLE, "fault_limit", &raw.fault_limit, FAULTS);
    let window = notes.number(TABLE, "fault_window_s", &raw.fault_window_s, FAULT_WINDOW_S);
    let mode = notes.word(TABLE, "mode", &raw.mode, Mode::of_name, "\"adaptive\" or \"poll\"");
    let log_format =
        notes.word(TABLE, "log_format", &raw.log_format, LogFormat::of_name, "\"text\" or \"json\"");
    DaemonConfig {
        workers: workers.map_or(default.workers, Workers::Count),
        cpus,
        balance: raw.balance.unwrap_or(default.balance),
        mode: mode.unwrap_or(default.mode),
        spin_us: notes.number(TABLE, "spin_us", &raw.spin_us, SPIN_US).unwrap_or(default.spin_us),
        flood_limit: notes
            .number(TABLE, "flood_limit", &raw.flood_limit, FLOODS)
            .unwrap_or(default.flood_limit),
        coalesce: raw.coalesce.unwrap_or(default.coalesce),
        huge_pages: notes
            .size(TABLE, "huge_pages", &raw.huge_pages, HUGE_PAGES)
            .unwrap_or(default.huge_pages),
        hold: hold.map_or(default.hold, |time| (!time.is_zero()).then_some(time)),
        fault_limit: FaultLimit {
            faults: faults.unwrap_or(default.fault_limit.faults),
            within: window.map_or(default.fault_limit.within, Duration::from_secs),
        },
        fault_injection: raw.fault_injection.unwrap_or(default.fault_injection),
        user: raw.user.as_ref().map(|user| user.get_ref().clone()),
        log: raw.log.clone(),
        log_format: log_format.unwrap_or(default.log_format),
    }
}
