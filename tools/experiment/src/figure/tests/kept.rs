//! The rules that hold for every figure and report of the rows in `experiments/`, and for the pictures kept
//! there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use resvg::usvg;

use super::{alone, chart};
use crate::figure::{Chart, NO_DEVICE, Shape, Value, hue};
use crate::report::readme;
use crate::summary::Spread;

/// Fonts by preference, the best first; of each family the plain and the bold face.
const FACES: [&str; 6] = [
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "LiberationSans-Regular.ttf",
    "LiberationSans-Bold.ttf",
    "NotoSans-Regular.ttf",
    "NotoSans-Bold.ttf",
];

/// The host's fonts. Without one a picture has no words.
static FONTS: LazyLock<Arc<usvg::fontdb::Database>> = LazyLock::new(|| {
    let mut files = Vec::new();
    find(Path::new("/usr/share/fonts"), 0, &mut files);
    let named = |name: &str| files.iter().find(|path| path.file_name().is_some_and(|file| file == name));
    let mut wanted: Vec<&PathBuf> = FACES.iter().filter_map(|name| named(name)).take(2).collect();
    if wanted.is_empty() {
        wanted.extend(files.first());
    }
    let mut fonts = usvg::fontdb::Database::new();
    for bytes in wanted.into_iter().filter_map(|path| std::fs::read(path).ok()) {
        fonts.load_font_data(bytes);
    }
    let family = fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
    if let Some(family) = family {
        fonts.set_sans_serif_family(family);
    }
    Arc::new(fonts)
});

/// The font files below a directory, in a fixed order.
fn find(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() && depth < 4 {
            find(&path, depth + 1, files);
        } else if path.extension().is_some_and(|end| end == "ttf" || end == "otf") {
            files.push(path);
        }
    }
}

/// The picture as shapes, ink black as on white.
fn tree(svg: &str) -> usvg::Tree {
    let options =
        usvg::Options { fontdb: FONTS.clone(), font_family: "sans-serif".into(), ..usvg::Options::default() };
    usvg::Tree::from_str(&svg.replace("currentColor", "#1b1f24"), &options).unwrap()
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
    let tree = tree(svg);
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

/// One of these is in every picture.
const DEVICES: [&str; 5] = ["vmci", "vmxnet", "virtio-", "qemu-", "vhost-device-vsock"];

/// The value of an attribute.
fn attribute<'s>(line: &'s str, name: &str) -> &'s str {
    let from = line.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("no {name} in {line}")).1;
    from.split('"').next().unwrap()
}

/// A legend's line shows its dashes twice over, and no two series of a chart look alike.
fn check_styles(name: &str, chart: &Chart, svg: &str) {
    let drawn_styles: Vec<String> = (chart.series.iter())
        .map(|series| {
            let dashes = if chart.shape == Shape::Lines { series.style.variant } else { 0 };
            let mark = series.style.marker((0.0, 0.0), "", "");
            format!("{mark} {dashes} {} {}", series.style.hue, series.style.variant % 3)
        })
        .collect();
    for (at, drawn_style) in drawn_styles.iter().enumerate() {
        assert!(!drawn_styles[..at].contains(drawn_style), "{name}: two series look alike");
    }
    for line in svg.lines().filter(|line| line.contains("class=\"key ")) {
        let long: f64 = attribute(line, "d").rsplit('h').next().unwrap().parse().unwrap();
        let dashes = line.contains("stroke-dasharray").then(|| attribute(line, "stroke-dasharray"));
        let period: f64 = dashes.unwrap_or("0").split(' ').map(|part| part.parse::<f64>().unwrap()).sum();
        assert!(long >= 1.9 * period, "{name}: a key of {long} does not show dashes of {period}");
    }
}

