//! An experiment as one page that needs nothing else: what the paper claims, what was measured, where;
//! charts, numbers, what failed and what is missing.
//!
//! Drawn from the raw rows alone (the plan is in them, unless a later one lies beside them), so the same rows
//! always give the same bytes, and an old result can be drawn again.

pub(crate) mod readme;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::data::{Data, Drawn};
use crate::figure::{self, Chart, Frame, escape};
use crate::foot;
use crate::plan::{Claim, Figure, FigureKind, Plan, Statistic};
use crate::report::tables::plain;
use crate::rows::{self, Row, Setup};
use crate::summary::Spread;
use crate::words::{accelerator, emulated, title};

/// The file of a result directory.
pub const FILE: &str = "report.html";
/// Its directory of pictures.
pub const FIGURES: &str = "figures";

/// Draws `DIR/report.html`, `DIR/figures/*.svg`, and the tables of `DIR/README.md` that stand between
/// comments, from `DIR/results.jsonl`; returns the page's path.
///
/// # Errors
/// There are no rows, or a file cannot be read or written.
pub fn draw(dir: &Path) -> Result<PathBuf> {
    let rows = rows::read(dir)?;
    if rows.is_empty() {
        bail!("{} has no rows; measure first, for example with vmlane demo", dir.join(rows::FILE).display());
    }
    let plan = plan_beside(dir, &rows)?.or_else(|| plan_of(&rows));
    let path = dir.join(FILE);
    write(&path, page(&rows, plan.as_ref()).as_bytes())?;
    let figures = dir.join(FIGURES);
    vmlane_lab::dirs::make(&figures)?;
    let charts = named(charts(&rows, plan.as_ref()));
    save(&figures, "", &charts)?;
    draw_readme(&dir.join(readme::FILE), &charts)?;
    Ok(path)
}

pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes every chart's picture.
pub(crate) fn save(figures: &Path, prefix: &str, charts: &[(String, Chart, String)]) -> Result<()> {
    for (name, _, svg) in charts {
        write(&figures.join(format!("{prefix}{name}.svg")), alone(svg).as_bytes())?;
    }
    Ok(())
}

/// Draws the tables of a README, where there is one.
fn draw_readme(path: &Path, charts: &[(String, Chart, String)]) -> Result<()> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let drawn = readme::with_tables(&text, charts).with_context(|| path.display().to_string())?;
    if drawn == text { Ok(()) } else { write(path, drawn.as_bytes()) }
}

/// A picture as a file: alone, it needs colours of its own.
pub(crate) fn alone(svg: &str) -> String {
    svg.replacen("<svg ", "<svg color=\"#1b1f24\" style=\"background:#fff\" ", 1)
}

/// Every chart with its name among files (`1`, `2a`, `2b`) and its picture.
pub(crate) fn named(drawn: Vec<Drawn>) -> Vec<(String, Chart, String)> {
    let pictures = pictures(&drawn);
    let mut all = Vec::new();
    for ((number, drawn), pictures) in (1..).zip(drawn).zip(pictures) {
        let alone = drawn.charts.len() == 1;
        for ((panel, chart), svg) in drawn.charts.into_iter().enumerate().zip(pictures) {
            let name = if alone { format!("{number}") } else { format!("{number}{}", letter(panel)) };
            all.push((name, chart, svg));
        }
    }
    all
}

/// The charts that `draw` makes of a directory.
#[cfg(test)]
pub(crate) fn all(dir: &Path) -> Result<Vec<(String, Chart, String)>> {
    let rows = rows::read(dir)?;
    let plan = plan_beside(dir, &rows)?.or_else(|| plan_of(&rows));
    Ok(named(charts(&rows, plan.as_ref())))
}

/// The page that `draw` makes of a directory.
#[cfg(test)]
pub(crate) fn page_of(dir: &Path) -> Result<String> {
    let rows = rows::read(dir)?;
    let plan = plan_beside(dir, &rows)?.or_else(|| plan_of(&rows));
    Ok(page(&rows, plan.as_ref()))
}

