//! What the commands that ask a running daemon have in common.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ratatui::crossterm;
use serde::Serialize;
use vmlane_api::{Client, ClientError, ErrorCode, Failure, PeerStatus, Status, TeamStatus, VERSION};
use vmlane_keeper::{Sessions, takeover};

use vmlane_bench::row;
use vmlane_bench::table;

/// Which daemon to ask.
#[derive(Debug, clap::Args)]
pub struct Where {
    /// Runtime directory of the daemon to ask
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    pub runtime_dir: PathBuf,
}

impl Where {
    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.runtime_dir)
    }
}

/// How to show the answer.
#[derive(Debug, clap::Args)]
pub struct Show {
    #[command(flatten)]
    pub place: Where,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Repeat every so many seconds, until interrupted
    #[arg(long, visible_alias = "watch", value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
}

impl Show {
    /// Asks once, or at every interval, and prints as JSON or as `plain` puts it.
    pub fn report<T: Serialize>(
        &self,
        ask: impl Fn(&mut Client) -> Result<T, ClientError>,
        mut plain: impl FnMut(&T) -> anyhow::Result<String>,
    ) -> anyhow::Result<ExitCode> {
        loop {
            let answer = ask(&mut self.place.connect()?)?;
            let text = if self.json { json(&answer)? } else { plain(&answer)? };
            if !print(&text)? {
                return Ok(ExitCode::SUCCESS);
            }
            let Some(interval) = self.interval else { return Ok(ExitCode::SUCCESS) };
            std::thread::sleep(interval);
            if !self.json {
                print("\n")?;
            }
        }
    }
}

/// The devices whose VMMs wait for a daemon where none runs, and what to do; None: there are none, or that is
/// not known.
pub fn waiting(runtime_dir: &Path) -> Option<String> {
    let Sessions { held, lost } = takeover::sessions(runtime_dir).ok()?;
    let named = |names: Vec<String>| {
        let device = |name: &String| match name.rsplit_once('.') {
            Some((vm, device)) => format!("{vm}/{device}"),
            None => name.clone(),
        };
        (!names.is_empty()).then(|| names.iter().map(device).collect::<Vec<_>>().join(", "))
    };
    let held = named(held).map(|names| {
        format!("the keeper holds the sessions of {names}: they go on once the daemon is started (`systemctl start vmlane`)")
    });
    let lost = named(lost).map(|names| {
        format!("the keeper has held for too long, and closed, the sessions of {names}: start the daemon, then restart their QEMU")
    });
    let lines: Vec<String> = held.into_iter().chain(lost).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// An answer as one line, the version first.
pub fn json(answer: &impl Serialize) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        version: u32,
        #[serde(flatten)]
        answer: &'a T,
    }
    Ok(serde_json::to_string(&Versioned { version: VERSION, answer })? + "\n")
}

/// Leaves those of a name, if one is given; `noun` is the command that lists them.
pub fn only<T>(
    all: &mut Vec<T>,
    name: Option<&str>,
    noun: &str,
    name_of: impl Fn(&T) -> &str,
) -> Result<(), ClientError> {
    let Some(name) = name else { return Ok(()) };
    let error = unknown(noun, name, all.iter().map(&name_of));
    all.retain(|one| name_of(one) == name);
    if all.is_empty() { Err(error) } else { Ok(()) }
}

/// How many names an error suggests.
const MOST_SUGGESTED: usize = 3;

/// There is none of this name, but some of similar ones.
pub fn unknown<'n>(noun: &str, name: &str, known: impl Iterator<Item = &'n str>) -> ClientError {
    let letters = |known: &str| strsim::damerau_levenshtein(name, known);
    let mut near: Vec<(usize, &str)> = known.map(|known| (letters(known), known)).collect();
    near.retain(|(letters, known)| *letters <= 1.max(known.len() / 3));
    near.sort_unstable();
    let near: Vec<&str> = near.into_iter().take(MOST_SUGGESTED).map(|(_, known)| known).collect();
    let meant = if near.is_empty() { String::new() } else { format!("did you mean {}? ", near.join(", ")) };
    let list = format!("`vmlane {} list` lists all", noun.to_lowercase());
    let message = format!("there is no {noun} {name:?}; {meant}{list}");
    Failure { code: ErrorCode::BadRequest, message }.into()
}

/// Writes to stdout. False if its reader is gone, which ends a listing without an error.
pub fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Understands seconds, fractions included.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds, such as 1 or 0.5".to_owned())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("give 0.1 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A line for each other host; nothing without any.
pub fn peers(peers: &[PeerStatus]) -> String {
    if peers.is_empty() {
        return String::new();
    }
    let mut rows =
        vec![row!["PEER", "STATE", "STREAMS", "SENT BYTES", "RECEIVED BYTES", "REFUSED", "PROBLEM"]];
    for peer in peers.iter().filter(|peer| !peer.name.is_empty() || !peer.problem.is_empty()) {
        let counters = &peer.counters;
        rows.push(row![
            if peer.name.is_empty() { "(unknown)" } else { &peer.name },
            peer.state,
            peer.streams,
            bytes(counters.get("bytes_sent") as f64),
            bytes(counters.get("bytes_received") as f64),
            counters.get("calls_refused") + counters.get("opens_refused"),
            if peer.problem.is_empty() { "-" } else { &peer.problem },
        ]);
    }
    format!("\n{}", table(&rows))
}