/// A logarithmic axis is marked, is little longer than its values, and has ticks on both sides of all of
/// them.
fn check_axis(name: &str, chart: &Chart, svg: &str) {
    let axis = chart.axis((0.0, 100.0));
    assert_eq!(!axis.is_linear(), svg.contains(", logarithmic scale<"), "{name}");
    if axis.is_linear() {
        return;
    }
    let one = chart.shape == Shape::Ratio;
    let (least, most) = chart.reach;
    let (least, most) = if one { (least.min(1.0), most.max(1.0)) } else { (least, most) };
    let free = 100.0 - (axis.y(least) - axis.y(most));
    assert!(most < least * 1.2 || free < 20.0, "{name}: the axis is too long: {free}");
    let ticks = axis.ticks();
    assert!(ticks[0].0 < least * 1.000_1 && ticks[ticks.len() - 1].0 > most * 0.999_9, "{name}: {ticks:?}");
    assert!(axis.ticks().len() >= 4, "{name}: {:?}", axis.ticks());
    let y_title = svg.lines().find(|line| line.contains("class=\"y-title\"")).unwrap();
    assert_eq!(one, y_title.contains(" / "), "{name}: {y_title}");
}

/// A mark is the middle of its runs and its whisker reaches as far as they do; a ratio that was not taken run
/// by run is marked.
fn check_middles(name: &str, chart: &Chart) {
    let apart = chart.foot.join(" ").contains("mark: ratio of the ");
    for point in chart.series.iter().flat_map(|series| &series.values).filter_map(Value::point) {
        let spread = point.spread;
        assert!(spread.min <= spread.median && spread.median <= spread.max, "{name}: {spread:?}");
        match Spread::of(point.runs.iter().copied()) {
            // Units were divided by before and after.
            Some(runs) => {
                let of = |s: Spread| [s.min, s.median, s.max];
                let differ = of(runs).into_iter().zip(of(spread)).any(|(a, b)| (a / b - 1.0).abs() > 1e-9);
                assert!(!differ && runs.runs == spread.runs, "{name}: {spread:?} of {:?}", point.runs);
            }
            None => assert!(apart && chart.shape == Shape::Ratio, "{name}: no runs, and no reason"),
        }
    }
}

/// The way of the bytes below a title is the one in the title.
fn check_way(name: &str, chart: &Chart) {
    let receives = chart.title.ends_with(": receiving") || chart.given.contains("receiving");
    assert!(!(receives && chart.given.contains("VM to host")), "{name}: {} {}", chart.title, chart.given);
    let sends = chart.title.ends_with(": sending") || chart.given.contains("sending");
    assert!(!(sends && chart.given.contains("host to VM")), "{name}: {} {}", chart.title, chart.given);
    let both =
        ["sending", "receiving"].iter().all(|test| chart.series.iter().any(|s| s.label.contains(test)));
    assert!(!both || !chart.given.contains("VM to host"), "{name}: {}", chart.given);
}

