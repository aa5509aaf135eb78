//! Tables in a README that are drawn as figures are: between two comments stand the numbers of one figure, so
//! that text and picture cannot differ.

use anyhow::{Context, Result};

use crate::figure::{Chart, Value};
use crate::units::number;

/// The file of a result directory that may have such tables.
pub const FILE: &str = "README.md";

/// Around the table of a figure, which is called as its file is: `<!-- figure 1a -->`.
const BEGINS: &str = "<!-- figure ";
const ENDS: &str = "<!-- end of figure ";
const CLOSES: &str = " -->";

/// A figure's marks: a row for each group, a column for each series.
fn table(chart: &Chart) -> String {
    let names = chart.series.iter().map(|s| if s.label.is_empty() { &chart.y_title } else { &s.label });
    let mut lines =
        vec![format!("| {} | {} |", chart.x_title, names.cloned().collect::<Vec<_>>().join(" | "))];
    lines.push(format!("| --- |{}", " --- |".repeat(chart.series.len())));
    for (at, group) in chart.groups.iter().enumerate() {
        let cell = |value: Option<&Value>| match value {
            Some(Value::Point(point)) => number(point.spread.median),
            Some(Value::Missing(why)) => why.clone(),
            None => String::new(),
        };
        let cells: Vec<String> = chart.series.iter().map(|series| cell(series.values.get(at))).collect();
        lines.push(format!("| {group} | {} |", cells.join(" | ")));
    }
    lines.join("\n")
}

/// The text with its tables drawn from the charts, which have their names among files.
///
/// # Errors
/// A comment names no figure, or nothing marks where its table ends.
pub fn with_tables(text: &str, charts: &[(String, Chart, String)]) -> Result<String> {
    let (mut drawn, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(BEGINS) {
        let (name, after) = after.split_once(CLOSES).context("a comment for a figure's table has no end")?;
        let end = format!("{ENDS}{name}{CLOSES}");
        let (_, after) = after.split_once(&end).with_context(|| format!("there is no {end}"))?;
        let (_, chart, _) = charts
            .iter()
            .find(|(own, ..)| own == name)
            .with_context(|| format!("there is no figure {name}"))?;
        drawn += &format!("{before}{BEGINS}{name}{CLOSES}\n{}\n{end}", table(chart));
        rest = after;
    }
    Ok(drawn + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_between_comments_are_drawn_and_all_else_stays() {
        let draw = |text: &str| with_tables(text, &[]);
        assert_eq!(draw("no table\n").unwrap(), "no table\n");
        assert!(
            draw("<!-- figure 1 -->\n<!-- end of figure 1 -->")
                .unwrap_err()
                .to_string()
                .contains("no figure 1")
        );
        assert!(draw("<!-- figure 1 -->\n").unwrap_err().to_string().contains("end of figure 1"));
    }
}