fn letter(number: usize) -> char {
    char::from(b'a' + (number % 26) as u8)
}

/// The plan that lies beside the rows, when it is theirs by name: figures can be drawn anew in other words.
fn plan_beside(dir: &Path, rows: &[Row]) -> Result<Option<Plan>> {
    let path = dir.join("plan.toml");
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    let quick = rows.iter().rev().find_map(|row| row.plan_source.as_ref()).is_some_and(|source| source.quick);
    let plan = Plan::parse(&text, quick).with_context(|| path.display().to_string())?;
    Ok(Some(plan).filter(|plan| rows.iter().any(|row| row.setup.plan == plan.name)))
}

/// The plan that the rows carry; the last one, when a later start had another.
pub(crate) fn plan_of(rows: &[Row]) -> Option<Plan> {
    let sources = rows.iter().rev().filter_map(|row| row.plan_source.as_ref());
    sources.filter_map(|source| Plan::parse(&source.text, source.quick).ok()).next()
}

fn charts(rows: &[Row], plan: Option<&Plan>) -> Vec<Drawn> {
    let data = Data::new(rows, plan);
    let figures = plan.iter().flat_map(|plan| &plan.figures);
    (1..).zip(figures).map(|(number, figure)| data.draw(figure, &format!("f{number}"))).collect()
}

/// Every figure's charts as SVG, all of one height.
pub(crate) fn pictures(drawn: &[Drawn]) -> Vec<Vec<String>> {
    let frames: Vec<Frame> = drawn.iter().map(|drawn| Frame::of(&drawn.charts)).collect();
    let height = frames.iter().map(|frame| frame.height).fold(0.0, f64::max);
    let of = |(drawn, frame): (&Drawn, Frame)| {
        drawn.charts.iter().map(|chart| figure::svg(chart, &frame.with_height(height))).collect()
    };
    drawn.iter().zip(frames).map(of).collect()
}

/// The style sheet, with the figures' colours in dark mode: on screens only, paper is white.
fn style() -> String {
    format!(
        "{}@media screen and (prefers-color-scheme: dark) {{ {} }}\n",
        include_str!("report/style.css"),
        figure::dark()
    )
}

/// A page as far as its title.
pub(crate) fn begin(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{0}</title>\n\
         <style>\n{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape(title),
        style()
    )
}

fn page(rows: &[Row], plan: Option<&Plan>) -> String {
    let title = plan.map_or("An experiment", |plan| plan.title.as_str());
    let mut page = begin(title);
    let missing = plan.map(|plan| missing(rows, plan)).unwrap_or_default();
    page += &lead(rows, plan, missing.len());
    page += &claims(rows, plan);
    page += &drawn(rows, plan);
    let _ = write!(page, "<h2>Where it was measured</h2>\n{}{}", facts(rows), how_to_read(rows, plan));
    page += "<h2>The numbers</h2>\n";
    page += &tables::numbers(rows, plan);
    let notices = tables::notices(rows);
    if !notices.is_empty() {
        let _ = write!(
            page,
            "<h2>What VMCI needed beside the bytes</h2>\n<p>Notices and interrupts per MiB, counted by the daemon over \
             all runs of a combination, set-up included.</p>\n{notices}"
        );
    }
    let failures = tables::failures(rows);
    if !failures.is_empty() {
        let _ = write!(page, "<h2>Runs that failed</h2>\n{failures}");
    }
    if !missing.is_empty() {
        let _ = write!(page, "<h2>Rows that are missing</h2>\n{}", tables::missing(&missing));
    }
    let _ = write!(
        page,
        "<h2>Raw rows</h2>\n<p>Everything here was drawn from the {} rows of <code>{}</code>, a line of JSON for \
         each run, in the order in which they were made. <code>vmlane lab draw DIR</code> draws it \
         again.</p>\n</body>\n</html>\n",
        rows.len(),
        rows::FILE
    );
    page
}

