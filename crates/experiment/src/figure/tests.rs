//! Ticks, and what the SVG of small charts has in it.

use super::*;

#[test]
fn ticks_are_round_and_few() {
    for (reach, step) in
        [(1140.0, 200.0), (90.0, 20.0), (6.0, 1.0), (14.0, 2.5), (0.0, 1.0), (30000.0, 5000.0)]
    {
        assert_eq!(axis::tick(reach), step, "{reach}");
    }
    let labels = |axis: Axis| axis.ticks().into_iter().map(|(_, label)| label).collect::<Vec<_>>();
    assert_eq!(labels(Axis::new((1.0, 14.0), false, 0.0, 1.0, false)).last().unwrap(), "15.0");
    assert_eq!(labels(Axis::new((0.3, 20.0), true, 0.0, 1.0, false)), ["0.1", "1", "10", "100"]);
    assert_eq!(labels(Axis::new((2.0, 2.0), true, 0.0, 1.0, false)), ["1", "10"]);
    // Nothing positive: no powers of ten.
    assert_eq!(labels(Axis::new((0.0, 0.0), true, 0.0, 1.0, false)), ["0", "1"]);
}

fn chart(shape: Shape) -> Chart {
    let value = |median: f64| Spread::of([median * 0.9, median, median * 1.1]);
    let series = |label: &str, values: Vec<Option<Spread>>| Series { label: label.into(), values };
    let series =
        vec![series("x <y>", vec![value(100.0), value(200.0)]), series("z", vec![value(10.0), None])];
    Chart {
        id: "f".into(),
        title: "A & B".into(),
        shape,
        x_title: "message".into(),
        y_title: "Mbit/s".into(),
        groups: vec!["512".into(), "1k".into()],
        reach: reach(&series),
        series,
        log: false,
    }
}

#[test]
fn every_value_has_its_mark_and_its_error_bar_and_a_missing_one_its_cross() {
    for shape in [Shape::Bars, Shape::Lines, Shape::Ratio] {
        let svg = svg(&chart(shape));
        assert_eq!(svg.matches("class=\"mark\"").count(), 3, "{shape:?}");
        assert_eq!((svg.matches("class=\"rim\"").count(), svg.matches('×').count()), (3, 1), "{shape:?}");
        assert_eq!(svg.matches("<title>").count(), 3, "{shape:?}");
        assert!(svg.contains("A &amp; B") && svg.contains("x &lt;y&gt;") && !svg.contains("<y>"));
        assert!(svg.contains("class=\"x-title\">message<") && svg.contains("class=\"y-title\">Mbit/s<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn series_differ_without_hue() {
    let mut fills: Vec<String> = (0..8).map(|number| fill("f", number)).collect();
    let mut lines: Vec<String> = (0..8).map(|n| line_style(n) + &marker(n % 8, (0.0, 0.0), "", "")).collect();
    for list in [&mut fills, &mut lines] {
        list.sort();
        list.dedup();
        assert_eq!(list.len(), 8);
    }
}

#[test]
fn nothing_measured_is_still_a_chart_and_long_labels_wrap() {
    let mut empty = chart(Shape::Bars);
    empty.groups.clear();
    empty.series.clear();
    empty.reach = (0.0, 0.0);
    empty.log = true;
    assert!(!svg(&empty).contains("NaN"));
    assert_eq!(wrap("qemu-virtio-net", 7), ["qemu-", "virtio-", "net"]);
    assert_eq!(wrap("vmxnet3:profile=vmxnet2-class", 16), ["vmxnet3:profile=", "vmxnet2-class"]);
    assert_eq!(wrap("", 5), [""]);
}
