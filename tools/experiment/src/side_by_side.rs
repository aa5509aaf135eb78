//! What several machines measured, on one page: each figure with a series for each machine, the papers'
//! claims and all combinations with a column for each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::data::Data;
use crate::figure::escape;
use crate::plan::{Claim, Plan};
use crate::report::tables::{Cell, plain, spread_cell, text};
use crate::report::{
    FIGURES, FILE, begin, claims_title, measured, named, panels, pictures, plan_of, save, tables, write,
};
use crate::rows::{self, Row};
use crate::summary::Spread;
use crate::units::{number, unit};
use crate::words::{tick, title};

/// More series than these cannot be distinguished.
pub const MOST: usize = 6;
/// The factor that distinguishes the machines' rows.
const HOST: &str = "host";

/// What the table of machines shows of each.
type Fact<'f> = (&'f str, &'f dyn Fn(&Side) -> String);

/// What one machine measured.
#[derive(Clone, Debug)]
pub struct Side {
    /// By the plan's name.
    results: BTreeMap<String, Vec<Row>>,
}

impl Side {
    /// Reads the directory of an experiment, or one that has a directory for each of several.
    ///
    /// # Errors
    /// There are no rows, or they cannot be read.
    pub fn read(dir: &Path) -> Result<Side> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
        let mut side = Side { results: BTreeMap::new() };
        for dir in entries.flatten().map(|entry| entry.path()).chain([dir.to_owned()]) {
            if dir.join(rows::FILE).is_file() {
                let rows = rows::read(&dir)?;
                side.results.extend(rows.first().map(|row| row.setup.plan.clone()).map(|name| (name, rows)));
            }
        }
        ensure!(!side.results.is_empty(), "there are no rows in {}", dir.display());
        Ok(side)
    }

    fn first(&self) -> Option<&Row> {
        self.results.values().flatten().next()
    }
}

/// The rows of one experiment, of all machines.
struct Experiment {
    plan: Plan,
    rows: Vec<Row>,
}

/// Draws several machines' results into `DIR/report.html` and `DIR/figures`; returns the page's path.
///
/// # Errors
/// There are too many machines, or a file cannot be written.
pub fn draw(sides: &[Side], dir: &Path) -> Result<PathBuf> {
    ensure!(
        (1..=MOST).contains(&sides.len()),
        "{} directories: from 1 to {MOST} are drawn side by side",
        sides.len()
    );
    let experiments = experiments(sides)?;
    let figures = dir.join(FIGURES);
    vmlane_lab::dirs::make(&figures)?;
    let mut page = top(sides, &experiments);
    for experiment in &experiments {
        let (plan, rows) = (&experiment.plan, &experiment.rows);
        let _ = writeln!(page, "<h2>{}</h2>", escape(&plan.title));
        page += &claims(experiment, sides.len());
        let data = Data::new(rows, Some(plan));
        let id = plan.name.replace(|c: char| !c.is_ascii_alphanumeric(), "");
        let (mut shown, mut drawn) = (Vec::new(), Vec::new());
        for (number, figure) in (1..).zip(&plan.figures) {
            let of = data.draw(figure, &format!("{id}f{number}"));
            // No machine has rows of it.
            if of.charts.iter().any(|chart| !chart.groups.is_empty()) {
                shown.push(figure);
                drawn.push(of);
            }
        }
        for ((figure, parts), number) in shown.iter().zip(pictures(&drawn)).zip(1..) {
            let _ = write!(
                page,
                "<h3>Figure {number}: {}</h3>\n<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n",
                escape(&figure.title),
                panels(&parts),
                escape(&figure.caption)
            );
        }
        // The name came with the rows, which may be anybody's.
        save(&figures, &format!("{}-", plan.name.replace('/', "_")), &named(drawn))?;
        page += &numbers(experiment, sides.len());
    }
    page += "</body>\n</html>\n";
    let path = dir.join(FILE);
    write(&path, page.as_bytes())?;
    Ok(path)
}

/// `A`, `B` ...
fn letter(number: usize) -> char {
    char::from(b'A' + number as u8)
}

/// The plans that any machine has rows of, with figures that distinguish the machines.
fn experiments(sides: &[Side]) -> Result<Vec<Experiment>> {
    let names: BTreeSet<&String> = sides.iter().flat_map(|side| side.results.keys()).collect();
    let of = |name: &String| {
        let mut rows: Vec<Row> = Vec::new();
        for (machine, side) in sides.iter().enumerate() {
            for row in side.results.get(name).into_iter().flatten() {
                let mut row = row.clone();
                row.factors.insert(HOST.into(), letter(machine).to_string().into());
                rows.push(row);
            }
        }
        let mut plan = plan_of(&rows)
            .with_context(|| format!("the rows of {name} carry no plan that this program reads"))?;
        if sides.len() > 1 {
            plan.named.push(HOST);
            plan.figures.iter_mut().for_each(|figure| figure.series.push(HOST.into()));
        }
        Ok(Experiment { plan, rows })
    };
    names.into_iter().map(of).collect()
}