/// The plan's runs that have no row: which combination, and how many of how many.
fn missing(rows: &[Row], plan: &Plan) -> Vec<(String, u32, u32)> {
    // A start may have asked for fewer runs than the plan.
    let runs = rows.iter().map(|row| row.setup.runs).max().filter(|runs| *runs > 0).unwrap_or(plan.runs);
    let lacks = |id: &String| {
        let has = |run: &u32| rows.iter().any(|row| row.id == *id && row.run == *run);
        runs - (1..=runs).filter(has).count() as u32
    };
    let ids = plan.combinations.iter().map(|factors| factors.id());
    ids.map(|id| (lacks(&id), id))
        .filter(|(lacks, _)| *lacks > 0)
        .map(|(lacks, id)| (id, lacks, runs))
        .collect()
}

fn lead(rows: &[Row], plan: Option<&Plan>, missing: usize) -> String {
    let mut html = String::new();
    if let Some(warning) = emulated(rows) {
        let _ = writeln!(html, "<p class=\"note\">{warning}</p>");
    }
    let data = Data::new(rows, plan);
    for answer in plan.iter().flat_map(|plan| data.answers(plan)) {
        let _ = writeln!(html, "<p class=\"answer\">{}</p>", escape(&answer));
    }
    if let Some(paper) = plan.and_then(|plan| plan.paper.as_ref()) {
        let _ = writeln!(html, "<p class=\"lead\">After: {}</p>", escape(paper));
    }
    for note in plan.iter().flat_map(|plan| &plan.notes) {
        let _ = writeln!(html, "<p>{}</p>", escape(note));
    }
    let failed = rows.iter().filter(|row| row.failed.is_some()).count();
    let _ = write!(html, "<p>{} runs were made", rows.len());
    if failed > 0 {
        let _ = write!(html, "; {failed} of {} runs failed, and are listed below", rows.len());
    }
    if missing > 0 {
        let _ =
            write!(html, "; <strong>{missing} combinations lack rows</strong>, and are listed at the end");
    }
    if plan.is_none() {
        html += "; the rows carry no plan that this program reads, so nothing is drawn, and what is missing is not known";
    }
    if plan.is_some_and(|plan| plan.quick) {
        html += "; this is the plan's quick part, a preview and no result";
    }
    html + ".</p>\n"
}

/// The title of the claims' section and the head of its column: where no paper stands behind an experiment,
/// claims are what its plan expects.
pub(crate) fn claims_title(plan: &Plan) -> (&'static str, &'static str) {
    match plan.paper {
        Some(_) => ("What was published, and what was measured", "published"),
        None => ("What was expected, and what was measured", "expected"),
    }
}

/// What was measured about a claim, and on how many boots it rests.
pub(crate) fn measured(data: &Data<'_>, claim: &Claim) -> String {
    let measured = data.measured(claim).unwrap_or_else(|| "not measured".into());
    let boots = data.boots(claim).map_or_else(String::new, |boots| format!("<small>{boots}</small>"));
    escape(&measured) + &boots
}

/// What was published, or what was expected, beside what was measured.
fn claims(rows: &[Row], plan: Option<&Plan>) -> String {
    let Some(plan) = plan.filter(|plan| !plan.claims.is_empty()) else { return String::new() };
    let data = Data::new(rows, Some(plan));
    let (title, who) = claims_title(plan);
    let line = |claim: &Claim| {
        let remark = match claim.remark.is_empty() {
            true => String::new(),
            false => format!("<small>{}</small>", escape(&claim.remark)),
        };
        [escape(&claim.text), measured(&data, claim) + &remark].map(plain).to_vec()
    };
    let lines: Vec<_> = plan.claims.iter().map(line).collect();
    format!("<h2>{title}</h2>\n{}", tables::table(" class=\"claims\"", &[who, "here"].map(plain), &lines))
}