/// A line for each NIC that is a port of OVN's; nothing without any.
pub fn ovn(status: &Status) -> String {
    let mut rows = vec![row!["NIC", "LOGICAL PORT", "STATE", "SUPER-FRAMES", "PROBLEM"]];
    for (vm, nic) in status.vms.iter().flat_map(|vm| vm.nics.iter().map(move |nic| (vm, nic))) {
        let Some(ovn) = &nic.ovn else { continue };
        rows.push(row![
            format!("{}/{}", vm.name, nic.name),
            ovn.port,
            ovn.state,
            if ovn.whole { "whole" } else { "cut" },
            if ovn.problem.is_empty() { "-" } else { &ovn.problem },
        ]);
    }
    if rows.len() > 1 { format!("\n{}", table(&rows)) } else { String::new() }
}

/// A line for each uplink of each team; nothing without teams.
pub fn teams(teams: &[TeamStatus]) -> String {
    let mut rows = vec![row!["TEAM", "POLICY", "UPLINK", "STATE", "FAILOVERS", "FAILBACKS"]];
    for team in teams {
        for member in &team.members {
            let state = match (member.active, member.standby) {
                (true, true) => "active, for one that failed",
                _ => &member.why,
            };
            let counters = &team.counters;
            rows.push(row![
                team.name,
                team.policy,
                member.uplink,
                state,
                counters.get("failovers"),
                counters.get("failbacks")
            ]);
        }
    }
    if teams.is_empty() { String::new() } else { format!("\n{}", table(&rows)) }
}

/// A table. On a terminal that is too narrow for it, names are shortened.
pub fn table(rows: &[Vec<String>]) -> String {
    match crossterm::terminal::size() {
        Ok((columns, _)) if is_terminal() => table::table(&fitted(rows, columns.into())),
        _ => table::table(rows),
    }
}

/// The fewest letters of a name that is shortened.
const FEWEST: usize = 8;

/// The rows of a table with shorter names, so that it has `width` columns if possible. Numbers, MAC addresses
/// and texts of several words stay.
pub fn fitted(rows: &[Vec<String>], width: usize) -> Vec<Vec<String>> {
    let Some((head, body)) = rows.split_first() else { return Vec::new() };
    let letters = |cell: &String| cell.chars().count();
    let is_name =
        |cell: &String| !cell.contains(' ') && !cell.starts_with(|first: char| first.is_ascii_digit());
    let cells = |column: usize| body.iter().filter_map(move |row| row.get(column));
    let widest = |column: usize| cells(column).chain(head.get(column)).map(letters).max().unwrap_or(0);
    let mut limits: Vec<usize> = (0..head.len()).map(widest).collect();
    let least: Vec<Option<usize>> = (0..head.len())
        .map(|column| {
            (cells(column).all(is_name) && head[column] != "MAC").then(|| letters(&head[column]).max(FEWEST))
        })
        .collect();
    while limits.iter().sum::<usize>() + 2 * (limits.len() - 1) > width {
        let can_shrink = |column: &usize| least[*column].is_some_and(|least| limits[*column] > least);
        let Some(column) = (0..limits.len()).filter(can_shrink).max_by_key(|column| limits[*column]) else {
            break;
        };
        limits[column] -= 1;
    }
    let row = |row: &Vec<String>| {
        let cells = row.iter().zip(limits.iter().zip(&least));
        cells
            .map(
                |(cell, (limit, least))| if least.is_some() { shortened(cell, *limit) } else { cell.clone() },
            )
            .collect()
    };
    rows.iter().map(row).collect()
}

/// A name without its middle: both ends of `web-frontend/nic0` and of paths matter.
fn shortened(name: &str, limit: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= limit {
        return name.to_owned();
    }
    let front = (limit - 1) / 2;
    let back = letters.len() - (limit - 1 - front);
    letters[..front].iter().chain(&['…']).chain(&letters[back..]).collect()
}

/// A number of bytes, for people.
pub fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_similar_ones() {
        let ask = |name| unknown("VM", name, ["web", "web2", "db"].into_iter()).to_string();
        let none = "there is no VM \"site\"; `vmlane vm list` lists all";
        assert_eq!((ask("site").as_str(), ask("wbe").contains("did you mean web?")), (none, true));
        assert!(ask("web3").contains("did you mean web, web2?"), "{}", ask("web3"));
        let mut all = vec!["l1", "l2"];
        assert!(only(&mut all, Some("l2"), "wire", |one| *one).is_ok() && all == ["l2"]);
        assert!(only(&mut all, Some("x"), "wire", |one| *one).is_err());
    }

    #[test]
    fn intervals_and_bytes() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(["0", "-1", "x", "nan", "1e9"].iter().all(|text| seconds(text).is_err()));
        assert_eq!(
            (bytes(5.0), bytes(1536.0), bytes(3e9)),
            ("5 B".into(), "1.5 KiB".into(), "2.8 GiB".into())
        );
    }
}