fn top(sides: &[Side], experiments: &[Experiment]) -> String {
    let mut page = begin("Experiments, side by side");
    let machines = (0..sides.len()).map(|machine| text(&format!("machine {}", letter(machine))));
    let heads: Vec<Cell> = [text("")].into_iter().chain(machines).collect();
    let counts = |side: &Side| {
        let rows = || side.results.values().flatten();
        format!("{}, {} failed", rows().count(), rows().filter(|row| row.failed.is_some()).count())
    };
    let row = |side: &Side, of: fn(&Row) -> String| side.first().map_or(String::new(), of);
    let facts: [Fact<'_>; 4] = [
        ("Machine", &|side| row(side, |row| format!("{}, {} CPUs", row.setup.cpu_model, row.setup.cpus))),
        ("Kernel", &|side| row(side, |row| row.setup.host_kernel.clone())),
        ("vmlane", &|side| row(side, |row| crate::report::version(&row.setup))),
        ("Runs", &counts),
    ];
    let line = |(name, fact): &Fact<'_>| {
        [text(name)].into_iter().chain(sides.iter().map(|side| text(&fact(side)))).collect()
    };
    let lines: Vec<Vec<Cell>> = facts.iter().map(line).collect();
    let names: Vec<String> = experiments.iter().map(|experiment| escape(&experiment.plan.name)).collect();
    page += &tables::table("", &heads, &lines);
    let _ = writeln!(page, "<p>Experiments: {}.</p>", names.join(", "));
    page
}

/// The rows of one machine.
fn of_machine(rows: &[Row], machine: usize) -> Vec<Row> {
    let name = letter(machine).to_string();
    rows.iter().filter(|row| row.factor(HOST) == name).cloned().collect()
}

fn claims(experiment: &Experiment, machines: usize) -> String {
    let Experiment { plan, rows } = experiment;
    if plan.claims.is_empty() {
        return String::new();
    }
    let of: Vec<Vec<Row>> = (0..machines).map(|machine| of_machine(rows, machine)).collect();
    let heads = (0..machines).map(|machine| plain(format!("machine {}", letter(machine))));
    let heads: Vec<Cell> = [plain(claims_title(plan).1)].into_iter().chain(heads).collect();
    let line = |claim: &Claim| {
        let measured = |rows: &Vec<Row>| plain(measured(&Data::new(rows, Some(plan)), claim));
        [plain(escape(&claim.text))].into_iter().chain(of.iter().map(measured)).collect()
    };
    let lines: Vec<Vec<Cell>> = plan.claims.iter().map(line).collect();
    tables::table(" class=\"claims\"", &heads, &lines)
}

/// Every combination that was measured: a column for each machine, and its ratio to the first.
fn numbers(experiment: &Experiment, machines: usize) -> String {
    let Experiment { plan, rows } = experiment;
    let mut factors = tables::varying(rows, &plan.named);
    factors.retain(|name| *name != HOST);
    let mut heads: Vec<Cell> = factors.iter().map(|name| text(title(name))).collect();
    heads.push(text("unit"));
    for machine in 0..machines {
        heads.push(plain(letter(machine)));
        heads.extend((machine > 0).then(|| plain(format!("{} / A", letter(machine)))));
    }
    let of: Vec<Vec<Row>> = (0..machines).map(|machine| of_machine(rows, machine)).collect();
    let line = |id: String| {
        let row = rows.iter().find(|row| row.id == id)?;
        let (name, scale) = unit(&row.test);
        let mut cells: Vec<Cell> =
            factors.iter().map(|factor| text(&tick(factor, &row.factor(factor)))).collect();
        cells.push(text(name));
        let of_it = |rows: &Vec<Row>| rows.iter().filter(|row| row.id == id).filter_map(Row::value).collect();
        let spreads: Vec<Option<Spread>> =
            of.iter().map(|rows| Spread::of::<Vec<f64>>(of_it(rows))).collect();
        for (machine, spread) in spreads.iter().enumerate() {
            cells.push(spread_cell(*spread, scale));
            if machine > 0 {
                let base = spreads[0].filter(|base| base.median > 0.0);
                let ratio = spread.zip(base).map(|(s, base)| number(s.median / base.median));
                cells.push(plain(ratio.unwrap_or_else(|| "–".into())));
            }
        }
        Some(cells)
    };
    let ids = plan.combinations.iter().map(|factors| factors.id());
    let lines: Vec<Vec<Cell>> = ids.filter_map(line).collect();
    format!("<h3>The numbers</h3>\n{}", tables::table("", &heads, &lines))
}

#[cfg(test)]
mod tests;