/// The pictures of one figure, side by side; a single one has room of its own.
pub(crate) fn panels(pictures: &[String]) -> String {
    let class = if pictures.len() == 1 { "panels single" } else { "panels" };
    format!("<div class=\"{class}\">\n{}</div>\n", pictures.concat())
}

fn drawn(rows: &[Row], plan: Option<&Plan>) -> String {
    let mut html = String::new();
    let figures = plan.iter().flat_map(|plan| &plan.figures);
    let drawn = charts(rows, plan);
    let pictures = pictures(&drawn);
    for (((number, figure), drawn), pictures) in (1..).zip(figures).zip(drawn).zip(pictures) {
        let _ = write!(
            html,
            "<h2>Figure {number}: {}</h2>\n<figure>\n{}",
            escape(&figure.title),
            panels(&pictures)
        );
        let scale = if drawn.charts.len() > 1 { " All panels have one scale." } else { "" };
        let labs = drawn.labs.words("These were measured in different labs, one after the other");
        let labs = match &labs[..] {
            [] => String::new(),
            labs => format!(
                " {} Results differ between boots of the same lab; see experiments/boots.",
                escape(&labs.join(" "))
            ),
        };
        let mixed = if drawn.mixed { " Some marks take several combinations together." } else { "" };
        let unnamed: Vec<&str> = drawn.unnamed.iter().map(|factor| title(factor)).collect();
        let unnamed = match unnamed.is_empty() {
            true => String::new(),
            false => format!(" Marks also differ in: {}.", unnamed.join(", ")),
        };
        let _ = write!(
            html,
            "<figcaption>{}{scale}{labs}{unnamed}{mixed}</figcaption>\n</figure>\n",
            escape(&figure.caption)
        );
    }
    html
}

fn distinct(rows: &[Row], of: impl Fn(&Row) -> String) -> String {
    foot::distinct(rows, of).join("; ")
}

/// Of which build of vmlane a row is.
pub(crate) fn version(setup: &Setup) -> String {
    format!("{}, commit {}", setup.vmlane, setup.commit.as_deref().unwrap_or("unknown"))
}

/// How long a run took, and by which plan.
fn times(setup: &Setup) -> String {
    format!("{} s after {} s of warm-up (plan {})", setup.seconds, setup.warmup_seconds, setup.plan)
}

/// How many rows the combinations have: `9`, or `3 to 9`.
fn made(rows: &[Row]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry(&row.id).or_default() += 1);
    match (counts.values().min(), counts.values().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (_, most) => most.copied().unwrap_or(0).to_string(),
    }
}

fn facts(rows: &[Row]) -> String {
    let setup = |of: fn(&Setup) -> String| distinct(rows, |row| of(&row.setup));
    let gib = f64::from(1 << 30);
    let facts = [
        ("Date", setup(|s| s.date.clone())),
        ("Processor", setup(|s| s.cpu_model.clone())),
        (
            "CPUs, memory",
            distinct(rows, |row| {
                format!("{}, {:.1} GiB", row.setup.cpus, row.setup.memory_bytes as f64 / gib)
            }),
        ),
        ("Host kernel", setup(|s| s.host_kernel.clone())),
        ("QEMU", setup(|s| s.qemu.clone())),
        ("Accelerator", distinct(rows, |row| accelerator(&row.accelerator).to_owned())),
        ("Guests' kernel", setup(|s| s.guest_kernel.clone())),
        ("Guests", distinct(rows, |row| row.guests.to_string()).replace(';', ",")),
        ("Each guest", setup(|s| format!("{} CPU, {} MiB", s.guest_cpus, s.guest_memory_mib))),
        ("vmlane", setup(version)),
        ("Measured with", distinct(rows, |row| row.tool.clone())),
        ("Pinned to CPUs", setup(|s| s.pinned.clone())),
        ("Runs", format!("{} of each, {}", made(rows), setup(times))),
    ];
    let mut html = String::from("<dl>\n");
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escape(value));
    }
    html + "</dl>\n"
}

