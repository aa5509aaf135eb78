//! The medians in numbers, each beside its own mark: never at the end of a whisker, which is another value, never on a
//! line of the grid, which would strike it through, and never beyond one, which would contradict it.

use super::axis::Axis;
use super::chart::{Chart, Point, Shape, Value, text};
use super::letters::{SMALL, width};
use super::slots::{FEW_RUNS, Slots};
use crate::units::number;

/// With more bars than this their numbers would touch.
const MOST_BARS: usize = 20;
/// With more dots than this their numbers would be taken for their neighbours'.
const MOST_DOTS: usize = 16;
/// A digit's height above its base line.
const TALL: f64 = 8.6;
/// Between a number and a line of the grid: its halo must not cut the line at 1.
const FROM_GRID: f64 = 2.5;
/// How far a number moves from its median, up or down, to a free place.
const SHIFTS: [f64; 11] = [0.0, -3.0, 3.0, -6.0, 6.0, -9.0, 9.0, -12.0, 12.0, -15.0, 15.0];

/// What a place is taken by, or would take: left, right, top, bottom.
#[derive(Clone, Copy)]
pub struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn of_number(left: f64, base: f64, wide: f64) -> Area {
        Area { left, right: left + wide, top: base - TALL, bottom: base }
    }

    fn touches(&self, other: &Area) -> bool {
        let apart = 1.0;
        self.left < other.right + apart
            && other.left < self.right + apart
            && self.top < other.bottom + apart
            && other.top < self.bottom + apart
    }
}

/// A mark, where it stands and what is written beside it.
struct Mark<'c> {
    x: f64,
    y: f64,
    point: &'c Point,
    words: String,
}

