use std::time::Instant;

use vmlane_api::Stats;

use super::*;
use crate::cmd::top::views::tests::{daemon, sample};

fn app() -> App {
    let mut app = App::new();
    app.note_sample(Ok(sample(10.0, 0)));
    app.note_sample(Ok(sample(12.0, 1000)));
    app
}

/// Presses keys; the last answer.
fn press(app: &mut App, keys: &str) -> Next {
    keys.chars()
        .map(|key| app.key(if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) }))
        .last()
        .unwrap()
}

fn first_column(app: &mut App, room: usize) -> Vec<String> {
    let (table, _) = app.visible(room).unwrap();
    table.rows.iter().map(|row| row[0].to_string()).collect()
}

#[test]
fn views_have_keys_and_each_keeps_its_own_sorting() {
    let mut app = app();
    assert_eq!(first_column(&mut app, 10), ["web", "db", "mail"], "by bytes sent");
    assert_eq!(press(&mut app, "n"), Next::Draw);
    assert_eq!((app.view, app.sorting()), (View::Network, (3, false)));
    press(&mut app, "<<<r");
    assert_eq!(app.sorting(), (0, true));
    assert_eq!(first_column(&mut app, 10), ["web/nic0", "lan", "db/nic0"]);
    press(&mut app, "v");
    assert_eq!(app.sorting(), (4, false));
    for _ in 0..20 {
        app.key(KeyCode::Right);
    }
    assert_eq!(app.sorting(), (8, false), "there are no more columns");
    for view in [View::Sockets, View::Network, View::Workers, View::Vms] {
        app.key(KeyCode::Tab);
        assert_eq!(app.view, view);
    }
}

#[test]
fn a_filter_applies_while_it_is_typed() {
    let mut app = app();
    press(&mut app, "/M");
    assert_eq!(first_column(&mut app, 10), ["mail"]);
    press(&mut app, "q");
    assert_eq!(app.filter, "Mq", "a letter is no command here");
    assert_eq!(first_column(&mut app, 10).len(), 0);
    app.key(KeyCode::Backspace);
    press(&mut app, "\n");
    assert_eq!((app.filter.as_str(), app.typing), ("M", false));
    app.key(KeyCode::Esc);
    assert_eq!(first_column(&mut app, 10).len(), 3);
    press(&mut app, "f");
    press(&mut app, &"x".repeat(1000));
    assert_eq!(app.filter.len(), LONGEST);
}

#[test]
fn rows_are_scrolled_and_never_out_of_sight() {
    let mut app = app();
    press(&mut app, "<<<<");
    assert_eq!(first_column(&mut app, 2), ["db", "mail"]);
    app.key(KeyCode::Down);
    assert_eq!(first_column(&mut app, 2), ["mail", "web"]);
    app.key(KeyCode::Down);
    assert_eq!(first_column(&mut app, 2), ["mail", "web"], "the last one stays at the bottom");
    app.key(KeyCode::Home);
    app.key(KeyCode::PageDown);
    assert_eq!(first_column(&mut app, 2), ["mail", "web"]);
    app.key(KeyCode::End);
    assert_eq!(first_column(&mut app, 1), ["web"]);
    assert_eq!(first_column(&mut app, 10), ["db", "mail", "web"], "a larger terminal");
    assert_eq!(first_column(&mut app, 0), [""; 0]);
}

#[test]
fn help_ends_with_any_key_and_q_quits() {
    let mut app = app();
    press(&mut app, "h");
    assert!(app.help);
    assert_eq!(press(&mut app, "q"), Next::Draw);
    assert!(!app.help);
    assert_eq!(press(&mut app, " "), Next::Sample);
    assert_eq!(press(&mut app, "q"), Next::Quit);
}

#[test]
fn an_error_is_shown_until_the_daemon_answers_and_the_rows_stay() {
    let mut app = app();
    app.note_sample(Err("no daemon answers".into()));
    assert_eq!(app.error.as_deref(), Some("no daemon answers"));
    assert_eq!(first_column(&mut app, 10).len(), 3);
    app.note_sample(Ok(sample(1.0, 5)));
    assert_eq!(app.error, None);
    let mut empty = App::new();
    assert!(empty.visible(10).is_none() && empty.samples().is_none());
    let (status, _) = daemon(1.0, 0);
    empty.note_sample(Ok(Sample { at: Instant::now(), status, stats: Stats::default() }));
    assert_eq!(first_column(&mut empty, 10).len(), 0);
}