fn how_to_read(rows: &[Row], plan: Option<&Plan>) -> String {
    let middle = match plan.map(|plan| plan.statistic) {
        Some(Statistic::Mean) => "mean",
        _ => "median",
    };
    let figures = || plan.iter().flat_map(|plan| &plan.figures);
    let has = |kind: FigureKind| figures().any(|figure| figure.kind == kind);
    let mut html = String::from("<ul>\n");
    if figures().any(|figure| figure.kind != FigureKind::Ratio) {
        let _ = writeln!(
            html,
            "<li>A mark is the {middle} of the runs, and its whisker reaches from the least to the most. Words in place of a \
             mark explain why there is none.</li>"
        );
    }
    if has(FigureKind::Ratio) {
        let _ = writeln!(
            html,
            "<li>A <b>ratio</b> is taken run by run where both sides took turns: the mark is the {middle} of these ratios, and \
             the whisker reaches from the least to the most of them. Where they did not take turns, the mark is the ratio \
             of the {middle}s, and the whisker reaches from the least of one side divided by the most of the other to the \
             most divided by the least.</li>"
        );
    }
    let sizes = |figure: &Figure| {
        figure.x.iter().any(|factor| ["message", "buffer", "guests"].contains(&factor.as_str()))
    };
    if figures().any(|figure| figure.kind == FigureKind::Lines && sizes(figure)) {
        html += "<li>Along the x axis, values stand at equal steps, whatever lies between them: where the steps between \
                 sizes differ, the slope of a line means nothing.</li>\n";
    }
    html += "<li>A <b>message</b> is what one send passes to the kernel; <b>sessions</b> are connections at the same time. \
             <b>Buffers</b> are the socket buffers asked for at both ends: for VMCI the ring of each direction; for TCP, \
             Linux sets aside twice as much, half of it for its own needs.</li>\n";
    let data = Data::new(rows, plan);
    if data.has_turns() {
        html += "<li>Devices that share a lab took turns within every combination, every second round backwards.</li>\n";
    }
    if data.has_rounds() {
        html += "<li>Combinations that share a lab took turns as well: a run of each, then the next round, every second \
                 one backwards. The runs of one mark are minutes apart: its whisker shows what the machine did in between, \
                 too.</li>\n";
    }
    let skews: Vec<f64> = rows.iter().filter(|row| row.guests > 2).filter_map(|row| row.skew_ms).collect();
    if let Some(skew) = Spread::of(skews) {
        let repeated: u32 = rows.iter().map(|row| row.repeated).sum();
        let _ = writeln!(
            html,
            "<li>Where several VMs sent, the first and the last client started within {:.1} ms of each other in the \
             middle, {:.1} ms at worst; {repeated} attempts were thrown away for too much.</li>",
            skew.median, skew.max
        );
    }
    html += "</ul>\n";
    let busy: Vec<f64> = rows
        .iter()
        .filter(|row| row.wall_seconds > 0.0)
        .filter_map(|row| Some(row.host_other_cpu_seconds? / row.wall_seconds))
        .collect();
    let cpus = rows.first().map_or(1, |row| row.setup.cpus.max(1));
    if let Some(other) = Spread::of(busy).map(|s| s.median) {
        let class = if other > 0.1 * cpus as f64 { " class=\"note\"" } else { "" };
        let advice = if class.is_empty() { "" } else { " Numbers to quote need a quieter host." };
        let _ = writeln!(
            html,
            "<p{class}>While runs were made, programs that have no part in them used {other:.2} of the host's \
             {cpus} CPUs (median).{advice}</p>"
        );
    }
    html
}
