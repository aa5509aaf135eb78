//! What several machines measured, on one page: each figure with a series for each machine, the papers' claims and
//! all combinations with a column for each.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::data::Data;
use crate::figure::escape;
use crate::machine::Finding;
use crate::pack::{About, Pack};
use crate::paper::PLANS;
use crate::plan::Plan;
use crate::png;
use crate::report::{FIGURES, FILE, alone, named, panels, pictures, said_by, style, tables};
use crate::rows::Row;
use crate::summary::Spread;
use crate::units::{number, unit};
use crate::words::{tick, title};

/// More series than these cannot be told apart.
pub const MOST: usize = 6;
/// The factor that tells the machines' rows apart.
const HOST: &str = "host";

/// What the table of machines says of each.
type Fact<'f> = (&'f str, &'f dyn Fn(&Pack) -> String);

/// The rows of one experiment, of all machines.
struct Experiment {
    plan: Plan,
    rows: Vec<Row>,
}

/// Draws packs into `DIR/report.html` and `DIR/figures`; returns the page's path.
///
/// # Errors
/// There are too many packs, or a file cannot be written.
pub fn draw(packs: &[Pack], dir: &Path) -> Result<PathBuf> {
    ensure!(
        (1..=MOST).contains(&packs.len()),
        "{} files: from 1 to {MOST} are drawn side by side",
        packs.len()
    );
    let experiments = experiments(packs)?;
    ensure!(!experiments.is_empty(), "there are no rows in {}", packs[0].path.display());
    let figures = dir.join(FIGURES);
    vmlane_lab::dirs::make(&figures)?;
    let mut page = top(packs, &experiments);
    for experiment in &experiments {
        let (plan, rows) = (&experiment.plan, &experiment.rows);
        let _ = writeln!(page, "<h2>{}</h2>", escape(&plan.title));
        page += &claims(experiment, packs.len());
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
        for (name, _, svg) in named(drawn) {
            for (kind, bytes) in [("svg", alone(&svg).into_bytes()), ("png", png::png(&svg)?)] {
                write(&figures.join(format!("{}-{name}.{kind}", plan.name)), &bytes)?;
            }
        }
        page += &numbers(experiment, packs.len());
    }
    page += "</body>\n</html>\n";
    let path = dir.join(FILE);
    write(&path, page.as_bytes())?;
    Ok(path)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// `A`, `B` ...
fn letter(number: usize) -> char {
    char::from(b'A' + number as u8)
}

/// The plans that any machine has rows of, with figures that tell the machines apart.
fn experiments(packs: &[Pack]) -> Result<Vec<Experiment>> {
    let mut all = Vec::new();
    for (name, text) in PLANS {
        let mut plan = Plan::parse(text, false).context(name)?;
        let mut rows: Vec<Row> = Vec::new();
        for (machine, pack) in packs.iter().enumerate() {
            for row in pack.results.get(name).into_iter().flatten() {
                let mut row = row.clone();
                row.factors.insert(HOST.into(), letter(machine).to_string().into());
                rows.push(row);
            }
        }
        if rows.is_empty() {
            continue;
        }
        if packs.len() > 1 {
            plan.named.push(HOST);
            plan.figures.iter_mut().for_each(|figure| figure.series.push(HOST.into()));
        }
        all.push(Experiment { plan, rows });
    }
    Ok(all)
}

fn top(packs: &[Pack], experiments: &[Experiment]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>Experiments, side by side</title>\n<style>\n{}</style>\n</head>\n<body>\n\
         <h1>Experiments, side by side</h1>\n",
        style()
    );
    page += "<div class=\"scroll\"><table><thead><tr><th class=\"text\"></th>";
    for machine in 0..packs.len() {
        let _ = write!(page, "<th class=\"text\">machine {}</th>", letter(machine));
    }
    page += "</tr></thead><tbody>\n";
    let counts = |pack: &Pack| {
        let rows = || pack.results.values().flatten();
        format!("{}, {} failed", rows().count(), rows().filter(|row| row.failed.is_some()).count())
    };
    let facts: [Fact<'_>; 10] = [
        ("Machine", &|pack| pack.about.machine.name()),
        ("Microcode", &|pack| pack.about.machine.microcode.clone()),
        ("System, kernel", &|pack| format!("{}, {}", pack.about.machine.system, pack.about.machine.kernel)),
        ("Governor", &|pack| {
            format!("{} {}", pack.about.machine.scaling_driver, pack.about.machine.governor)
        }),
        ("Turbo", &|pack| on_off(pack.about.machine.turbo)),
        ("Cores serve two threads", &|pack| on_off(pack.about.machine.smt)),
        ("vmlane", &|pack| version(&pack.about)),
        ("Packed", &|pack| pack.about.date.clone()),
        ("Runs", &counts),
        ("Found", &|pack| found(&pack.about.findings)),
    ];
    for (name, fact) in facts {
        let _ = write!(page, "<tr><td class=\"text\">{name}</td>");
        for pack in packs {
            let _ = write!(page, "<td class=\"text\">{}</td>", escape(&fact(pack)));
        }
        page += "</tr>\n";
    }
    let names: Vec<String> = experiments.iter().map(|experiment| escape(&experiment.plan.name)).collect();
    let _ = writeln!(page, "</tbody></table></div>\n<p>Experiments: {}.</p>", names.join(", "));
    page
}

