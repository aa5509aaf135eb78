//! Tables of a listing. Rows are read from the right: only what stands there has a form of its own, and names
//! may be longer than their column. What is no row (prompts, blanks) is passed over.

use super::networks::Vlan;

/// What a line of a table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    Switch {
        name: String,
        mtu: Option<u32>,
        uplinks: Vec<String>,
    },
    /// Its switch is in the row, or it is the one above.
    PortGroup {
        name: String,
        switch: Option<String>,
        vlan: Result<Vlan, String>,
    },
    /// Only its name: its port groups are in other listings.
    Distributed(String),
    Adapter {
        name: String,
        mac: String,
        mtu: Option<u32>,
    },
}

/// What is known above a line.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    table: Table,
    switch: Option<String>,
}

/// The table that a row is of, by the heading above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Table {
    /// One that is not read.
    #[default]
    None,
    /// Of `esxcfg-vswitch`: a switch, with so many numbers, the MTU among them.
    Switch { numbers: usize, has_mtu: bool },
    /// Of `esxcfg-vswitch`: a switch's port groups. Old hosts have columns between the name and the VLAN.
    PortGroups { between: usize },
    /// Of `esxcfg-vswitch`: a distributed switch.
    Distributed { numbers: usize },
    /// Of `esxcli`: port groups with their switches, the VLAN last.
    Esxcli,
    /// Of `esxcli`: the host's adapters.
    Adapters,
}

impl Table {
    fn of(line: &str) -> Option<Table> {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let between = || cells.iter().position(|cell| *cell == "VLAN ID");
        match cells.as_slice() {
            ["Switch Name", numbers @ .., "Uplinks"] => {
                Some(Table::Switch { numbers: numbers.len(), has_mtu: numbers.ends_with(&["MTU"]) })
            }
            ["PortGroup Name", ..] => {
                Some(between().map_or(Table::None, |at| Table::PortGroups { between: at - 1 }))
            }
            ["Name", "Virtual Switch", "Active Clients", "VLAN ID"] => Some(Table::Esxcli),
            ["Name", "PCI Device", ..] => Some(Table::Adapters),
            ["DVS Name", numbers @ .., "Uplinks"] => Some(Table::Distributed { numbers: numbers.len() }),
            ["DVS Name", ..] | ["DVPort ID", ..] => Some(Table::None),
            _ => None,
        }
    }
}

impl Tables {
    /// Is this line a heading? Rows below it are of its table.
    pub fn take_heading(&mut self, line: &str) -> bool {
        let Some(table) = Table::of(line) else { return false };
        self.table = table;
        // Its port groups are not of the switch before, should its own row not be one.
        if !matches!(table, Table::PortGroups { .. }) {
            self.switch = None;
        }
        true
    }

    /// What comes next is of no table.
    pub fn end(&mut self) {
        *self = Tables::default();
    }

    pub fn row(&mut self, line: &str) -> Option<Row> {
        match self.table {
            Table::None => None,
            // One row, and then the switch's port groups.
            Table::Switch { numbers, has_mtu } => {
                let (name, counts, uplinks) = switch_row(line, numbers)?;
                (self.switch, self.table) = (Some(name.clone()), Table::None);
                let mtu = counts.last().filter(|_| has_mtu).and_then(|mtu| mtu.parse().ok());
                Some(Row::Switch { name, mtu, uplinks })
            }
            Table::Distributed { numbers } => {
                let (name, ..) = switch_row(line, numbers)?;
                self.table = Table::None;
                Some(Row::Distributed(name))
            }
            Table::PortGroups { between } => {
                let cells = Cells::of(line, true)?;
                let name = cells.without(between).to_owned();
                (!name.is_empty()).then(|| Row::PortGroup {
                    name,
                    switch: self.switch.clone(),
                    vlan: Vlan::parse(cells.vlan),
                })
            }
            Table::Esxcli => {
                let cells = Cells::of(line, false)?;
                let (name, switch) = name_and_switch(cells.rest)?;
                Some(Row::PortGroup { name, switch: Some(switch), vlan: Vlan::parse(cells.vlan) })
            }
            Table::Adapters => adapter(line),
        }
    }
}

/// A row, from the right: the VLAN and a count of ports, in this order or the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cells<'a> {
    rest: &'a str,
    vlan: &'a str,
}

/// A line without its last word, and that.
fn split_last(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_end();
    let at = line.rfind(char::is_whitespace)?;
    Some((line.get(..at)?, line.get(at..)?.trim_start()))
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

impl Cells<'_> {
    /// `NAME  VLAN  USED  UPLINKS` of esxcfg-vswitch, where uplinks may be missing; else esxcli's
    /// `NAME  SWITCH  CLIENTS  VLAN`.
    fn of(line: &str, is_esxcfg: bool) -> Option<Cells<'_>> {
        let (mut rest, mut last) = split_last(line)?;
        if is_esxcfg && !is_number(last) {
            (rest, last) = split_last(rest)?;
        }
        let (rest, before) = split_last(rest)?;
        let (vlan, count) = if is_esxcfg { (before, last) } else { (last, before) };
        (is_number(vlan) && is_number(count)).then_some(Cells { rest: rest.trim(), vlan })
    }
}

impl<'a> Cells<'a> {
    /// The name, in front of other columns.
    fn without(&self, columns: usize) -> &'a str {
        let mut name = self.rest;
        for _ in 0..columns {
            name = split_last(name).map_or("", |(name, _)| name.trim_end());
        }
        name
    }
}

/// Two spaces are between columns; a copy may have lost one of them.
fn name_and_switch(rest: &str) -> Option<(String, String)> {
    let (name, switch) = rest.rsplit_once("  ").or_else(|| rest.rsplit_once(char::is_whitespace))?;
    let (name, switch) = (name.trim(), switch.trim());
    (!name.is_empty() && !switch.is_empty()).then(|| (name.to_owned(), switch.to_owned()))
}

/// `NAME  PORTS  USED  CONFIGURED  MTU  UPLINKS`, where uplinks may be missing, as the MTU is on old hosts:
/// the name, the numbers, the uplinks.
fn switch_row(line: &str, numbers: usize) -> Option<(String, Vec<&str>, Vec<String>)> {
    let (rest, last) = split_last(line)?;
    let (mut rest, uplinks) = if is_number(last) { (line, "") } else { (rest, last) };
    let mut counts = Vec::new();
    for _ in 0..numbers {
        let (before, number) = split_last(rest)?;
        if !is_number(number) {
            return None;
        }
        counts.insert(0, number);
        rest = before;
    }
    let name = rest.trim();
    let uplinks = uplinks.split(',').filter(|uplink| !uplink.is_empty()).map(str::to_owned).collect();
    (numbers > 0 && !name.is_empty()).then(|| (name.to_owned(), counts, uplinks))
}

/// A word with five colons is the address, and the MTU is behind it. Letters may have been made unreadable.
fn adapter(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| word.matches(':').count() == 5)?;
    let name = (*words.first()?).to_owned();
    let mtu = words.get(at + 1).and_then(|mtu| mtu.parse().ok());
    Some(Row::Adapter { name, mac: (*words.get(at)?).to_owned(), mtu })
}