fn check(name: &str, svg: &str) {
    assert!(svg.contains("class=\"foot\">Machine: "), "{name} does not show where it was measured");
    assert!(svg.contains("whisker:"), "{name} does not explain its whiskers");
    for bad in ["NaN", "×", "maerts", "stream<", "native<", "tso=", ", native"] {
        assert!(!svg.contains(bad), "{name} has {bad:?}");
    }
    assert!(svg.contains("class=\"given\""), "{name} does not name what all its marks have in common");
    assert!(DEVICES.iter().any(|device| svg.contains(device)), "{name} names no device");
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

/// A report has the figures' words, a caption for every figure, and quotes a paper only where one is named;
/// the tables and pictures of the README are current.
fn check_page(dir: &std::path::Path, drawn: &[(String, Chart, String)]) {
    let name = dir.display();
    let page = crate::report::page_of(dir).unwrap();
    let text = std::fs::read_to_string(dir.join(readme::FILE)).unwrap();
    let with_tables = readme::with_tables(&text, drawn).unwrap();
    assert!(with_tables == text, "{name}: tables of the README are not current: vmlane lab draw {name}");
    let was_quiet = !page.contains("need a quieter host");
    assert!(was_quiet || !text.contains("quiet"), "{name}: the README calls quiet what the report does not");
    let pictures: Vec<&str> =
        text.split("](figures/").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    assert!(!pictures.is_empty(), "{name}: the README shows no picture");
    for file in pictures {
        let (_, _, svg) = drawn.iter().find(|(name, ..)| file == format!("{name}.svg")).expect(file);
        let kept = std::fs::read_to_string(dir.join(crate::report::FIGURES).join(file));
        let current = kept.is_ok_and(|kept| kept == crate::report::alone(svg));
        assert!(current, "{name}: {file} is not current: vmlane lab draw {name}");
    }
    let has_ratios = page.contains("class=\"grid one\"");
    assert_eq!(has_ratios, page.contains("A <b>ratio</b> is taken run by run"), "{name}");
    // Combinations without rows are listed in the words of the plan.
    let measured = page.split("<h2>Rows that are missing</h2>").next().unwrap();
    for bad in [
        "maerts",
        ">stream<",
        ">rr<",
        ">crr<",
        "NaN",
        "<figcaption> ",
        "<figcaption></",
        "Marks also differ",
        "take several",
    ] {
        assert!(!measured.contains(bad), "{name} has {bad:?}");
    }
    assert!(
        !page.contains("What was published") || page.contains("class=\"lead\">After: "),
        "{name} names no paper"
    );
    let claims = page.split("<table class=\"claims\">").nth(1).and_then(|rest| rest.split("</table>").next());
    for cell in claims.into_iter().flat_map(|table| table.split("<tr>").skip(2)) {
        let here = cell.split("<td>").nth(2).unwrap().split('<').next().unwrap();
        assert!(!here.contains(" times") || here.contains(" / "), "{name}: {here:?} does not name of what");
    }
}

#[test]
fn no_kept_figure_has_words_that_touch_or_leave_it_or_bars_without_zero() {
    if FONTS.is_empty() {
        return;
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let (mut count, mut colours) = (0, std::collections::BTreeMap::new());
    for entry in
        std::fs::read_dir(root).unwrap().flatten().filter(|e| e.path().join(crate::rows::FILE).exists())
    {
        let drawn = crate::report::all(&entry.path()).unwrap();
        check_page(&entry.path(), &drawn);
        for (name, chart, svg) in drawn {
            let name = format!("{} {name}", entry.path().display());
            check(&name, &svg);
            let linear = chart.axis((0.0, 1.0)).is_linear();
            let bars = svg.lines().any(|line| line.starts_with("<rect x=") && line.contains("mark "));
            assert!(!bars || (linear && svg.contains("class=\"tick\">0")), "{name}");
            assert_eq!(chart.shape == Shape::Ratio, svg.contains("class=\"grid one\""), "{name}");
            check_styles(&name, &chart, &svg);
            check_axis(&name, &chart, &svg);
            check_middles(&name, &chart);
            check_way(&name, &chart);
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
fn the_check_of_kept_figures_finds_what_it_is_for() {
    if FONTS.is_empty() {
        return;
    }
    let mut crowded = chart(Shape::Bars);
    crowded.given = "vmci, sending".into();
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
    let sound = |chart: &Chart| std::panic::catch_unwind(|| check_middles("middles", chart)).is_ok();
    assert!(sound(&crowded));
    let mut moved = crowded.clone();
    if let Value::Point(point) = &mut moved.series[0].values[0] {
        point.spread.median *= 1.05;
    }
    assert!(!sound(&moved), "a mark is not the middle of its runs");
    let way = |given: &str| {
        let chart = Chart { title: "T: receiving".into(), given: given.into(), ..crowded.clone() };
        std::panic::catch_unwind(|| check_way("way", &chart)).is_ok()
    };
    assert!(way("vmxnet3, host to VM") && !way("vmxnet3, VM to host"));
}
