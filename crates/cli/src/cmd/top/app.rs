//! The state of the screen and what keys do to it. It knows neither a terminal nor a daemon.

use ratatui::crossterm::event::KeyCode;

use super::rates::Sample;
use super::table::Table;
use super::views::{View, table};

/// What the loop around it is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Draw anew.
    Draw,
    /// Ask the daemon at once.
    Sample,
    Quit,
}

/// Characters of a filter.
const LONGEST: usize = 64;

/// How a view is sorted, and what of it is seen.
#[derive(Clone, Copy, Debug)]
struct Shown {
    column: usize,
    reverse: bool,
    /// Rows above the first one that is seen.
    scrolled: usize,
}

/// Everything that is on the screen.
#[derive(Debug)]
pub struct App {
    pub view: View,
    shown: [Shown; View::ALL.len()],
    /// Rows with these letters are shown.
    pub filter: String,
    /// The filter is being typed; it applies meanwhile.
    pub typing: bool,
    /// Whether help covers the table.
    pub help: bool,
    before: Option<Sample>,
    now: Option<Sample>,
    /// Why the last sample failed; the one before stays.
    pub error: Option<String>,
    /// Rows that there is room for.
    room: usize,
}

impl App {
    pub fn new() -> App {
        let shown = View::ALL.map(|view| Shown { column: view.sorted_by(), reverse: false, scrolled: 0 });
        App {
            view: View::Vms,
            shown,
            filter: String::new(),
            typing: false,
            help: false,
            before: None,
            now: None,
            error: None,
            room: 0,
        }
    }

    /// Takes what the daemon answered, or why it did not.
    pub fn note_sample(&mut self, sample: Result<Sample, String>) {
        match sample {
            Ok(sample) => {
                self.error = None;
                self.before = self.now.replace(sample);
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// The last two samples; of one alone, twice the same.
    pub fn samples(&self) -> Option<(&Sample, &Sample)> {
        let now = self.now.as_ref()?;
        Some((self.before.as_ref().unwrap_or(now), now))
    }

    /// The column that rows are sorted by, and whether the other way round.
    pub fn sorting(&self) -> (usize, bool) {
        let Shown { column, reverse, .. } = self.shown[self.view as usize];
        (column, reverse)
    }

    /// The rows for a room of so many, and how many there are in all.
    pub fn visible(&mut self, room: usize) -> Option<(Table, usize)> {
        self.room = room;
        let (before, now) = self.samples()?;
        let mut table = table(self.view, before, now);
        table.filter(&self.filter);
        let (column, reverse) = self.sorting();
        table.sort(column, reverse);
        let all = table.rows.len();
        let shown = &mut self.shown[self.view as usize];
        shown.scrolled = shown.scrolled.min(all.saturating_sub(room));
        table.rows.drain(..shown.scrolled);
        table.rows.truncate(room);
        Some((table, all))
    }

    pub fn key(&mut self, key: KeyCode) -> Next {
        if self.typing {
            self.typed(key);
            return Next::Draw;
        }
        if std::mem::take(&mut self.help) {
            return Next::Draw;
        }
        let page = self.room.max(1);
        let shown = &mut self.shown[self.view as usize];
        let last = self.view.columns().len() - 1;
        match key {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char(' ') => return Next::Sample,
            KeyCode::Char('h' | '?') => self.help = true,
            KeyCode::Char('f' | '/') => self.typing = true,
            KeyCode::Char('r') => shown.reverse = !shown.reverse,
            KeyCode::Char('<') | KeyCode::Left => shown.column = shown.column.saturating_sub(1),
            KeyCode::Char('>') | KeyCode::Right => shown.column = (shown.column + 1).min(last),
            KeyCode::Char(letter) => {
                let view = View::ALL.into_iter().find(|view| view.key() == letter);
                self.view = view.unwrap_or(self.view);
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up => shown.scrolled = shown.scrolled.saturating_sub(1),
            // Bounded when rows are drawn.
            KeyCode::Down => shown.scrolled += 1,
            KeyCode::PageUp => shown.scrolled = shown.scrolled.saturating_sub(page),
            KeyCode::PageDown => shown.scrolled += page,
            KeyCode::Home => shown.scrolled = 0,
            KeyCode::End => shown.scrolled = usize::MAX,
            KeyCode::Tab => self.view = View::ALL[(self.view as usize + 1) % View::ALL.len()],
            _ => {}
        }
        Next::Draw
    }

    fn typed(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.len() < LONGEST => self.filter.push(letter),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