/// The picture as far as numbers are in its way.
struct Places<'c> {
    marks: Vec<Mark<'c>>,
    grid: Vec<f64>,
    taken: Vec<Area>,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl<'c> Places<'c> {
    fn new(chart: &'c Chart, axis: &Axis, slots: &Slots) -> Places<'c> {
        let mut marks = Vec::new();
        for (index, series) in chart.series.iter().enumerate() {
            for (at, point) in series.values.iter().enumerate().filter_map(|(at, v)| Some((at, v.point()?))) {
                let (x, y) = (slots.x(index, at), axis.y(point.spread.median));
                marks.push(Mark { x, y, point, words: number(point.spread.median) });
            }
        }
        let mut grid: Vec<f64> = axis.ticks().into_iter().map(|(value, _)| axis.y(value)).collect();
        grid.push(axis.base());
        let taken = marks.iter().flat_map(|mark| taken(mark, axis, slots)).collect();
        let (top, bottom) = (axis.top() - 14.0, axis.base());
        Places { marks, grid, taken, left: slots.left, right: slots.right, top, bottom }
    }

    fn is_free(&self, area: &Area) -> bool {
        let inside = area.left >= self.left
            && area.right <= self.right
            && area.top >= self.top
            && area.bottom <= self.bottom - 2.0;
        inside && self.is_off_the_grid(area) && !self.taken.iter().any(|taken| taken.touches(area))
    }

    /// Whether no line of the grid is between it and the value that it says.
    fn is_on_the_side_of(&self, area: &Area, y: f64) -> bool {
        let middle = (area.top + area.bottom) / 2.0;
        let (from, to) = (middle.min(y) + 1.0, middle.max(y) - 1.0);
        !self.grid.iter().any(|line| (from..=to).contains(line))
    }

    fn is_off_the_grid(&self, area: &Area) -> bool {
        !self.grid.iter().any(|y| (area.top - FROM_GRID..=area.bottom + FROM_GRID).contains(y))
    }
}

/// The whisker, the mark and its runs.
fn taken(mark: &Mark<'_>, axis: &Axis, slots: &Slots) -> Vec<Area> {
    let (x, y, spread) = (mark.x, mark.y, mark.point.spread);
    let around = |(x, y): (f64, f64), half: f64| Area {
        left: x - half,
        right: x + half,
        top: y - half,
        bottom: y + half,
    };
    let cap = slots.cap();
    let mut areas = vec![around((x, y), 5.0)];
    if spread.runs > 1 {
        let (top, bottom) = (axis.y(spread.max), axis.y(spread.min));
        areas.push(Area { left: x - 1.5, right: x + 1.5, top, bottom });
        areas.extend([top, bottom].map(|y| Area { left: x - cap, right: x + cap, top: y, bottom: y }));
    }
    if (2..=FEW_RUNS).contains(&mark.point.runs.len()) {
        areas.extend(mark.point.runs.iter().map(|run| around((x + slots.aside(), axis.y(*run)), 2.3)));
    }
    areas
}

/// Draws them, where each has room.
pub fn draw(svg: &mut String, chart: &Chart, axis: &Axis, slots: &Slots) {
    let count = chart.series.iter().flat_map(|s| &s.values).filter_map(Value::point).count();
    let most = if chart.has_bars(axis) { MOST_BARS } else { MOST_DOTS };
    if chart.shape == Shape::Lines || count > most {
        return;
    }
    let mut places = Places::new(chart, axis, slots);
    let areas = if chart.has_bars(axis) { on_bars(&places, slots) } else { beside_dots(&mut places, slots) };
    let bars = chart.has_bars(axis);
    for (mark, area) in places.marks.iter().zip(areas) {
        let Some(area) = area else { continue };
        // On a bar it needs more room of the page's colour.
        let halo = if bars && area.top > mark.y { 5 } else { 3 };
        let attributes = format!(
            " class=\"number halo\" font-size=\"11.5\" stroke=\"#fff\" stroke-width=\"{halo}\" \
             stroke-linejoin=\"round\" paint-order=\"stroke\""
        );
        text(svg, (area.left, area.bottom), &attributes, &mark.words);
    }
}

/// Left of the whisker on the edge of the bar, or below it where the grid is in the way, if all bars are wide enough;
/// else at the foot of the bars.
fn on_bars(places: &Places<'_>, slots: &Slots) -> Vec<Option<Area>> {
    let on_edge = |mark: &Mark<'_>| {
        let wide = width(&mark.words, SMALL);
        let left = mark.x - slots.cap() - 3.0 - wide;
        let fits = left >= mark.x - slots.width / 2.0;
        let bases = [mark.y - 3.0, mark.y + 3.5 + TALL];
        let areas = bases.map(|base| Area::of_number(left, base, wide));
        areas.into_iter().find(|area| fits && area.bottom < places.bottom && places.is_off_the_grid(area))
    };
    let areas: Vec<Option<Area>> = places.marks.iter().map(on_edge).collect();
    if areas.iter().all(Option::is_some) {
        return areas;
    }
    let at_foot = |mark: &Mark<'_>| {
        let wide = width(&mark.words, SMALL);
        // Nothing stands there but the bar; a bar that is too low for it has it above.
        let low = places.bottom - mark.y < TALL + 8.0;
        let base = if low { mark.y - 9.0 } else { places.bottom - 5.0 };
        let area = Area::of_number(mark.x - wide / 2.0, base, wide);
        (wide + 1.0 <= slots.width && places.is_off_the_grid(&area)).then_some(area)
    };
    places.marks.iter().map(at_foot).collect()
}

/// Left or right of each mark, as near to its median as there is room.
fn beside_dots(places: &mut Places<'_>, slots: &Slots) -> Vec<Option<Area>> {
    let mut areas = Vec::new();
    for mark in &places.marks {
        let wide = width(&mark.words, SMALL);
        let rings = mark.point.runs.len() > 1;
        let sides = [mark.x - 8.0 - wide, mark.x + if rings { slots.aside() + 5.0 } else { 8.0 }];
        let at = |shift: &f64| sides.map(|left| Area::of_number(left, mark.y + TALL / 2.0 + shift, wide));
        let may_be = |area: &Area| places.is_free(area) && places.is_on_the_side_of(area, mark.y);
        let found = SHIFTS.iter().flat_map(at).find(may_be);
        places.taken.extend(found);
        areas.push(found);
    }
    // Numbers of some marks alone would be taken for their neighbours'.
    if areas.iter().all(Option::is_some) { areas } else { Vec::new() }
}
