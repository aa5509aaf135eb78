//! The loop of `vmlane top` on a terminal.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use vmlane_api::call;

use super::app::{App, Next};
use super::draw::draw;
use super::rates::Sample;
use crate::cmd::control::Where;

/// Shows what moves until a key or `count` updates end it.
pub fn run(place: &Where, interval: Duration, count: Option<u64>) -> anyhow::Result<()> {
    // Without a daemon the reason is not lost with the screen.
    let first = sample(place)?;
    let mut terminal = ratatui::try_init()?;
    let mut app = App::new();
    app.note_sample(Ok(first));
    let outcome = serve(&mut terminal, &mut app, place, interval, count);
    ratatui::restore();
    outcome
}

pub(super) fn sample(place: &Where) -> anyhow::Result<Sample> {
    let mut client = place.connect()?;
    Ok(Sample {
        at: Instant::now(),
        status: client.call(&call::Status {})?,
        stats: client.call(&call::Stats {})?,
    })
}

fn serve(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    place: &Where,
    interval: Duration,
    mut left: Option<u64>,
) -> anyhow::Result<()> {
    let mut note_sample = Instant::now();
    while left != Some(0) {
        terminal.draw(|frame| draw(frame, app))?;
        let wait = interval.saturating_sub(note_sample.elapsed());
        let key = if event::poll(wait)? { pressed(&event::read()?) } else { None };
        let next = match key {
            Some(KeyEvent { code: KeyCode::Char('c'), modifiers: KeyModifiers::CONTROL, .. }) => Next::Quit,
            Some(key) => app.key(key.code),
            None => Next::Draw,
        };
        if next == Next::Quit {
            return Ok(());
        }
        if next == Next::Sample || note_sample.elapsed() >= interval {
            app.note_sample(sample(place).map_err(|error| format!("{error:#}")));
            note_sample = Instant::now();
            left = left.map(|left| left - 1);
        }
    }
    Ok(())
}

/// The key, if one was pressed that is no shortcut of another program's.
fn pressed(event: &Event) -> Option<KeyEvent> {
    let Event::Key(key) = event else { return None };
    let pressed = matches!(key.kind, KeyEventKind::Press | KeyEventKind::Repeat);
    let plain = !key.modifiers.contains(KeyModifiers::CONTROL) || key.code == KeyCode::Char('c');
    (pressed && plain).then_some(*key)
}
