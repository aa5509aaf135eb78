//! The rules that hold for every kept figure and report.

use resvg::usvg;

use super::{alone, chart};
use crate::figure::slots::LEAST_ASIDE;
use crate::figure::{Chart, NO_DEVICE, Shape, hue};

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

/// One of these is in every picture.
const DEVICES: [&str; 5] = ["vmci", "vmxnet", "virtio-", "qemu-", "vhost-device-vsock"];

/// The value of an attribute.
fn attribute<'s>(line: &'s str, name: &str) -> &'s str {
    let from = line.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("no {name} in {line}")).1;
    from.split('"').next().unwrap()
}

fn number_of(line: &str, name: &str) -> f64 {
    attribute(line, name).parse().unwrap()
}

/// The first and the last point of a path of straight lines.
fn ends(line: &str) -> (String, String) {
    let path = attribute(line, "d");
    let last = path.rfind(['M', 'L']).unwrap();
    (path[1..].split(['L', 'M']).next().unwrap().to_owned(), path[last + 1..].to_owned())
}

/// Single runs do not lie on a whisker: a filled mark would hide them.
pub fn check_runs(name: &str, svg: &str) {
    let whiskers: Vec<f64> = svg
        .lines()
        .filter(|line| line.starts_with("<path class=\"rim\""))
        .map(|line| {
            attribute(line, "d").split('M').nth(2).unwrap().split(' ').next().unwrap().parse().unwrap()
        })
        .collect();
    for line in svg.lines().filter(|line| line.starts_with("<circle class=\"run ")) {
        let x = number_of(line, "cx");
        let near =
            whiskers.iter().filter(|whisker| **whisker <= x).fold(f64::MAX, |least, w| least.min(x - w));
        assert!(near >= LEAST_ASIDE - 0.11, "{name}: a run at {x} lies on a whisker, {near} beside it");
    }
}

/// The line to a name starts where the line of its series ends.
pub fn check_leaders(name: &str, svg: &str) {
    let of = |class: &str| -> Vec<(String, String, String)> {
        let lines = svg.lines().filter(|line| line.contains(&format!("class=\"{class} ")));
        lines
            .map(|line| {
                let (from, to) = ends(line);
                (attribute(line, "class").rsplit(' ').next().unwrap().to_owned(), from, to)
            })
            .collect()
    };
    let lines = of("line");
    for (colour, from, _) in of("leader") {
        let own = lines.iter().any(|(other, _, end)| *other == colour && *end == from);
        assert!(
            own,
            "{name}: a leader of {colour} starts at {from}, where none of its lines ends: {lines:?}"
        );
    }
}

/// Numbers have a halo, are off the grid, and each is nearer to its own median than to a whisker's end.
pub fn check_numbers(name: &str, chart: &Chart, svg: &str) {
    let grid: Vec<f64> = svg
        .lines()
        .filter(|line| line.starts_with("<path class=\"grid"))
        .map(|line| attribute(line, "d").split([' ', 'H']).nth(1).unwrap().parse().unwrap())
        .collect();
    assert!(!grid.is_empty(), "{name}");
    for line in svg.lines().filter(|line| line.contains("font-size=\"11.5\"") && !line.contains("missing")) {
        assert!(line.contains("class=\"number halo\"") && line.contains("paint-order=\"stroke\""), "{line}");
        let base = number_of(line, "y");
        let struck = grid.iter().find(|y| (base - 10.6..=base + 2.0).contains(*y));
        assert_eq!(struck, None, "{name}: the grid strikes {line}");
        if !chart.has_bars(&chart.axis((0.0, 1.0))) {
            let words = line.split('>').nth(1).unwrap().split('<').next().unwrap();
            let medians = marks(svg).into_iter().filter(|(_, tip)| tip.contains(&format!(": {words} ")));
            let away = medians.map(|(y, _)| (base - 4.3 - y).abs()).fold(f64::MAX, f64::min);
            assert!(away <= 15.5, "{name}: {words} stands {away} from its median");
        }
    }
}

/// Where marks are, with what a pointer is told there.
fn marks(svg: &str) -> Vec<(f64, String)> {
    let lines = svg.lines().filter(|line| line.starts_with("<path class=\"mark "));
    lines
        .map(|line| {
            let path = attribute(line, "d");
            let tree = usvg::Tree::from_str(
                &format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"999\" height=\"999\"><path d=\"{path}\"/></svg>"),
                &usvg::Options::default(),
            );
            let place = tree.unwrap().root().abs_bounding_box();
            let tip = line.split("<title>").nth(1).unwrap().split('<').next().unwrap();
            (f64::from(place.top() + place.bottom()) / 2.0, tip.to_owned())
        })
        .collect()
}

