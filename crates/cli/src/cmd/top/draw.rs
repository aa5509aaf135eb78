//! Draws the state: lines about the daemon, its traffic and its workers, the view's table, a line of keys.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell as Place, Clear, Paragraph, Row, Table as Grid};

use super::app::App;
use super::rates::{Rates, Sample, rates};
use super::table::{Cell, Table, megabits};
use super::views::{View, load};

const GAP: u16 = 2;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BAD: Style = Style::new().fg(Color::Red);

/// Lines of a table's head: names, and units.
const HEAD: u16 = 2;

const HELP: [&str; 12] = [
    " v      VMs: what their sockets send and receive, frames, drops",
    " s      sockets: datagrams, notices, interrupts",
    " n      network: cards and uplinks, drops and their reason",
    " w      workers and their load",
    " Tab    the next view",
    "",
    " < >    sort by another column (also Left, Right)   r    the other way round",
    " f /    filter: rows with these letters             Esc  all rows",
    " Up, Down, PgUp, PgDn, Home, End: scroll",
    "",
    " Space  update now",
    " q      quit                                        h ?  this help",
];

/// Draws everything into a frame of any size.
pub fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let above = match app.samples() {
        Some((before, now)) if app.view == View::Workers => {
            vec![daemon(now), traffic(before, now), workers(before, now), placement(now)]
        }
        Some((before, now)) => vec![daemon(now), traffic(before, now), workers(before, now)],
        None => vec![Line::from("vmlane: no answer yet")],
    };
    let lines = Constraint::Length(above.len() as u16);
    let parts = Layout::vertical([lines, Constraint::Min(0), Constraint::Length(1)]);
    let [top, middle, bottom] = parts.areas(frame.area());
    frame.render_widget(Paragraph::new(above), top);
    let room = usize::from(middle.height.saturating_sub(HEAD));
    if let Some((table, all)) = app.visible(room) {
        let (column, reverse) = app.sorting();
        grid(frame, middle, &table, column, reverse);
        if table.rows.is_empty() {
            let empty = empty(app, all);
            let height = middle.height.saturating_sub(HEAD).min(1);
            let below = Rect { y: middle.y + HEAD, height, ..middle };
            frame.render_widget(Paragraph::new(Line::styled(empty, DIM)), below);
        }
    }
    frame.render_widget(Paragraph::new(keys(app)), bottom);
    if app.help {
        let text: Vec<Line<'_>> = HELP.iter().map(|line| Line::from(*line)).collect();
        frame.render_widget(Clear, middle);
        frame.render_widget(Paragraph::new(text), middle);
    }
}

fn empty(app: &App, all: usize) -> &'static str {
    match app.view {
        _ if all > 0 || !app.filter.is_empty() => "no row has these letters",
        View::Vms | View::Sockets => "the daemon serves no VM",
        View::Network => "there are no cards and no uplinks",
        View::Workers => "the workers are not known",
    }
}

fn daemon(now: &Sample) -> Line<'static> {
    let connected = now.status.vms.iter().filter(|vm| vm.attached).count();
    Line::from(vec![
        Span::styled(format!("vmlane {}", now.status.daemon), BOLD),
        Span::raw(format!(
            "  up {}  {connected} of {} VMs connected",
            time(now.status.uptime_seconds),
            now.status.vms.len(),
        )),
    ])
}

/// Of all VMs.
fn traffic(before: &Sample, now: &Sample) -> Line<'static> {
    let Rates { vms, bytes_per_second: streams, .. } = rates(before, now);
    let frames: f64 = vms.iter().map(|vm| vm.frame_bytes_per_second).sum();
    let drops: f64 = vms.iter().map(|vm| vm.drops_per_second).sum();
    let drops = Span::styled(format!("{drops:.0} drops/s"), if drops > 0.0 { BAD } else { Style::new() });
    let rates = format!("streams {} Mbit/s  frames {} Mbit/s  ", megabits(streams), megabits(frames));
    Line::from(vec![Span::raw(rates), drops])
}