fn on_off(state: Option<bool>) -> String {
    match state {
        Some(true) => "on".into(),
        Some(false) => "off".into(),
        None => "not known".into(),
    }
}

fn version(about: &About) -> String {
    let commit = about.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
    format!("{}{commit}", about.vmlane)
}

fn found(findings: &[Finding]) -> String {
    let texts: Vec<String> = findings
        .iter()
        .map(|finding| format!("{}{}", finding.seen, if finding.serious { " (serious)" } else { "" }))
        .collect();
    if texts.is_empty() { "nothing".into() } else { texts.join("; ") }
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
    let mut html = format!("<table class=\"claims\"><thead><tr><th>{}</th>", said_by(plan).1);
    for machine in 0..machines {
        let _ = write!(html, "<th>machine {}</th>", letter(machine));
    }
    html += "</tr></thead><tbody>\n";
    let of: Vec<Vec<Row>> = (0..machines).map(|machine| of_machine(rows, machine)).collect();
    for claim in &plan.claims {
        let _ = write!(html, "<tr><td>{}</td>", escape(&claim.said));
        for rows in &of {
            let measured = Data::new(rows, Some(plan)).measured(claim);
            let _ = write!(html, "<td>{}</td>", escape(&measured.unwrap_or_else(|| "not measured".into())));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table>\n"
}

/// Every combination that was measured: a column for each machine, and its ratio to the first.
fn numbers(experiment: &Experiment, machines: usize) -> String {
    let Experiment { plan, rows } = experiment;
    let mut factors = tables::varying(rows, &plan.named);
    factors.retain(|name| *name != HOST);
    let mut html = String::from("<h3>The numbers</h3>\n<div class=\"scroll\"><table><thead><tr>");
    for name in &factors {
        let _ = write!(html, "<th class=\"text\">{}</th>", escape(title(name)));
    }
    html += "<th class=\"text\">unit</th>";
    for machine in 0..machines {
        let _ = write!(html, "<th>{}</th>", letter(machine));
        if machine > 0 {
            let _ = write!(html, "<th>{} / A</th>", letter(machine));
        }
    }
    html += "</tr></thead><tbody>\n";
    let of: Vec<Vec<Row>> = (0..machines).map(|machine| of_machine(rows, machine)).collect();
    for id in plan.combinations.iter().map(|factors| factors.id()) {
        let Some(row) = rows.iter().find(|row| row.id == id) else { continue };
        let (name, scale) = unit(&row.test);
        html += "<tr>";
        for factor in &factors {
            let _ = write!(html, "<td class=\"text\">{}</td>", escape(&tick(factor, &row.factor(factor))));
        }
        let _ = write!(html, "<td class=\"text\">{name}</td>");
        let spreads: Vec<Option<Spread>> = of
            .iter()
            .map(|rows| Spread::of(rows.iter().filter(|row| row.id == id).filter_map(Row::value)))
            .collect();
        for (machine, spread) in spreads.iter().enumerate() {
            html += &spread.map_or("<td>–</td>".into(), |s| {
                let n = |value: f64| number(value / scale);
                format!("<td>{}<small>{}–{}</small></td>", n(s.median), n(s.min), n(s.max))
            });
            if machine > 0 {
                let base = spreads[0].filter(|base| base.median > 0.0);
                let ratio = spread.zip(base).map(|(s, base)| number(s.median / base.median));
                let _ = write!(html, "<td>{}</td>", ratio.unwrap_or_else(|| "–".into()));
            }
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

#[cfg(test)]
mod tests;
