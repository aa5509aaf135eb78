//! How wide words are, in the font that draws them.
//!
//! The pictures ask for DejaVu Sans, which has the widths below, then for Verdana, which is nearly as wide.
//! Every other common face without serifs is narrower: what fits by these widths also fits there.

/// What SVG asks for, in this order.
pub const FAMILY: &str = "'DejaVu Sans', Verdana, 'Helvetica Neue', Arial, sans-serif";

/// Advance widths of U+0020 to U+007E in thousandths of the font's size.
#[rustfmt::skip]
const PLAIN: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787,
    603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352, 635,
    634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
];

/// The same of the bold face.
#[rustfmt::skip]
const BOLD: [u16; 95] = [
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696, 696, 696, 696,
    696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372, 372, 775, 637, 995, 837, 850,
    733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838, 500, 500, 675, 716, 593, 716, 678, 435, 716,
    712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595, 478, 712, 652, 924, 645, 652, 582, 712, 365, 712, 838,
];

/// The sizes that the pictures use.
pub const TITLE: f64 = 16.0;
pub const GIVEN: f64 = 12.0;
pub const TEXT: f64 = 13.0;
pub const SMALL: f64 = 11.5;
pub const FOOT: f64 = 10.5;

fn sum(widths: &[u16; 95], text: &str, size: f64) -> f64 {
    let one = |letter: char| {
        let at = (letter as usize).checked_sub(0x20).and_then(|at| widths.get(at));
        // Others are taken as wide as the widest common ones.
        at.copied().map_or(1000.0, f64::from)
    };
    text.chars().map(one).sum::<f64>() * size / 1000.0
}

/// The width of a text in the plain face.
pub fn width(text: &str, size: f64) -> f64 {
    sum(&PLAIN, text, size)
}

fn bold_width(text: &str, size: f64) -> f64 {
    sum(&BOLD, text, size)
}

/// Lines that are at most `most` wide, broken after what joins words; a word that is wider stays whole.
fn lines(text: &str, most: f64, width: impl Fn(&str) -> f64, joints: &[char]) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in text.split_inclusive(joints) {
        let last = lines.last_mut().expect("there is always one");
        if !last.is_empty() && width(&format!("{last}{}", piece.trim_end())) > most {
            lines.push(piece.to_owned());
        } else {
            last.push_str(piece);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

pub fn wrap(text: &str, size: f64, most: f64) -> Vec<String> {
    lines(text, most, |line| width(line, size), &[' ', '-', ':', ',', '='])
}

/// The same for sentences, which break at spaces only.
pub fn wrap_sentence(text: &str, size: f64, most: f64) -> Vec<String> {
    lines(text, most, |line| width(line, size), &[' '])
}

pub fn wrap_bold(text: &str, size: f64, most: f64) -> Vec<String> {
    lines(text, most, |line| bold_width(line, size), &[' '])
}
