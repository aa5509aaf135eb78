//! Standard error as the journal reads it: each line begins with its priority, and has no time, which the
//! journal notes itself.

use std::env;
use std::fmt;

use rustix::fs::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// Priority of an error, as syslog counts.
const ERROR: u8 = 3;

/// Does standard error lead to the journal? systemd names the device and the inode that it has given to the
/// service.
pub fn is_stderr() -> bool {
    let Ok(named) = env::var("JOURNAL_STREAM") else { return false };
    fstat(rustix::stdio::stderr()).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Prints an error with which the program ends.
pub fn print_error(text: &str) {
    let text = format!("vmlane: {text}");
    if is_stderr() { eprint!("{}", prioritized(ERROR, &text)) } else { eprintln!("{text}") }
}

/// Every line of a text with the priority: the journal takes each for an entry of its own.
fn prioritized(priority: u8, text: &str) -> String {
    text.lines().map(|line| format!("<{priority}>{line}\n")).collect()
}

/// A format whose lines begin with a priority.
pub struct Prioritized<F>(pub F);

impl<S, N, F> FormatEvent<S, N> for Prioritized<F>
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        let priority = match *event.metadata().level() {
            Level::ERROR => ERROR,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        out.write_str(&prioritized(priority, &text))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_has_the_priority_of_its_event_and_no_time() {
        let written = Written::default();
        let out = written.clone();
        let format = tracing_subscriber::fmt::format().without_time().with_ansi(false).with_target(false);
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .event_format(Prioritized(format))
            .with_writer(move || out.clone());
        vmlane_testkit::with_subscriber(tracing_subscriber::registry().with(lines), || {
            let _named = tracing::error_span!("serving", device = "web/nic0").entered();
            tracing::info!("VMM connected");
            tracing::warn!("two\nlines");
            tracing::error!("end");
            tracing::debug!("detail");
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "<6> INFO serving{device=\"web/nic0\"}: VMM connected");
        assert!(lines.iter().all(|line| line.starts_with('<')), "{text}");
        let priorities: Vec<&str> = lines.iter().map(|line| &line[..3]).collect();
        assert!(priorities.starts_with(&["<6>", "<4>"]) && priorities.ends_with(&["<3>", "<7>"]), "{text}");
    }
}
