//! The medians in numbers, each beside its own mark: never at the end of a whisker, which is another value, never on a
//! line of the grid, which would strike it through, and never beyond one, which would contradict it.

use super::axis::Axis;
use super::chart::{Chart, Point, Shape, Value, text};
use super::letters::{SMALL, width};
use super::rings::Rings;
use super::slots::Slots;
use crate::units::number;

/// With more bars than this their numbers would touch.
const MOST_BARS: usize = 20;
/// With more dots or marks of lines than this their numbers would be taken for their neighbours'.
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

    /// From its edge to a point.
    fn distance(&self, x: f64, y: f64) -> f64 {
        let out = |low: f64, high: f64, value: f64| (low - value).max(value - high).max(0.0);
        out(self.left, self.right, x).hypot(out(self.top, self.bottom, y))
    }

    /// Whether a line passes through it, or nearly so.
    fn is_crossed_by(&self, [(x1, y1), (x2, y2)]: &Segment) -> bool {
        const NEAR: f64 = 2.0;
        let (left, right) = (self.left - NEAR, self.right + NEAR);
        if *x2 <= left || *x1 >= right {
            return false;
        }
        let y = |x: f64| y1 + (y2 - y1) * ((x.clamp(*x1, *x2) - x1) / (x2 - x1));
        let (a, b) = (y(left), y(right));
        a.min(b) < self.bottom + NEAR && a.max(b) > self.top - NEAR
    }
}

/// A mark, where it stands and what is written beside it.
struct Mark<'c> {
    series: usize,
    at: usize,
    x: f64,
    y: f64,
    point: &'c Point,
    words: String,
}

/// A straight line, from left to right.
pub type Segment = [(f64, f64); 2];

