//! Port groups of standard switches, as ESXi's tools print them. Rows are read from the right: only
//! what stands there has a form of its own, and names may be longer than their column. What is no
//! row (prompts, blanks, other tables) is passed over.

use crate::kind::{Expected, refuse_others};
use crate::text;
use crate::{Error, MOST_BYTES};

/// Port groups of a listing, at most: ESXi has 512.
const MOST: usize = 4096;

/// A port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    pub name: String,
    /// The switch that it is of. None: no line above it has one.
    pub switch: Option<String>,
    /// Or what stands there and is no VLAN: only this port group is not known then.
    pub vlan: Result<Vlan, String>,
}

/// What VMware's VLAN ID of a port group means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vlan {
    /// 0.
    None,
    Tagged(u16),
    /// 4095: guests tag.
    Trunk,
}

impl Vlan {
    fn parse(text: &str) -> Result<Vlan, String> {
        match text.parse::<u16>() {
            Ok(0) => Ok(Vlan::None),
            Ok(4095) => Ok(Vlan::Trunk),
            Ok(vlan) if vlan < 4095 => Ok(Vlan::Tagged(vlan)),
            _ => Err(text.to_owned()),
        }
    }
}

/// The port groups in the output of `esxcli network vswitch standard portgroup list` or of
/// `esxcfg-vswitch -l`.
///
/// # Errors
/// It lists none, or too many.
pub fn port_groups(source: impl AsRef<[u8]>) -> Result<Vec<PortGroup>, Error> {
    let source = source.as_ref();
    if source.len() > MOST_BYTES {
        return Err(Error::TooLong(source.len()));
    }
    refuse_others(source, Expected::PortGroups)?;
    let source = text::decoded(source, encoding_rs::UTF_8);
    let mut groups = Vec::new();
    let mut table = Table::None;
    let mut switch = None;
    for line in source.lines() {
        if let Some(heading) = Table::of(line) {
            table = heading;
            // Its port groups are not of the switch before, should its own row not be one.
            if !matches!(table, Table::PortGroups { .. }) {
                switch = None;
            }
            continue;
        }
        if groups.len() > MOST {
            return Err(Error::TooManyPortGroups(MOST));
        }
        match table {
            Table::None => {}
            // One row, and then the switch's port groups.
            Table::Switch { numbers } => {
                if let Some(name) = switch_row(line, numbers) {
                    (switch, table) = (Some(name), Table::None);
                }
            }
            Table::PortGroups { between } => {
                let row = Row::of(line, true).map(|row| (row.without(between), row.vlan));
                if let Some((name, vlan)) = row.filter(|(name, _)| !name.is_empty()) {
                    groups.push(PortGroup {
                        name: name.to_owned(),
                        switch: switch.clone(),
                        vlan: Vlan::parse(vlan),
                    });
                }
            }
            Table::Esxcli => {
                let row = Row::of(line, false).and_then(|row| Some((name_and_switch(row.rest)?, row.vlan)));
                if let Some(((name, switch), vlan)) = row {
                    groups.push(PortGroup { name, switch: Some(switch), vlan: Vlan::parse(vlan) });
                }
            }
        }
    }
    if groups.is_empty() { Err(Error::NoPortGroup) } else { Ok(groups) }
}

/// The table that a row is of, by the heading above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    /// One without port groups.
    None,
    /// Of `esxcfg-vswitch`: a switch, with so many numbers.
    Switch { numbers: usize },
    /// Of `esxcfg-vswitch`: a switch's port groups. Old hosts have columns between the name and the VLAN.
    PortGroups { between: usize },
    /// Of `esxcli`: port groups with their switches, the VLAN last.
    Esxcli,
}

impl Table {
    fn of(line: &str) -> Option<Table> {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let between = || cells.iter().position(|cell| *cell == "VLAN ID");
        match cells.as_slice() {
            ["Switch Name", numbers @ .., "Uplinks"] => Some(Table::Switch { numbers: numbers.len() }),
            ["PortGroup Name", ..] => {
                Some(between().map_or(Table::None, |at| Table::PortGroups { between: at - 1 }))
            }
            ["Name", "Virtual Switch", "Active Clients", "VLAN ID"] => Some(Table::Esxcli),
            // Distributed switches have no port groups of the host's own.
            ["DVS Name", ..] | ["DVPort ID", ..] => Some(Table::None),
            _ => None,
        }
    }
}

/// A row, from the right: the VLAN and a count of ports, in this order or the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row<'a> {
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

impl Row<'_> {
    /// `NAME  VLAN  USED  UPLINKS` of esxcfg-vswitch, where uplinks may be missing; else esxcli's
    /// `NAME  SWITCH  CLIENTS  VLAN`.
    fn of(line: &str, is_esxcfg: bool) -> Option<Row<'_>> {
        let (mut rest, mut last) = split_last(line)?;
        if is_esxcfg && !is_number(last) {
            (rest, last) = split_last(rest)?;
        }
        let (rest, before) = split_last(rest)?;
        let (vlan, count) = if is_esxcfg { (before, last) } else { (last, before) };
        (is_number(vlan) && is_number(count)).then_some(Row { rest: rest.trim(), vlan })
    }
}

