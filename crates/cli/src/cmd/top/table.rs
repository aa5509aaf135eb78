//! The tables of the views: columns, cells that can be sorted, rows that can be filtered.

use std::cmp::Ordering;

/// A column: its heading, the unit of all its cells, and whether large values come first.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// Below the heading.
    pub unit: &'static str,
    pub numeric: bool,
}

/// A column of names.
pub const fn text(name: &'static str) -> Column {
    Column { name, unit: "", numeric: false }
}

/// A column of numbers.
pub const fn number(name: &'static str, unit: &'static str) -> Column {
    Column { name, unit, numeric: true }
}

/// What a cell shows, and by what it is sorted.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Count(f64),
    PerSecond(f64),
    BytesPerSecond(f64),
    /// 1 is all of it.
    Share(f64),
    Nothing,
}

impl Cell {
    fn value(&self) -> Option<f64> {
        match self {
            Cell::Text(_) | Cell::Nothing => None,
            Cell::Count(value)
            | Cell::PerSecond(value)
            | Cell::BytesPerSecond(value)
            | Cell::Share(value) => Some(*value),
        }
    }

    /// Texts in their order, numbers from the largest, and what is not there last.
    fn compare(&self, other: &Cell) -> Ordering {
        match (self, other, self.value(), other.value()) {
            (_, _, Some(one), Some(two)) => two.total_cmp(&one),
            (Cell::Text(one), Cell::Text(two), ..) => by_number(one).cmp(&by_number(two)),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Cell::Text(_) => 0,
            Cell::Nothing => 2,
            _ => 1,
        }
    }

    pub fn is_zero(&self) -> bool {
        self.value() == Some(0.0)
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Text(text) => formatter.write_str(text),
            Cell::Count(value) | Cell::PerSecond(value) => write!(formatter, "{value:.0}"),
            Cell::BytesPerSecond(value) => formatter.write_str(&megabits(*value)),
            Cell::Share(value) => write!(formatter, "{:.0}", value * 100.0),
            Cell::Nothing => formatter.write_str("-"),
        }
    }
}

/// Mbit/s, of bytes per second: one unit for all, so that numbers below each other compare.
pub fn megabits(bytes_per_second: f64) -> String {
    match bytes_per_second * 8e-6 {
        0.0 => "0".into(),
        rate if rate < 0.01 => "<0.01".into(),
        rate if rate < 100.0 => format!("{rate:.2}"),
        rate => format!("{rate:.0}"),
    }
}

/// A text, and the number at its end: `web/nic9` comes before `web/nic10`.
fn by_number(text: &str) -> (&str, Option<u64>, &str) {
    let words = text.trim_end_matches(|last: char| last.is_ascii_digit());
    let number = text.strip_prefix(words).and_then(|number| number.parse().ok());
    (words, number, text)
}

/// What a view shows.
#[derive(Debug)]
pub struct Table {
    pub columns: &'static [Column],
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Leaves the rows in which some text contains `words`, whatever the case of letters.
    pub fn filter(&mut self, words: &str) {
        let words = words.to_lowercase();
        let has = |cell: &Cell| matches!(cell, Cell::Text(text) if text.to_lowercase().contains(&words));
        self.rows.retain(|row| words.is_empty() || row.iter().any(has));
    }

    /// By one column; rows that are equal there keep their order.
    pub fn sort(&mut self, column: usize, reverse: bool) {
        self.rows.sort_by(|one, two| {
            let order = match (one.get(column), two.get(column)) {
                (Some(one), Some(two)) => one.compare(two),
                _ => Ordering::Equal,
            };
            if reverse { order.reverse() } else { order }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |name: &str, rate| vec![Cell::Text(name.into()), rate];
        let rows = vec![
            row("web", Cell::PerSecond(5.0)),
            row("db", Cell::Nothing),
            row("Mail", Cell::PerSecond(70.0)),
        ];
        Table { columns: const { &[text("VM"), number("RATE", "/s")] }, rows }
    }

    fn names(table: &Table) -> Vec<String> {
        table.rows.iter().map(|row| row[0].to_string()).collect()
    }

    #[test]
    fn large_numbers_come_first_and_missing_ones_last() {
        let mut table = table();
        table.sort(1, false);
        assert_eq!(names(&table), ["Mail", "web", "db"]);
        table.sort(1, true);
        assert_eq!(names(&table), ["db", "web", "Mail"]);
        table.sort(0, false);
        assert_eq!(names(&table), ["Mail", "db", "web"]);
        table.sort(7, false);
        assert_eq!(names(&table), ["Mail", "db", "web"], "no such column");
    }

    #[test]
    fn numbers_at_the_end_of_names_are_numbers() {
        let names_of = ["web/nic10", "web/nic9", "web", "web/nic0", "web10/nic1", "web/nic63"];
        let rows = names_of.map(|name| vec![Cell::Text(name.into())]).to_vec();
        let mut table = Table { columns: const { &[text("NIC")] }, rows };
        table.sort(0, false);
        assert_eq!(names(&table), ["web", "web/nic0", "web/nic9", "web/nic10", "web/nic63", "web10/nic1"]);
    }

    #[test]
    fn a_filter_goes_by_any_text_in_any_case() {
        let mut table = table();
        table.filter("MA");
        assert_eq!(names(&table), ["Mail"]);
        table.filter("70");
        assert_eq!(names(&table), [""; 0], "numbers are no texts");
    }

    #[test]
    fn cells_are_for_people() {
        let shown = [
            Cell::Count(3.0),
            Cell::PerSecond(12.4),
            Cell::BytesPerSecond(0.0),
            Cell::BytesPerSecond(500.0),
            Cell::BytesPerSecond(2e6),
            Cell::BytesPerSecond(5.5e9),
            Cell::Share(0.456),
            Cell::Nothing,
        ];
        assert_eq!(
            shown.map(|cell| cell.to_string()),
            ["3", "12", "0", "<0.01", "16.00", "44000", "46", "-"]
        );
    }
}
