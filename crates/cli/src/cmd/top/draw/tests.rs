use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;

use super::super::views::tests::sample;
use super::*;

fn app() -> App {
    let mut app = App::new();
    app.note_sample(Ok(sample(90_000.0, 0)));
    app.note_sample(Ok(sample(90_002.0, 1000)));
    app
}

/// What a terminal of this size shows.
fn lines(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

#[test]
fn the_overview_has_the_daemon_its_workers_and_its_vms() {
    let lines = lines(&mut app(), 160, 11);
    assert_eq!(lines[0], "vmlane 0.1.0  up 1 d 1 h  3 of 3 VMs connected");
    assert_eq!(lines[1], "streams <0.01 Mbit/s  frames <0.01 Mbit/s  110 drops/s");
    assert_eq!(lines[2], "load  worker-0 25 %  switch 0 %");
    assert!(lines[3].starts_with("VM    CID   STATE") && lines[3].contains("SENT*"), "{}", lines[3]);
    assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>(), ["Mbit/s", "Mbit/s", "/s", "Mbit/s", "/s"]);
    assert!(lines[5].starts_with("web   3     ready"), "{}", lines[5]);
    assert!(lines[6].starts_with("db    4     connected"), "{}", lines[6]);
    assert!(lines[7].starts_with("mail  5     quarantine"), "{}", lines[7]);
    assert_eq!((lines[8].as_str(), lines[9].as_str()), ("", ""));
    assert_eq!(lines[10], "v VMs  s sockets  n network  w workers  h help  q quit");
}

#[test]
fn the_view_of_workers_has_the_reason_for_their_number() {
    let mut app = app();
    app.key(KeyCode::Char('w'));
    let lines = lines(&mut app, 160, 9);
    assert_eq!(lines[3], "workers: 1 (auto: 1 cache of 2 cores, not pinned)");
    assert!(lines[4].starts_with("WORKER") && lines[6].starts_with("switch"), "{lines:?}");
}

#[test]
fn numbers_end_under_the_end_of_their_heading() {
    let lines = lines(&mut app(), 160, 9);
    let end = lines[3].find("DROPS").unwrap() + "DROPS".len();
    assert_eq!((lines[3].len(), lines[4].len(), lines[5].len()), (end, end, end), "{lines:?}");
    assert!(lines[4].ends_with("/s") && lines[5].ends_with("55"), "{lines:?}");
}

#[test]
fn every_view_fits_80_columns() {
    let mut app = App::new();
    app.note_sample(Ok(sample(90_000.0, 0)));
    app.note_sample(Ok(sample(90_002.0, 123_456_789)));
    for key in ['v', 's', 'n', 'w', 'h'] {
        app.key(KeyCode::Char(key));
        assert_eq!(lines(&mut app, 80, 24), lines(&mut app, 300, 24), "{key}");
    }
}

#[test]
fn any_size_will_do_and_columns_that_do_not_fit_are_left_out() {
    for (width, height) in [(1, 1), (3, 2), (20, 3), (20, 24), (300, 4), (2, 100)] {
        for key in ['v', 's', 'n', 'w', 'h'] {
            let mut app = app();
            app.key(KeyCode::Char(key));
            assert_eq!(lines(&mut app, width, height).len(), usize::from(height));
        }
    }
    let narrow = lines(&mut app(), 30, 9);
    assert!(narrow[3].contains("STATE") && !narrow[3].contains("SENT"), "{}", narrow[3]);
}

#[test]
fn the_last_line_has_what_is_typed_and_what_is_wrong() {
    let mut app = app();
    let last = |app: &mut App| lines(app, 160, 9).pop().unwrap();
    app.key(KeyCode::Char('/'));
    app.key(KeyCode::Char('d'));
    assert_eq!(last(&mut app), "filter: d_");
    app.key(KeyCode::Char('x'));
    app.key(KeyCode::Enter);
    assert!(last(&mut app).ends_with("filter: dx"));
    assert_eq!(lines(&mut app, 160, 9)[5], "no row has these letters");
    app.note_sample(Err("no daemon\nanswers".into()));
    assert_eq!(last(&mut app), "no daemon answers");
}

#[test]
fn help_covers_the_table() {
    let mut app = app();
    app.key(KeyCode::Char('h'));
    let lines = lines(&mut app, 160, 30);
    assert!(lines[3].starts_with(" v      VMs"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.starts_with("web")));
    for view in View::ALL {
        assert!(lines.iter().any(|line| line.starts_with(&format!(" {} ", view.key()))), "{view:?}");
    }
}

#[test]
fn before_the_first_answer_there_is_a_line() {
    let mut app = App::new();
    assert_eq!(lines(&mut app, 40, 3)[0], "vmlane: no answer yet");
}