impl<'a> Row<'a> {
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

/// `NAME  PORTS  USED  CONFIGURED  MTU  UPLINKS`, where uplinks may be missing, as the MTU is on old hosts.
fn switch_row(line: &str, numbers: usize) -> Option<String> {
    let (rest, last) = split_last(line)?;
    let mut rest = if is_number(last) { line } else { rest };
    for _ in 0..numbers {
        let (before, number) = split_last(rest)?;
        if !is_number(number) {
            return None;
        }
        rest = before;
    }
    let name = rest.trim();
    (numbers > 0 && !name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESXCLI: &str = "\
Name                    Virtual Switch  Active Clients  VLAN ID
----------------------  --------------  --------------  -------
Management Network      vSwitch0                     1        0
VM Network              vSwitch0                     3       10
Trünk                   vSwitch1                     0     4095
";
    const ESXCFG: &str = "\
Switch Name      Num Ports   Used Ports  Configured Ports  MTU     Uplinks   \n\
vSwitch0         2560        6           128               1500    vmnic0    \n\
\n\
  PortGroup Name                            VLAN ID  Used Ports  Uplinks   \n\
  VM Network                                10       3           vmnic0    \n\
  Management Network                        0        1           vmnic0    \n\
\n\
Switch Name      Num Ports   Used Ports  Configured Ports  MTU     Uplinks   \n\
vSwitch1         2560        1           128               9000              \n\
\n\
  PortGroup Name                            VLAN ID  Used Ports  Uplinks   \n\
  storage                                   4095     0                     \n";

    fn listed(text: &str) -> Vec<(String, String, Vlan)> {
        let listed = port_groups(text).unwrap().into_iter();
        listed.map(|group| (group.name, group.switch.unwrap_or_default(), group.vlan.unwrap())).collect()
    }

    #[test]
    fn both_tables_are_read() {
        let of = |name: &str, switch: &str, vlan| (name.to_owned(), switch.to_owned(), vlan);
        assert_eq!(
            listed(ESXCLI),
            [
                of("Management Network", "vSwitch0", Vlan::None),
                of("VM Network", "vSwitch0", Vlan::Tagged(10)),
                of("Trünk", "vSwitch1", Vlan::Trunk)
            ]
        );
        assert_eq!(
            listed(ESXCFG),
            [
                of("VM Network", "vSwitch0", Vlan::Tagged(10)),
                of("Management Network", "vSwitch0", Vlan::None),
                of("storage", "vSwitch1", Vlan::Trunk)
            ]
        );
    }

    #[test]
    fn names_may_be_longer_than_their_column() {
        let of = |name: &str, vlan| (name.to_owned(), "vSwitch 0".to_owned(), vlan);
        let text = "\
~ # esxcfg-vswitch -l
    Switch Name      Num Ports   Used Ports  Configured Ports  MTU     Uplinks
    vSwitch 0         1536        3           128               1500    vmnic1,vmnic0

      PortGroup Name        VLAN ID  Used Ports  Uplinks
      Standard Switch - L2VPN - Trunk  4095     0           vmnic1,vmnic0
      Customer networks room 12 b  3120     0           vmnic1
      room 12  7     0
      12  7     0

DVS Name         Num Ports   Used Ports  Configured Ports  MTU     Uplinks
dvSwitch 1         1536        3           128               1500    vmnic1
  DVPort ID           In Use      Client
  130                 1           vmnic0
  131 2 3  4
~ #
";
        assert_eq!(
            listed(text),
            [
                of("Standard Switch - L2VPN - Trunk", Vlan::Trunk),
                of("Customer networks room 12 b", Vlan::Tagged(3120)),
                of("room 12", Vlan::Tagged(7)),
                of("12", Vlan::Tagged(7)),
            ]
        );
        let old = "Switch Name    Num Ports   Used Ports  Configured Ports  Uplinks\n\
                   vSwitch0       64          4           64                vmnic0\n\
                   PortGroup Name      Internal ID    VLAN ID  Used Ports  Uplinks\n\
                   Service Console     portgroup0     0        1           vmnic0\n";
        assert_eq!(listed(old), [("Service Console".to_owned(), "vSwitch0".to_owned(), Vlan::None)]);
        // Copied without its blanks, and with a prompt behind it.
        let squeezed =
            ESXCLI.replace("Trünk                   vSwitch1", "a b vSwitch1") + "\n[root@esx:~]\n";
        let names: Vec<String> = listed(&squeezed).into_iter().map(|(name, _, _)| name).collect();
        assert_eq!(names, ["Management Network", "VM Network", "a b"]);
    }

    #[test]
    fn what_is_no_table_is_refused_and_what_is_no_vlan_is_kept_as_it_is() {
        assert_eq!(port_groups("hello\n"), Err(Error::NoPortGroup));
        let bad = port_groups(ESXCLI.replace("4095", "5000")).unwrap();
        assert_eq!((bad.len(), bad[2].vlan.clone()), (3, Err("5000".into())));
    }
}