/// A legend's line shows its dashes twice over, and no two series of a chart look alike.
fn check_looks(name: &str, chart: &Chart, svg: &str) {
    let looks: Vec<String> = (chart.series.iter())
        .map(|series| {
            let dashes = if chart.shape == Shape::Lines { series.style.variant } else { 0 };
            let mark = series.style.marker((0.0, 0.0), "", "");
            format!("{mark} {dashes} {} {}", series.style.hue, series.style.variant % 3)
        })
        .collect();
    for (at, look) in looks.iter().enumerate() {
        assert!(!looks[..at].contains(look), "{name}: two series look alike");
    }
    for line in svg.lines().filter(|line| line.contains("class=\"key ")) {
        let long: f64 = attribute(line, "d").rsplit('h').next().unwrap().parse().unwrap();
        let dashes = line.contains("stroke-dasharray").then(|| attribute(line, "stroke-dasharray"));
        let period: f64 = dashes.unwrap_or("0").split(' ').map(|part| part.parse::<f64>().unwrap()).sum();
        assert!(long >= 1.9 * period, "{name}: a key of {long} does not show dashes of {period}");
    }
}

/// A logarithmic axis says so, is no longer than its values, and has ticks in between.
fn check_axis(name: &str, chart: &Chart, svg: &str) {
    let axis = chart.axis((0.0, 100.0));
    assert_eq!(!axis.is_linear(), svg.contains(", logarithmic scale<"), "{name}");
    if axis.is_linear() {
        return;
    }
    let one = chart.shape == Shape::Ratio;
    let (least, most) = chart.reach;
    let (least, most) = if one { (least.min(1.0), most.max(1.0)) } else { (least, most) };
    assert!(
        most < least * 1.2 || (axis.y(most) < 8.0 && axis.y(least) > 92.0),
        "{name}: the axis is too long"
    );
    assert!(axis.ticks().len() >= 4, "{name}: {:?}", axis.ticks());
    let y_title = svg.lines().find(|line| line.contains("class=\"y-title\"")).unwrap();
    assert_eq!(one, y_title.contains(" / "), "{name}: {y_title}");
}

fn check(name: &str, svg: &str) {
    assert!(svg.contains("class=\"foot\">Machine: "), "{name} does not say where it was measured");
    assert!(svg.contains("whisker: "), "{name} does not say what its whiskers are");
    for bad in ["NaN", "×", "maerts", "stream<", "native<", "tso=", ", native"] {
        assert!(!svg.contains(bad), "{name} has {bad:?}");
    }
    assert!(svg.contains("class=\"given\""), "{name} does not say what all its marks have in common");
    assert!(DEVICES.iter().any(|device| svg.contains(device)), "{name} names no device");
    check_runs(name, svg);
    check_leaders(name, svg);
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

/// A kept report is current, has the figures' words, a caption for every figure, and quotes a paper only where one is named.
fn check_page(dir: &std::path::Path) {
    let name = dir.display();
    let page = std::fs::read_to_string(dir.join(crate::report::FILE)).unwrap();
    assert!(
        crate::report::is_current(dir, &page),
        "{name}: report.html is not current: vmlane lab draw {name}"
    );
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
        assert!(!page.contains(bad), "{name} has {bad:?}");
    }
    assert!(
        !page.contains("What the paper says") || page.contains("class=\"lead\">After: "),
        "{name} names no paper"
    );
    let claims = page.split("<table class=\"claims\">").nth(1).and_then(|rest| rest.split("</table>").next());
    for cell in claims.into_iter().flat_map(|table| table.split("<tr>").skip(2)) {
        let here = cell.split("<td>").nth(2).unwrap().split('<').next().unwrap();
        assert!(!here.contains(" times") || here.contains(" / "), "{name}: {here:?} does not say of what");
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
        check_page(&entry.path());
        for (name, chart, svg) in crate::report::all(&entry.path()).unwrap() {
            let file = entry.path().join(crate::report::FIGURES).join(format!("{name}.svg"));
            let name = format!("{} {name}", entry.path().display());
            let current = std::fs::read_to_string(&file).is_ok_and(|kept| kept == crate::report::alone(&svg));
            assert!(current, "{} is not current: vmlane lab draw {}", file.display(), entry.path().display());
            check(&name, &svg);
            let linear = chart.axis((0.0, 1.0)).is_linear();
            let bars = svg.lines().any(|line| line.starts_with("<rect x=") && line.contains("mark "));
            assert!(!bars || (linear && svg.contains("class=\"tick\">0")), "{name}");
            assert_eq!(chart.shape == Shape::Ratio, svg.contains("class=\"grid one\""), "{name}");
            check_numbers(&name, &chart, &svg);
            check_looks(&name, &chart, &svg);
            check_axis(&name, &chart, &svg);
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
}
