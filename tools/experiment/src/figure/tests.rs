//! Ticks, and what the SVG of small charts has in it. `kept.rs` has the rules that hold for every kept
//! figure.

mod kept;

use super::axis::Axis;
use super::*;
use crate::summary::Spread;

#[test]
fn ticks_are_round_and_few() {
    for (reach, step) in
        [(1140.0, 200.0), (90.0, 20.0), (6.0, 1.0), (14.0, 2.5), (0.0, 1.0), (30000.0, 5000.0)]
    {
        assert_eq!(axis::tick(reach), step, "{reach}");
    }
    let labels = |axis: Axis| axis.ticks().into_iter().map(|(_, label)| label).collect::<Vec<_>>();
    assert_eq!(labels(Axis::new((1.0, 14.0), false, 0.0, 1.0, false)).last().unwrap(), "15.0");
    // Nothing positive: no powers of ten.
    assert_eq!(labels(Axis::new((0.0, 0.0), true, 0.0, 1.0, false)), ["0", "1"]);
}

#[test]
fn a_logarithmic_axis_has_ticks_where_the_values_are() {
    for (least, most) in
        [(0.3, 20.0), (0.59, 3.7), (0.97, 1.04), (2.0, 2.0), (83.0, 2900.0), (1e-3, 1e9), (0.7, 0.72)]
    {
        for one in [false, true] {
            let axis = Axis::new((least, most), true, 0.0, 100.0, one);
            let ticks: Vec<f64> = axis.ticks().into_iter().map(|(value, _)| value).collect();
            assert!((3..=16).contains(&ticks.len()), "{least} to {most}: {ticks:?}");
            let (low, high) = if one { (least.min(1.0), most.max(1.0)) } else { (least, most) };
            // It ends on ticks beyond both ends, and what is free there is little.
            let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
            assert!(first < low * 1.000_1 && last > high * 0.999_9, "{least} to {most}: {ticks:?}");
            assert_eq!((axis.y(last), axis.y(first)), (0.0, 100.0));
            let (top, bottom) = (axis.y(high), 100.0 - axis.y(low));
            assert!(high < low * 1.2 || top + bottom < 20.0, "{least} to {most}: {ticks:?}");
            assert!(ticks.windows(2).all(|two| axis.y(two[0]) - axis.y(two[1]) > 6.0), "{ticks:?}");
            assert!(!one || ticks.iter().any(|tick| (tick - 1.0).abs() < 1e-9), "{least}: {ticks:?}");
        }
    }
}

fn point(runs: &[f64]) -> Value {
    Value::Point(Point { spread: Spread::of(runs.iter().copied()).unwrap(), runs: runs.to_vec() })
}

fn chart(shape: Shape) -> Chart {
    let value = |median: f64| point(&[median * 0.9, median, median * 1.1]);
    let series = |label: &str, style: Style, values: Vec<Value>| Series {
        label: label.into(),
        style,
        styles: Vec::new(),
        values,
    };
    let series = vec![
        series("x <y>", Style::default(), vec![value(100.0), value(200.0)]),
        series(
            "z",
            Style { hue: 1, shape: 1, variant: 0 },
            vec![value(10.0), Value::Missing("hangs".into())],
        ),
    ];
    Chart {
        id: "f".into(),
        title: "A & B".into(),
        given: "x and z, sending".into(),
        shape,
        x_title: "message".into(),
        y_title: "Mbit/s".into(),
        unit: "Mbit/s".into(),
        groups: vec!["512 B".into(), "1 KiB".into()],
        reach: reach(&series),
        series,
        published: Vec::new(),
        log: false,
        foot: vec!["Machine: a <b>.".into(), "3 runs.".into()],
    }
}

fn alone(chart: &Chart) -> String {
    svg(chart, &Frame::of(std::slice::from_ref(chart)))
}