/// The picture as far as numbers are in its way.
struct Places<'c> {
    marks: Vec<Mark<'c>>,
    segments: Vec<Segment>,
    leaders: Vec<Segment>,
    grid: Vec<f64>,
    taken: Vec<Area>,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl<'c> Places<'c> {
    fn new(
        chart: &'c Chart,
        axis: &Axis,
        slots: &Slots,
        (rings, leaders): (&Rings, Vec<Segment>),
    ) -> Places<'c> {
        let mut marks = Vec::new();
        for (index, series) in chart.series.iter().enumerate() {
            for (at, point) in series.values.iter().enumerate().filter_map(|(at, v)| Some((at, v.point()?))) {
                let (x, y) = (slots.x(index, at), axis.y(point.spread.median));
                marks.push(Mark { series: index, at, x, y, point, words: number(point.spread.median) });
            }
        }
        let next = |two: &[Mark<'_>]| two[0].series == two[1].series && two[0].at + 1 == two[1].at;
        let lines = if chart.shape == Shape::Lines { &marks[..] } else { &[] };
        let pairs = lines.windows(2).filter(|two| next(two));
        let segments = pairs.map(|two| [(two[0].x, two[0].y), (two[1].x, two[1].y)]).collect();
        let mut grid: Vec<f64> = axis.ticks().into_iter().map(|(value, _)| axis.y(value)).collect();
        grid.push(axis.base());
        let taken = marks.iter().flat_map(|mark| taken(mark, axis, slots, rings)).collect();
        let (top, bottom) = (axis.top() - 14.0, axis.base());
        Places { marks, segments, leaders, grid, taken, left: slots.left, right: slots.right, top, bottom }
    }

    fn is_free(&self, area: &Area) -> bool {
        let inside = area.left >= self.left
            && area.right <= self.right
            && area.top >= self.top
            && area.bottom <= self.bottom - 2.0;
        inside
            && self.is_off_the_grid(area)
            && !self.taken.iter().any(|taken| taken.touches(area))
            && !self.segments.iter().any(|segment| area.is_crossed_by(segment))
    }

    /// Whether it is clearly nearer to this mark than to any other: lines may run close to each other.
    fn is_nearest_to(&self, area: &Area, own: usize) -> bool {
        let away = |mark: &Mark<'_>| area.distance(mark.x, mark.y);
        let mine = away(&self.marks[own]);
        self.marks.iter().enumerate().all(|(at, mark)| at == own || away(mark) > 1.6 * mine)
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
fn taken(mark: &Mark<'_>, axis: &Axis, slots: &Slots, rings: &Rings) -> Vec<Area> {
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
    areas.extend(rings.of(mark.series, mark.at).iter().map(|run| around(*run, 2.3)));
    areas
}

/// Draws them, where each has room.
pub fn draw(
    svg: &mut String,
    chart: &Chart,
    axis: &Axis,
    slots: &Slots,
    (rings, leaders): (&Rings, Vec<Segment>),
) {
    let count = chart.series.iter().flat_map(|s| &s.values).filter_map(Value::point).count();
    let bars = chart.has_bars(axis);
    let most = if bars { MOST_BARS } else { MOST_DOTS };
    if count > most {
        return;
    }
    let mut places = Places::new(chart, axis, slots, (rings, leaders));
    let areas = match chart.shape {
        _ if bars => on_bars(&places, slots),
        Shape::Lines => around_lines(&mut places),
        Shape::Bars | Shape::Ratio => beside_dots(&mut places, slots),
    };
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
        // Its halo must not cut the bar's outline.
        let fits = left >= mark.x - slots.width / 2.0 + 3.0;
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
        // Nothing stands there but the bar; where its whisker or runs do, the number is above them.
        let bases = [places.bottom - 5.0, mark.y - 9.0, mark.y - 14.0, mark.y - 19.0];
        let area = |base: f64| Area::of_number(mark.x - wide / 2.0, base, wide);
        let fits = |(at, area): &(usize, Area)| {
            let on_bar = *at > 0 || area.top > mark.y + 1.0;
            on_bar && places.is_off_the_grid(area) && !places.taken.iter().any(|taken| taken.touches(area))
        };
        let found = bases.into_iter().map(area).enumerate().find(fits).map(|(_, area)| area);
        found.filter(|_| wide + 1.0 <= slots.width)
    };
    places.marks.iter().map(at_foot).collect()
}

/// How far the numbers of lines are above or below their marks.
const ABOVE: [f64; 3] = [7.5, 9.5, 11.0];

/// Above or below each mark, or to its left or right, where no line passes.
fn around_lines(places: &mut Places<'_>) -> Vec<Option<Area>> {
    let mut areas = Vec::new();
    for (own, mark) in places.marks.iter().enumerate() {
        let wide = width(&mark.words, SMALL);
        let lefts = [mark.x - wide / 2.0, mark.x - wide - 2.0, mark.x + 3.0];
        let upright = ABOVE.iter().flat_map(|gap| [mark.y - gap, mark.y + gap + TALL]);
        let upright = lefts.iter().flat_map(|left| upright.clone().map(|base| (*left, base)));
        let sides = [mark.x - 8.0 - wide, mark.x + 13.0];
        let aside = SHIFTS.iter().flat_map(|shift| sides.map(|left| (left, mark.y + TALL / 2.0 + shift)));
        let may_be = |area: &Area| {
            places.is_free(area) && places.is_on_the_side_of(area, mark.y) && places.is_nearest_to(area, own)
        };
        let all = upright.chain(aside).map(|(left, base)| Area::of_number(left, base, wide));
        // A line to a name is thin: a number's halo may cut it where there is no other place.
        let off_leaders = |area: &Area| !places.leaders.iter().any(|line| area.is_crossed_by(line));
        let best = all.clone().find(|area| may_be(area) && off_leaders(area));
        let found = best.or_else(|| all.clone().find(may_be));
        places.taken.extend(found);
        areas.push(found);
    }
    if areas.iter().all(Option::is_some) { areas } else { Vec::new() }
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
