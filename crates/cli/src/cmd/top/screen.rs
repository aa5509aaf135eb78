//! The loop on a terminal: waits for keys until it is time to ask the daemon again, and draws.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use vmlane_api::call;

use super::app::{App, Key, Next};
use super::draw::draw;
use super::views::{Look, View};
use crate::cmd::control::Where;

/// Until `q`, or after `count` updates. The terminal is left as it was, also after an error or a panic.
pub fn run(place: &Where, interval: Duration, count: Option<u64>) -> anyhow::Result<()> {
    // A daemon that is not there is an error before the screen is cleared.
    let first = look(place, View::Vms)?;
    let mut terminal = ratatui::try_init()?;
    let mut app = App::new(interval);
    app.looked(Ok(first));
    let outcome = serve(&mut terminal, &mut app, place, count);
    ratatui::restore();
    outcome
}

fn look(place: &Where, view: View) -> anyhow::Result<Look> {
    let mut client = place.connect()?;
    let ports = if view == View::Streams { Some(client.call(&call::Ports {})?) } else { None };
    let (status, stats) = (client.call(&call::Status {})?, client.call(&call::Stats {})?);
    Ok(Look { status, stats, ports })
}

fn serve(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    place: &Where,
    mut left: Option<u64>,
) -> anyhow::Result<()> {
    let mut looked = Instant::now();
    loop {
        terminal.draw(|frame| draw(frame, app))?;
        let due = looked + app.interval();
        let mut now = !app.paused() && Instant::now() >= due;
        if !now {
            let wait =
                if app.paused() { app.interval() } else { due.saturating_duration_since(Instant::now()) };
            match if event::poll(wait)? { pressed(&event::read()?) } else { None }.map(|key| app.key(key)) {
                Some(Next::Quit) => return Ok(()),
                Some(Next::Look) => now = true,
                // A resized terminal is drawn anew as well.
                Some(Next::Draw) | None => continue,
            }
        }
        if now {
            app.looked(look(place, app.view()).map_err(|error| format!("{error:#}")));
            looked = Instant::now();
            left = left.map(|left| left.saturating_sub(1));
            if left == Some(0) {
                return Ok(());
            }
        }
    }
}

/// The key of an event, if it means something here.
fn pressed(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) =
        event
    else {
        return None;
    };
    if modifiers.contains(KeyModifiers::CONTROL) {
        return (*code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match code {
        KeyCode::Char(letter) => Key::Char(*letter),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Tab => Key::Tab,
        _ => return None,
    })
}
