//! Ticks, and what the SVG of small figures has in it.

use super::*;

#[test]
fn ticks_are_round_and_few() {
    for (reach, step) in
        [(1140.0, 200.0), (90.0, 20.0), (6.0, 1.0), (14.0, 2.5), (0.0, 1.0), (30000.0, 5000.0)]
    {
        assert_eq!(tick(reach), step, "{reach}");
    }
    assert_eq!((tick_label(2.5, 2.5), tick_label(400.0, 200.0)), ("2.50".into(), "400".into()));
}

fn figure() -> Grouped {
    let bar = |median: f64| Spread::of([median * 0.9, median, median * 1.1]);
    let series = |side, shade, bars: Vec<Option<Spread>>| Series { label: "x <y>".into(), side, shade, bars };
    Grouped {
        id: "f".into(),
        title: "A & B".into(),
        x_title: "message".into(),
        y_title: "Mbit/s".into(),
        groups: vec!["512".into(), "1k".into()],
        series: vec![
            series(Side::Ours, 0, vec![bar(100.0), bar(200.0)]),
            series(Side::Theirs, 0, vec![bar(10.0), None]),
        ],
        reach: 220.0,
    }
}

#[test]
fn every_bar_has_its_error_bar_and_a_missing_one_its_cross() {
    let svg = grouped(&figure());
    assert_eq!(svg.matches("<title>").count(), 3);
    assert_eq!((svg.matches("class=\"rim\"").count(), svg.matches('×').count()), (3, 1));
    assert!(svg.contains("A &amp; B") && svg.contains("x &lt;y&gt;") && !svg.contains("<y>"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn nothing_measured_is_still_a_figure() {
    let mut empty = figure();
    empty.groups.clear();
    empty.series.clear();
    empty.reach = 0.0;
    assert!(!grouped(&empty).contains("NaN"));
    let bars = [Lying { label: "a".into(), side: Side::Theirs, bar: None }];
    assert!(lying("r", "t", "1/s", &bars).contains("failed"));
}
