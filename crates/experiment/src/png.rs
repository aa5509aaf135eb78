//! A chart's SVG as pixels, on white.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use resvg::{tiny_skia, usvg};

/// Pixels for each unit of the chart.
const SCALE: f32 = 2.0;

/// What is looked for, the best first; of each family the plain and the bold face.
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

/// Whether pictures will have words.
pub fn has_fonts() -> bool {
    !FONTS.is_empty()
}

/// The picture as shapes, ink black as on white.
pub fn tree(svg: &str) -> Result<usvg::Tree> {
    let options =
        usvg::Options { fontdb: FONTS.clone(), font_family: "sans-serif".into(), ..usvg::Options::default() };
    usvg::Tree::from_str(&svg.replace("currentColor", "#1b1f24"), &options).context("the chart's SVG")
}

/// The picture as the bytes of a PNG file.
///
/// # Errors
/// The SVG is not one.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let tree = tree(svg)?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("a chart without a size")?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).context("a chart too large")?;
    pixels.fill(tiny_skia::Color::WHITE);
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("cannot encode the picture")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_ink_on_white() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 20 10\" fill=\"currentColor\">\
                   <rect width=\"10\" height=\"10\"/></svg>";
        let bytes = png(svg).unwrap();
        let pixels = tiny_skia::Pixmap::decode_png(&bytes).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (40, 20));
        let at = |x, y| pixels.pixel(x, y).map(|pixel| pixel.red());
        assert_eq!((at(5, 5), at(35, 5)), (Some(0x1b), Some(0xff)));
        assert!(png("<p>").is_err());
    }
}
