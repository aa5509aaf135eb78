//! Ticks, what the SVG of small charts has in it, and the rules that hold for every kept figure.

use super::axis::Axis;
use super::*;
use crate::summary::Spread;
use resvg::usvg;

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
            assert!(ticks[0] <= least && ticks[ticks.len() - 1] >= most, "{least} to {most}: {ticks:?}");
            assert!(!one || ticks.iter().any(|tick| (tick - 1.0).abs() < 1e-9), "{least}: {ticks:?}");
            // The values take up most of the axis.
            let (low, high) = if one { (least.min(1.0), most.max(1.0)) } else { (least, most) };
            let used = axis.y(low) - axis.y(high);
            assert!(low * 1.3 > high || used > 40.0, "{least} to {most} use {used} of 100: {ticks:?}");
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
        shape,
        x_title: "message".into(),
        y_title: "Mbit/s".into(),
        unit: "Mbit/s".into(),
        groups: vec!["512 B".into(), "1 KiB".into()],
        reach: reach(&series),
        series,
        log: false,
        foot: vec!["Machine: a <b>.".into(), "3 runs.".into()],
    }
}

fn alone(chart: &Chart) -> String {
    svg(chart, &Frame::of(std::slice::from_ref(chart)))
}

#[test]
fn every_value_has_its_mark_its_interval_and_its_runs_and_a_missing_one_says_why() {
    for shape in [Shape::Bars, Shape::Lines, Shape::Ratio] {
        let svg = alone(&chart(shape));
        assert_eq!(svg.matches("class=\"mark ").count(), 3, "{shape:?}");
        assert_eq!(
            (svg.matches("class=\"rim\"").count(), svg.matches(">hangs<").count()),
            (3, 1),
            "{shape:?}"
        );
        assert_eq!(svg.matches("class=\"run ").count(), 9, "{shape:?}");
        assert_eq!(svg.matches("<title>").count(), 3, "{shape:?}");
        assert!(svg.contains("A &amp; B") && svg.contains("x &lt;y&gt;") && !svg.contains("<y>"));
        assert!(svg.contains("class=\"x-title\">message<") && svg.contains("class=\"y-title\">Mbit/s<"));
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
fn many_runs_are_not_drawn_one_by_one() {
    let mut chart = chart(Shape::Lines);
    chart.series[0].values[0] = point(&[5.0; FEW_RUNS + 1]);
    assert_eq!(alone(&chart).matches("class=\"run ").count(), 6);
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
    ];
    let style = |device: &&str| Style { hue: hue(device), shape: hue(device), variant: 0 };
    let mut markers: Vec<String> = devices.iter().map(|d| style(d).marker((0.0, 0.0), "", "")).collect();
    // Without what says the colour.
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
    for list in [&mut markers, &mut fills, &mut lines] {
        list.sort();
        list.dedup();
        assert_eq!(list.len(), 8, "{list:?}");
    }
    // A device has its colour whatever its options are.
    assert_eq!(hue("vmxnet3:profile=vmxnet3"), hue("vmxnet3"));
    assert_eq!(hue("qemu-virtio-net:tap"), hue("qemu-virtio-net"));
    assert!(
        ![NO_DEVICE, hue("virtio-net"), hue("virtio-vsock"), hue("vmxnet3")].contains(&hue("uml-vector"))
    );
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

#[test]
fn labels_at_the_ends_of_lines_keep_apart_and_inside() {
    let mut places = [0.0, 1.0, 2.0, 90.0, 99.0, 99.5];
    legend::spread_out(&mut places, 5.0, 100.0);
    assert!(places.windows(2).all(|two| two[1] - two[0] >= 15.999), "{places:?}");
    assert!(places[0] >= 5.0 && places[5] <= 100.0, "{places:?}");
}

/// Where the words of a picture are, by the font that draws them.
fn words(svg: &str) -> (usvg::Size, Vec<(String, usvg::Rect)>) {
    fn collect(group: &usvg::Group, into: &mut Vec<(String, usvg::Rect)>) {
        for node in group.children() {
            match node {
                usvg::Node::Group(group) => collect(group, into),
                usvg::Node::Text(text) => {
                    let words: String = text.chunks().iter().map(usvg::TextChunk::text).collect();
                    into.push((words, text.abs_bounding_box()));
                }
                _ => {}
            }
        }
    }
    let tree = crate::png::tree(svg).unwrap();
    let mut all = Vec::new();
    collect(tree.root(), &mut all);
    (tree.size(), all)
}

/// Whether two texts touch: the boxes have the height of the font, letters are less high.
fn touch(a: &usvg::Rect, b: &usvg::Rect) -> bool {
    let low = |r: &usvg::Rect| (r.left() + 0.5, r.right() - 0.5, r.top() + 3.0, r.bottom() - 3.0);
    let ((al, ar, at, ab), (bl, br, bt, bb)) = (low(a), low(b));
    al < br && bl < ar && at < bb && bt < ab
}

fn check(name: &str, svg: &str) {
    assert!(svg.contains("class=\"foot\">Machine: "), "{name} does not say where it was measured");
    assert!(svg.contains("whisker: "), "{name} does not say what its whiskers are");
    for bad in ["NaN", "×", "maerts", "stream<"] {
        assert!(!svg.contains(bad), "{name} has {bad:?}");
    }
    let (size, words) = words(svg);
    assert!(words.len() > 8, "{name}: {words:?}");
    for (at, (text, place)) in words.iter().enumerate() {
        let inside = place.left() >= 0.0
            && place.top() >= 0.0
            && place.right() <= size.width()
            && place.bottom() <= size.height() + 2.0;
        assert!(inside, "{name}: {text:?} is outside the picture: {place:?} of {size:?}");
        for (other, there) in &words[at + 1..] {
            assert!(!touch(place, there), "{name}: {text:?} {place:?} touches {other:?} {there:?}");
        }
    }
}

#[test]
fn no_kept_figure_has_words_that_touch_or_leave_it_or_bars_without_zero() {
    if !crate::png::has_fonts() {
        return;
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let (mut count, mut colours) = (0, std::collections::BTreeMap::new());
    for entry in
        std::fs::read_dir(root).unwrap().flatten().filter(|e| e.path().join(crate::rows::FILE).exists())
    {
        for (name, chart, svg) in crate::report::all(&entry.path()).unwrap() {
            let file = entry.path().join(crate::report::FIGURES).join(format!("{name}.svg"));
            let name = format!("{} {name}", entry.path().display());
            let current = std::fs::read_to_string(&file).is_ok_and(|kept| kept == crate::report::alone(&svg));
            assert!(current, "{} is not current: vmlane lab draw {}", file.display(), entry.path().display());
            check(&name, &svg);
            let linear = chart.axis((0.0, 1.0)).is_linear();
            let bars = svg.lines().any(|line| line.starts_with("<rect x=") && line.contains("mark "));
            assert!(!bars || (linear && svg.contains("class=\"tick\">0")), "{name}");
            assert_eq!(chart.shape == Shape::Ratio, svg.contains("class=\"one\""), "{name}");
            for series in &chart.series {
                for (group, style) in chart.groups.iter().zip(&series.styles) {
                    assert!(hue(group) == NO_DEVICE || hue(group) == style.hue, "{name}: {group}");
                }
                let device = series.label.split(", ").next().unwrap().to_owned();
                if hue(&device) != NO_DEVICE {
                    let colour = *colours.entry(device.clone()).or_insert(series.style.hue);
                    assert_eq!(colour, series.style.hue, "{name}: {device}");
                }
            }
            count += 1;
        }
    }
    assert!(count >= 29, "{count} figures");
}

#[test]
fn the_check_of_kept_figures_finds_what_it_looks_for() {
    if !crate::png::has_fonts() {
        return;
    }
    let mut crowded = chart(Shape::Bars);
    crowded.foot = vec!["Machine: m. whisker: w.".into()];
    let svg = alone(&crowded);
    check("sound", &svg);
    let broken = |from: &str, to: &str| {
        let svg = svg.replacen(from, to, 1);
        std::panic::catch_unwind(|| check("broken", &svg)).is_err()
    };
    assert!(broken("class=\"foot\"", ""));
    assert!(broken("</svg>", "<text x=\"715\" y=\"50\">far out</text></svg>"));
    assert!(broken("</svg>", "<text x=\"4\" y=\"20\">over the title</text></svg>"));
}