/// Days, hours, minutes, seconds: the two largest of them.
fn time(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

fn workers(before: &Sample, now: &Sample) -> Line<'static> {
    let mut spans = vec![Span::raw("load")];
    for worker in &now.status.watched {
        let load = load(&worker.name, before, now).unwrap_or(0.0);
        let style = if worker.stuck_seconds.is_some() || load > 0.9 { BAD } else { Style::new() };
        spans.push(Span::styled(format!("  {} {:.0} %", worker.name, load * 100.0), style));
    }
    Line::from(spans)
}

/// How many there are of each kind, and why.
fn placement(now: &Sample) -> Line<'static> {
    Line::from(format!("workers: {} ({})", now.status.workers, now.status.placement))
}

/// The columns that there is room for, from the left, each as wide as its widest cell.
fn widths(table: &Table, room: u16) -> Vec<u16> {
    let mut left = room;
    let mut widths = Vec::new();
    for (at, column) in table.columns.iter().enumerate() {
        let cells =
            table.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.to_string().chars().count());
        // A mark is beside the heading of the column that is sorted by.
        let widest = cells.chain([column.name.len() + 1, column.unit.len()]).max().unwrap_or(0);
        let width = u16::try_from(widest).unwrap_or(u16::MAX);
        let gap = if at == 0 { 0 } else { GAP };
        match left.checked_sub(width.saturating_add(gap)) {
            Some(rest) => left = rest,
            None if at == 0 => left = 0,
            None => break,
        }
        widths.push(width.min(room));
    }
    widths
}

fn grid(frame: &mut Frame<'_>, area: Rect, table: &Table, sorted: usize, reverse: bool) {
    let widths = widths(table, area.width);
    let side = |at: usize| match table.columns.get(at) {
        Some(column) if column.numeric => Alignment::Right,
        _ => Alignment::Left,
    };
    let line = |at: usize, text: String, style: Style| Line::styled(text, style).alignment(side(at));
    let heads = table.columns.iter().enumerate().map(|(at, column)| {
        let mark = match (at == sorted, reverse) {
            (false, _) => "",
            (true, false) => "*",
            (true, true) => "^",
        };
        let name = line(at, format!("{}{mark}", column.name), BOLD);
        Place::from(Text::from(vec![name, line(at, column.unit.into(), DIM)]))
    });
    let rows = table.rows.iter().map(|row| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(at, cell)| Place::from(line(at, cell.to_string(), style(table, at, cell))));
        Row::new(cells.take(widths.len()).collect::<Vec<_>>())
    });
    let head = Row::new(heads.take(widths.len()).collect::<Vec<_>>()).height(HEAD);
    let constraints: Vec<Constraint> = widths.iter().map(|width| Constraint::Length(*width)).collect();
    frame.render_widget(Grid::new(rows, constraints).header(head).column_spacing(GAP), area);
}

/// What asks for attention stands out, and what is 0 does not.
fn style(table: &Table, at: usize, cell: &Cell) -> Style {
    let bad = matches!(table.columns.get(at).map(|column| column.name), Some("DROPS"));
    match cell {
        Cell::Text(text) if text == "quarantine" || text == "down" || text.starts_with("stuck") => BAD,
        cell if cell.is_zero() => DIM,
        _ if bad && *cell != Cell::Nothing => BAD,
        Cell::Share(share) if *share > 0.9 => BAD,
        _ => Style::new(),
    }
}

fn keys(app: &App) -> Line<'static> {
    if app.typing {
        return Line::from(format!("filter: {}_", app.filter));
    }
    if let Some(wrong) = &app.error {
        return Line::styled(wrong.replace('\n', " "), BAD);
    }
    let mut spans = Vec::new();
    for view in View::ALL {
        let style = if view == app.view { BOLD.add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(format!("{} {}", view.key(), view.name()), style));
        spans.push(Span::raw("  "));
    }
    spans.push(Span::raw("h help  q quit"));
    if !app.filter.is_empty() {
        spans.push(Span::styled(format!("  filter: {}", app.filter), BOLD));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests;
