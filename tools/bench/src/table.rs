//! Tables as text.

/// Columns as wide as their widest cell; numbers to the right. The first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let numeric: Vec<bool> = (0..columns)
        .map(|column| {
            let mut cells = rows.iter().skip(1).filter_map(|row| row.get(column)).peekable();
            cells.peek().is_some() && cells.all(|cell| cell.starts_with(|first: char| first.is_ascii_digit()))
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).zip(&numeric).map(|((cell, &width), &right)| {
            if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A row of a table.
#[macro_export]
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$($cell.to_string()),*] };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = [row!["NAME", "CID", "X"], row!["a", 3, "yes"], row!["long-name", 12, "no"]];
        assert_eq!(table(&rows), "NAME       CID  X\na            3  yes\nlong-name   12  no\n");
        assert_eq!(table(&[row!["NAME", "CID"]]), "NAME  CID\n");
    }
}
