//! What distinguishes series: a colour for each device, the same in every figure; markers, patterns and
//! dashes for readers who do not see the colours, or see them on grey paper.
//!
//! The colours come from the palette of Okabe and Ito, which colour-blind readers can distinguish, darkened
//! where white paper asks for it. Elements carry classes (`s` and a number strokes, `f` fills), so that a
//! page can give lighter ones in dark mode.

use std::fmt::Write;

/// The colour on white, and on a dark page.
pub const COLOURS: [(&str, &str); 11] = [
    ("#0072b2", "#58aee6"),
    ("#d55e00", "#ff8f45"),
    ("#b98300", "#f0b83c"),
    ("#1f97c7", "#9cd6f7"),
    ("#009e73", "#35d0a3"),
    ("#b8558c", "#e79fc9"),
    ("#6b6b6b", "#b8b8b8"),
    ("#1b1f24", "#f2f2f2"),
    ("#6a3d9a", "#b798e8"),
    ("#8c564b", "#cf9f94"),
    ("#a3124f", "#ff86b3"),
];

/// The style of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Its device's colour and, where there are bars, pattern.
    pub hue: usize,
    /// Marker.
    pub shape: usize,
    /// Dashes, what is inside the marker, and how dense the pattern is: distinguishes the series of one
    /// device.
    pub variant: usize,
}

/// The colour of series of several devices, and of devices that are not known here.
pub const NO_DEVICE: usize = 9;

/// A device's colour: each the same in every figure, by its name as the lab has it.
pub fn hue(device: &str) -> usize {
    let base = device.split(':').next().unwrap_or(device);
    match base {
        "vmxnet3" if device.contains("vmxnet2-class") => 8,
        "vmci" => 0,
        "vmxnet3" => 1,
        "virtio-net" => 2,
        "virtio-vsock" => 3,
        "qemu-virtio-net" => 4,
        "uml-vector" => 10,
        "qemu-vmxnet3" => 5,
        "qemu-e1000" | "qemu-e1000e" => 6,
        "vhost-device-vsock" => 7,
        _ => NO_DEVICE,
    }
}

