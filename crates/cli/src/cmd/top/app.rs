//! The state of the screen and what keys do to it. It knows neither a terminal nor a daemon.

use std::time::Duration;

use super::table::Table;
use super::views::{Look, View, table};

/// A key, as far as one means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Tab,
    Interrupt,
}

/// What the loop around it is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Draw anew.
    Draw,
    /// Ask the daemon at once.
    Look,
    Quit,
}

/// A line that is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typing {
    /// The filter; it applies while it is typed.
    Filter,
    /// Seconds between two looks.
    Delay(String),
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
    view: View,
    /// In the order of [`View::ALL`].
    shown: [Shown; View::ALL.len()],
    filter: String,
    typing: Option<Typing>,
    interval: Duration,
    paused: bool,
    help: bool,
    before: Option<Look>,
    now: Option<Look>,
    /// Why the daemon did not answer.
    error: Option<String>,
    /// What is wrong with what was typed.
    notice: Option<String>,
    /// Rows that there was room for.
    room: usize,
}

impl App {
    pub fn new(interval: Duration) -> App {
        let shown = View::ALL.map(|view| Shown { column: view.sorted_by(), reverse: false, scrolled: 0 });
        App {
            view: View::Vms,
            shown,
            filter: String::new(),
            typing: None,
            interval,
            paused: false,
            help: false,
            before: None,
            now: None,
            error: None,
            notice: None,
            room: 0,
        }
    }

    /// What the daemon said.
    pub fn looked(&mut self, look: Result<Look, String>) {
        match look {
            Ok(look) => {
                self.error = None;
                self.before = self.now.take();
                self.now = Some(look);
            }
            Err(error) => self.error = Some(error),
        }
    }

    pub fn view(&self) -> View {
        self.view
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    pub fn paused(&self) -> bool {
        self.paused
    }

    pub fn help(&self) -> bool {
        self.help
    }

    pub fn filter(&self) -> &str {
        &self.filter
    }

    pub fn typing(&self) -> Option<&Typing> {
        self.typing.as_ref()
    }

    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The last two looks, or the same one twice: then there are no rates yet.
    pub fn looks(&self) -> Option<(&Look, &Look)> {
        let now = self.now.as_ref()?;
        Some((self.before.as_ref().unwrap_or(now), now))
    }

    /// The column by which the view is sorted, and whether the other way round.
    pub fn sorting(&self) -> (usize, bool) {
        let Shown { column, reverse, .. } = self.shown[self.view as usize];
        (column, reverse)
    }

    /// The rows that are seen where there is room for so many, and how many there are in all.
    pub fn visible(&mut self, room: usize) -> Option<(Table, usize)> {
        self.room = room;
        let (before, now) = self.looks()?;
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

    /// A key was pressed.
    pub fn key(&mut self, key: Key) -> Next {
        if key == Key::Interrupt {
            return Next::Quit;
        }
        self.notice = None;
        if let Some(typing) = self.typing.take() {
            self.typed(typing, key);
            return Next::Draw;
        }
        if std::mem::take(&mut self.help) {
            return Next::Draw;
        }
        if let Key::Char(letter) = key
            && let Some(view) = View::ALL.into_iter().find(|view| view.key() == letter)
        {
            self.view = view;
            return if view == View::Streams { Next::Look } else { Next::Draw };
        }
        self.command(key)
    }

    fn command(&mut self, key: Key) -> Next {
        let page = self.room.max(1);
        let shown = &mut self.shown[self.view as usize];
        let last = self.view.columns().len() - 1;
        match key {
            Key::Char('q') => return Next::Quit,
            Key::Char(' ') => return Next::Look,
            Key::Char('h' | '?') => self.help = true,
            Key::Char('s') => self.typing = Some(Typing::Delay(String::new())),
            Key::Char('f' | '/') => self.typing = Some(Typing::Filter),
            Key::Char('p') => self.paused = !self.paused,
            Key::Char('r') => shown.reverse = !shown.reverse,
            Key::Char('<') | Key::Left => shown.column = shown.column.saturating_sub(1),
            Key::Char('>') | Key::Right => shown.column = (shown.column + 1).min(last),
            Key::Escape => self.filter.clear(),
            Key::Up => shown.scrolled = shown.scrolled.saturating_sub(1),
            Key::Down => shown.scrolled += 1,
            Key::PageUp => shown.scrolled = shown.scrolled.saturating_sub(page),
            Key::PageDown => shown.scrolled += page,
            Key::Home => shown.scrolled = 0,
            Key::End => shown.scrolled = usize::MAX,
            Key::Tab => {
                self.view = View::ALL[(self.view as usize + 1) % View::ALL.len()];
                return Next::Look;
            }
            _ => {}
        }
        Next::Draw
    }

    fn typed(&mut self, typing: Typing, key: Key) {
        self.typing = match (typing, key) {
            (Typing::Filter, Key::Enter) => None,
            (Typing::Filter, Key::Escape) => {
                self.filter.clear();
                None
            }
            (Typing::Filter, Key::Backspace) => {
                self.filter.pop();
                Some(Typing::Filter)
            }
            (Typing::Filter, Key::Char(letter)) => {
                if self.filter.len() < LONGEST {
                    self.filter.push(letter);
                }
                Some(Typing::Filter)
            }
            (Typing::Delay(text), Key::Enter) => {
                match crate::cmd::control::seconds(&text) {
                    Ok(interval) => self.interval = interval,
                    Err(_) if text.is_empty() => {}
                    Err(why) => self.notice = Some(why),
                }
                None
            }
            (Typing::Delay(_), Key::Escape) => None,
            (Typing::Delay(mut text), Key::Backspace) => {
                text.pop();
                Some(Typing::Delay(text))
            }
            (Typing::Delay(mut text), Key::Char(letter)) => {
                if text.len() < LONGEST {
                    text.push(letter);
                }
                Some(Typing::Delay(text))
            }
            (typing, _) => Some(typing),
        };
    }
}

#[cfg(test)]
mod tests;
