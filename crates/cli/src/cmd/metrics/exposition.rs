//! The two text formats: OpenMetrics, and the older one of Prometheus, which `promtool` and curl expect.

use std::borrow::Cow;
use std::collections::HashSet;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// OpenMetrics 1.0
    Openmetrics,
    /// Prometheus's text format 0.0.4
    Prometheus,
}

/// Types that OpenMetrics has and the older format has not, with the ending of their samples' names and the
/// type there.
const RENAMED: [(&str, &str, &str); 2] = [(" counter", "_total", " counter"), (" info", "_info", " gauge")];

impl Format {
    /// The one that a client wants, by its header `Accept`.
    pub fn wanted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::Openmetrics } else { Format::Prometheus }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Openmetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// OpenMetrics text in this format.
    pub fn of(self, openmetrics: &str) -> String {
        match self {
            Format::Openmetrics => openmetrics.to_owned(),
            Format::Prometheus => older(openmetrics),
        }
    }
}

/// In the older format, a counter's family has the name of its samples, and there are no units and no end
/// mark.
fn older(openmetrics: &str) -> String {
    let types = openmetrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let endings: [HashSet<&str>; RENAMED.len()] =
        RENAMED.map(|(kind, ..)| types.clone().filter_map(|line| line.strip_suffix(kind)).collect());
    let ending = |name: &str| endings.iter().position(|names| names.contains(name));
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let (word, rest) = comment.split_once(' ').unwrap_or((comment, ""));
        let (name, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        let (ending, kind) = match ending(name).and_then(|at| RENAMED.get(at)) {
            Some((_, ending, kind)) => (*ending, kind.trim_start()),
            None => ("", tail),
        };
        let tail: Cow<'_, str> = match word {
            "TYPE" => kind.into(),
            "HELP" => tail.into(),
            _ => continue,
        };
        text.push_str(&format!("# {word} {name}{ending} {tail}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_has_the_samples_names_and_no_units() {
        let openmetrics = "# HELP vmlane_build About\n# TYPE vmlane_build info\nvmlane_build_info{version=\"1\"} 1\n\
            # HELP vmlane_sent_bytes Bytes sent\n# TYPE vmlane_sent_bytes counter\n# UNIT vmlane_sent_bytes bytes\n\
            vmlane_sent_bytes_total{vm=\"# a\"} 5\n\
            # HELP vmlane_up Whether\n# TYPE vmlane_up gauge\nvmlane_up 1\n# EOF\n";
        let older = "# HELP vmlane_build_info About\n# TYPE vmlane_build_info gauge\nvmlane_build_info{version=\"1\"} 1\n\
            # HELP vmlane_sent_bytes_total Bytes sent\n# TYPE vmlane_sent_bytes_total counter\n\
            vmlane_sent_bytes_total{vm=\"# a\"} 5\n\
            # HELP vmlane_up Whether\n# TYPE vmlane_up gauge\nvmlane_up 1\n";
        assert_eq!(Format::Prometheus.of(openmetrics), older);
        assert_eq!(Format::Openmetrics.of(openmetrics), openmetrics);
    }

    #[test]
    fn who_asks_for_openmetrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(Format::wanted(prometheus), Format::Openmetrics);
        assert_eq!(Format::wanted("*/*"), Format::Prometheus);
        assert_eq!(Format::wanted(""), Format::Prometheus);
    }
}