/// Style sheets of a page: the colours in dark mode.
pub fn dark() -> String {
    (0..COLOURS.len()).fold(String::new(), |mut css, number| {
        let colour = COLOURS[number].1;
        let _ = write!(css, ".s{number}{{stroke:{colour}}}.f{number}{{fill:{colour}}}");
        css
    })
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A pattern's path in a tile of 8 by 8, by device; the first is plain.
const TILES: [&str; 12] = [
    "",
    "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "M2 0V8M6 0V8",
    "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M2 2h1.6v1.6h-1.6zM6 6h1.6v1.6h-1.6z",
    "M0 2H8M0 6H8",
    "M4 3.6v.8",
    "M0 4H8M4 0V8",
    "M0 2H5M4 6H8M0 6H1",
    "M1 1L4 4M4 1L1 4",
    "M0 5L4 1L8 5",
    "M2 4a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z",
];

/// How dense the patterns of a device's series are: the tile's size, the tint of its ground, the width of its
/// strokes. Shades alone do not distinguish bars.
const DENSITIES: [(f64, f64, f64); 3] = [(1.0, 0.22, 1.5), (1.6, 0.0, 1.1), (0.6, 0.45, 1.9)];
/// The outlines that go with them.
const OUTLINES: [&str; 3] = ["", " stroke-dasharray=\"4 2\"", " stroke-dasharray=\"1.5 1.5\""];
/// How many markers there are.
const MARKERS: usize = 12;

impl Style {
    fn stroke(self) -> String {
        let number = self.hue % COLOURS.len();
        format!("class=\"s{number}\" stroke=\"{}\"", COLOURS[number].0)
    }

    fn tile(self) -> usize {
        self.hue % TILES.len()
    }

    fn density(self) -> usize {
        self.variant % DENSITIES.len()
    }

    /// Whether its bars are plain: filled with nothing but the colour.
    fn is_plain(self) -> bool {
        TILES[self.tile()].is_empty() && self.density() == 0
    }

    /// The attributes of a bar: its fill, by a pattern that `pattern` has defined.
    pub fn bar(self, id: &str) -> String {
        let number = self.hue % COLOURS.len();
        let fill = match self.is_plain() {
            true => format!(
                "class=\"mark f{number} s{number}\" fill=\"{}\" fill-opacity=\".6\"",
                COLOURS[number].0
            ),
            false => format!("class=\"mark s{number}\" fill=\"url(#{id}-{number}-{})\"", self.density()),
        };
        let outline = OUTLINES[self.density()];
        format!("{fill} stroke=\"{}\" stroke-width=\"1.3\"{outline}", COLOURS[number].0)
    }

    /// Defines the pattern of its bars.
    pub fn pattern(self, svg: &mut String, id: &str) {
        if self.is_plain() {
            return;
        }
        // Of a plain device, the other series are striped across.
        let path =
            if TILES[self.tile()].is_empty() { "M0 1H8M0 3H8M0 5H8M0 7H8" } else { TILES[self.tile()] };
        let (number, (colour, _)) = (self.hue % COLOURS.len(), COLOURS[self.hue % COLOURS.len()]);
        let (size, tint, wide) = DENSITIES[self.density()];
        let _ = writeln!(
            svg,
            "<pattern id=\"{id}-{number}-{}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"scale({size})\">\
             <rect width=\"8\" height=\"8\" class=\"f{number}\" fill=\"{colour}\" fill-opacity=\"{tint}\"/>\
             <path d=\"{path}\" {} stroke-width=\"{wide}\" fill=\"none\"/></pattern>",
            self.density(),
            self.stroke()
        );
    }

    /// The attributes of a line.
    pub fn line(self) -> String {
        let dashes =
            ["", "7 4", "2 3", "10 3 2 3", "4 2", "12 4 2 4 2 4", "1 3", "5 2 1 2"][self.variant % 8];
        let dashes =
            if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
        let stroke = self.stroke().replacen("class=\"", "class=\"line ", 1);
        format!("{stroke} stroke-width=\"2\" fill=\"none\"{dashes}")
    }

    /// The attributes of an interval's line.
    pub fn interval(self) -> String {
        format!("{} stroke-width=\"1.3\" fill=\"none\"", self.stroke())
    }

    /// The mark of a series.
    pub fn marker(self, (x, y): (f64, f64), class: &str, tip: &str) -> String {
        let path = match self.shape % MARKERS {
            0 => format!("M{:.1} {y:.1}a4.4 4.4 0 1 0 8.8 0a4.4 4.4 0 1 0 -8.8 0z", x - 4.4),
            1 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
            2 => format!("M{x:.1} {:.1}l4.8 8.6h-9.6z", y - 5.2),
            3 => format!("M{x:.1} {:.1}l5.4 5.4l-5.4 5.4l-5.4 -5.4z", y - 5.4),
            4 => format!("M{x:.1} {:.1}l4.8 -8.6h-9.6z", y + 5.2),
            5 => format!("M{:.1} {:.1}h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z", x - 1.5, y - 5.0),
            6 => format!("M{:.1} {:.1}h10v4h-10z", x - 5.0, y - 2.0),
            7 => format!("M{:.1} {:.1}v10h4v-10z", x - 2.0, y - 5.0),
            8 => format!("M{x:.1} {:.1}l5.2 3.8l-2 6h-6.4l-2 -6z", y - 5.2),
            9 => format!("M{:.1} {:.1}h9l-9 9h9z", x - 4.5, y - 4.5),
            10 => format!("M{:.1} {y:.1}l8.6 -4.8v9.6z", x - 5.2),
            _ => format!("M{:.1} {y:.1}l-8.6 -4.8v9.6z", x + 5.2),
        };
        let number = self.hue % COLOURS.len();
        let colour = COLOURS[number].0;
        let (open, dot) = ([false, true, true, false][self.variant % 4], self.variant % 4 >= 2);
        let (inside, fill) = if open { ("hole".into(), "#fff") } else { (format!("f{number}"), colour) };
        let title = if tip.is_empty() { String::new() } else { format!("<title>{tip}</title>") };
        let mut mark = format!(
            "<path class=\"{class}s{number} {inside}\" d=\"{path}\" fill=\"{fill}\" stroke=\"{colour}\" \
             stroke-width=\"1.6\">{title}</path>\n"
        );
        if dot {
            let (inside, fill) = if open { (format!("f{number}"), colour) } else { ("hole".into(), "#fff") };
            let _ = writeln!(
                mark,
                "<circle class=\"{inside}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.7\" fill=\"{fill}\"/>"
            );
        }
        mark
    }
}