#[test]
fn every_value_has_its_mark_and_its_interval_and_a_missing_one_its_reason() {
    for shape in [Shape::Bars, Shape::Lines, Shape::Ratio] {
        let svg = alone(&chart(shape));
        assert_eq!(svg.matches("class=\"mark ").count(), 3, "{shape:?}");
        assert_eq!(
            (svg.matches("class=\"rim\"").count(), svg.matches(">hangs<").count()),
            (3, 1),
            "{shape:?}"
        );
        assert_eq!(svg.matches("<title>").count(), 3, "{shape:?}");
        assert!(svg.contains("A &amp; B") && svg.contains("x &lt;y&gt;") && !svg.contains("<y>"));
        assert!(svg.contains("class=\"x-title\">message<") && svg.contains("class=\"y-title\">Mbit/s"));
        assert!(svg.contains("class=\"foot\">Machine: a &lt;b&gt;. 3 runs.<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn bars_stand_on_zero_and_nowhere_else() {
    let mut chart = chart(Shape::Bars);
    let bars =
        |svg: &str| svg.lines().filter(|line| line.starts_with("<rect x=") && line.contains("mark ")).count();
    assert_eq!(bars(&alone(&chart)), 3);
    assert!(alone(&chart).contains("class=\"tick\">0<"));
    chart.log = true;
    assert_eq!(bars(&alone(&chart)), 0);
    assert_eq!(bars(&alone(&Chart { shape: Shape::Ratio, log: false, ..chart })), 0);
}

#[test]
fn devices_differ_without_hue() {
    let devices = [
        "vmci",
        "vmxnet3",
        "virtio-net",
        "virtio-vsock",
        "qemu-virtio-net",
        "qemu-vmxnet3",
        "qemu-e1000",
        "vhost-device-vsock",
        "vmxnet3:profile=vmxnet2-class",
    ];
    let style = |device: &&str| Style { hue: hue(device), shape: hue(device), variant: 0 };
    let mut markers: Vec<String> = devices.iter().map(|d| style(d).marker((0.0, 0.0), "", "")).collect();
    // Without the part that has the colour.
    for marker in &mut markers {
        *marker = marker.split_once(" d=\"").unwrap().1.split('"').next().unwrap().to_owned();
    }
    let mut fills: Vec<String> = devices
        .iter()
        .map(|device| {
            let mut svg = String::new();
            style(device).pattern(&mut svg, "f");
            svg.rsplit_once("<path d=\"")
                .map_or(String::new(), |(_, path)| path.split('"').next().unwrap().into())
        })
        .collect();
    let mut lines: Vec<String> = (0..8).map(|variant| Style { variant, ..Style::default() }.line()).collect();
    for (list, count) in [(&mut markers, 9), (&mut fills, 9), (&mut lines, 8)] {
        list.sort();
        list.dedup();
        assert_eq!(list.len(), count, "{list:?}");
    }
    // A device has its colour whatever its options are.
    assert_eq!(hue("vmxnet3:profile=vmxnet3"), hue("vmxnet3"));
    assert_eq!(hue("qemu-virtio-net:tap"), hue("qemu-virtio-net"));
    assert!(
        ![NO_DEVICE, hue("virtio-net"), hue("virtio-vsock"), hue("vmxnet3")].contains(&hue("uml-vector"))
    );
}

#[test]
fn series_of_one_device_differ_by_more_than_a_shade() {
    for hue in [0, 1] {
        let style = |variant: usize| Style { hue, shape: hue, variant };
        let mut marks: Vec<String> = (0..4).map(|v| style(v).marker((0.0, 0.0), "", "")).collect();
        let mut bars: Vec<String> = (0..3)
            .map(|variant| {
                let mut svg = String::new();
                style(variant).pattern(&mut svg, "f");
                // What is left when all tints and outlines look alike.
                let path = svg.split_once("<path").map_or("", |(_, path)| path).to_owned();
                path + svg.split_once("scale(").map_or("", |(_, scale)| &scale[..3])
            })
            .collect();
        for (list, count) in [(&mut marks, 4), (&mut bars, 3)] {
            list.sort();
            list.dedup();
            assert_eq!(list.len(), count, "{list:?}");
        }
    }
}

#[test]
fn every_colour_is_seen_on_its_page() {
    let luminance = |colour: &str| {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.039_28 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    };
    let contrast = |a: &str, b: &str| {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    };
    for (light, dark) in style::COLOURS {
        assert!(contrast(light, "#ffffff") >= 3.0, "{light} on white: {}", contrast(light, "#ffffff"));
        assert!(contrast(dark, "#15181c") >= 3.0, "{dark} on dark: {}", contrast(dark, "#15181c"));
    }
}

#[test]
fn a_scale_that_is_not_even_is_named_and_a_ratios_never_is_even() {
    let names_scale = |chart: &Chart| alone(chart).contains(", logarithmic scale<");
    assert!(
        names_scale(&chart(Shape::Ratio))
            && !names_scale(&chart(Shape::Bars))
            && !names_scale(&chart(Shape::Lines))
    );
    assert!(names_scale(&Chart { log: true, ..chart(Shape::Lines) }));
}

/// Values of a paper: one on the scale of all marks, one of a single mark, one that is far above.
#[test]
fn published_values_are_lines_where_the_scale_reaches_them_and_words_everywhere() {
    let one = |value: f64, text: &str, places: Option<Vec<(usize, usize)>>| Published {
        text: text.into(),
        amount: value.to_string(),
        unit: "Mbit/s",
        value,
        places,
    };
    for shape in [Shape::Bars, Shape::Lines, Shape::Ratio] {
        let mut chart = chart(shape);
        chart.published = vec![
            one(300.0, "the paper:", None),
            one(50.0, "the paper:", Some(vec![(1, 0)])),
            one(9000.0, "the paper: up to", None),
            one(8000.0, "the paper:", None),
        ];
        chart.reach = widened(chart.reach, shape == Shape::Ratio, &chart.published);
        assert_eq!(chart.reach.1, 300.0, "{shape:?}: the scale ends at the one that is near");
        let svg = alone(&chart);
        assert_eq!(svg.matches("class=\"published-line\"").count(), 2, "{shape:?}");
        assert_eq!(svg.matches("class=\"published-key\"").count(), 1, "{shape:?}");
        assert!(svg.contains(">the paper: 300, 50, 8000 (above this scale) Mbit/s<"), "{svg}");
        assert!(svg.contains(">the paper: up to 9000 Mbit/s (above this scale)<"), "{svg}");
        let wide =
            |svg: &str| svg.matches(&format!("H{:.1}\" stroke=\"currentColor\"", WIDTH - RIGHT)).count();
        assert!(wide(&svg) >= 1, "{shape:?}: the one of the whole chart crosses it");
    }
    let far_below = [one(0.1, "the paper:", None)];
    assert_eq!(widened((10.0, 20.0), true, &far_below), (10.0, 20.0));
    assert_eq!(widened((10.0, 20.0), false, &far_below), (0.1, 20.0), "zero is on every such scale");
}

#[test]
fn rows_of_a_legend_have_as_many_entries_each() {
    let mut chart = chart(Shape::Bars);
    let labels = [
        "vmci, 64 KiB buffers",
        "vmci, 256 KiB buffers",
        "vmxnet3, 64 KiB buffers",
        "vmxnet3, 256 KiB buffers",
    ];
    chart.series = labels.map(|label| Series { label: label.into(), ..chart.series[0].clone() }).into();
    let rows: Vec<usize> = legend::places(&chart).into_iter().map(|(row, _)| row).collect();
    assert_eq!(rows, [0, 0, 1, 1]);
}

#[test]
fn nothing_measured_is_still_a_chart_and_long_labels_wrap() {
    let mut empty = chart(Shape::Bars);
    empty.groups.clear();
    empty.series.clear();
    empty.reach = (0.0, 0.0);
    empty.log = true;
    assert!(!alone(&empty).contains("NaN"));
    assert_eq!(wrap("qemu-virtio-net", TEXT, 50.0), ["qemu-", "virtio-", "net"]);
    assert_eq!(wrap("vmxnet3:profile=vmxnet2-class", TEXT, 120.0), ["vmxnet3:profile=", "vmxnet2-class"]);
    assert_eq!(wrap("", TEXT, 5.0), [""]);
}
