//! Port groups of standard switches, as ESXi's tools print them: tables whose columns are told by their heading.

use crate::{Error, MOST_BYTES};

/// Port groups of one host, at most.
const MOST: usize = 4096;

/// A port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    pub name: String,
    /// The switch that it is of.
    pub switch: String,
    pub vlan: Vlan,
}

/// What VMware's VLAN ID of a port group says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// 0.
    None,
    Tagged(u16),
    /// 4095: guests tag.
    Trunk,
}

impl Vlan {
    /// As vmlane's configuration has it, 0 for none. None: all of them.
    pub(crate) fn number(self) -> Option<u16> {
        match self {
            Vlan::None => Some(0),
            Vlan::Tagged(vlan) => Some(vlan),
            Vlan::Trunk => None,
        }
    }

    fn parse(text: &str) -> Option<Vlan> {
        match text.parse::<u16>().ok()? {
            0 => Some(Vlan::None),
            4095 => Some(Vlan::Trunk),
            vlan => (vlan < 4095).then_some(Vlan::Tagged(vlan)),
        }
    }
}

/// The port groups in the output of `esxcli network vswitch standard portgroup list` or of `esxcfg-vswitch -l`.
///
/// # Errors
/// It lists none, or a VLAN is no number of one; the line is named.
pub fn port_groups(text: &str) -> Result<Vec<PortGroup>, Error> {
    if text.len() > MOST_BYTES {
        return Err(Error::TooLong(text.len()));
    }
    let lines: Vec<&str> = text.lines().collect();
    let esxcli = lines.windows(2).position(
        |two| matches!(two, [heading, rule] if heading.starts_with("Name ") && rule.starts_with("--")),
    );
    let found = match esxcli {
        Some(at) => of_esxcli(&lines, at)?,
        None => of_esxcfg(&lines)?,
    };
    if found.is_empty() { Err(Error::NoPortGroup) } else { Ok(found) }
}

/// The columns under a line of dashes: where each begins and ends, in characters.
fn columns(rule: &str) -> Vec<(usize, usize)> {
    let mut columns = Vec::new();
    let mut begin = None;
    for (at, letter) in rule.chars().chain([' ']).enumerate() {
        match (letter, begin) {
            ('-', None) => begin = Some(at),
            ('-', Some(_)) => {}
            (_, Some(from)) => {
                columns.push((from, at));
                begin = None;
            }
            (_, None) => {}
        }
    }
    columns
}

fn cell(line: &str, (from, to): (usize, usize)) -> String {
    let cell: String = line.chars().skip(from).take(to - from).collect();
    cell.trim().to_owned()
}

fn of_esxcli(lines: &[&str], heading: usize) -> Result<Vec<PortGroup>, Error> {
    let (Some(names), Some(rule)) = (lines.get(heading), lines.get(heading + 1)) else {
        return Ok(Vec::new());
    };
    let columns = columns(rule);
    let column = |name: &str| columns.iter().copied().find(|column| cell(names, *column) == name);
    let (Some(name), Some(switch), Some(vlan)) =
        (column("Name"), column("Virtual Switch"), column("VLAN ID"))
    else {
        return Err(Error::line(heading + 1, "the columns Name, Virtual Switch and VLAN ID are expected"));
    };
    let mut groups = Vec::new();
    for (number, line) in lines.iter().enumerate().skip(heading + 2).take(MOST) {
        if line.trim().is_empty() {
            break;
        }
        let text = cell(line, vlan);
        let vlan = Vlan::parse(&text).ok_or_else(|| {
            Error::line(number + 1, format!("VLAN ID {text:?} is no number from 0 to 4095"))
        })?;
        groups.push(PortGroup { name: cell(line, name), switch: cell(line, switch), vlan });
    }
    Ok(groups)
}

/// A table for each switch; its name stands under the first heading, its port groups under the second.
fn of_esxcfg(lines: &[&str]) -> Result<Vec<PortGroup>, Error> {
    let mut groups = Vec::new();
    let (mut switch, mut vlan_at, mut names_switch) = (String::new(), None, false);
    for (number, line) in lines.iter().enumerate() {
        if line.starts_with("Switch Name") {
            (names_switch, vlan_at) = (true, None);
        } else if line.trim_start().starts_with("PortGroup Name") {
            vlan_at = line.find("VLAN ID").map(|at| line.get(..at).unwrap_or_default().chars().count());
        } else if line.starts_with("DVS Name") {
            // Distributed switches have no port groups of the host's own.
            vlan_at = None;
        } else if line.trim().is_empty() {
            continue;
        } else if names_switch {
            switch = line.split_whitespace().next().unwrap_or_default().to_owned();
            names_switch = false;
        } else if let Some(at) = vlan_at
            && groups.len() < MOST
        {
            let rest: String = line.chars().skip(at).collect();
            let text = rest.split_whitespace().next().unwrap_or_default();
            let vlan = Vlan::parse(text).ok_or_else(|| {
                Error::line(number + 1, format!("VLAN ID {text:?} is no number from 0 to 4095"))
            })?;
            let name: String = line.chars().take(at).collect();
            groups.push(PortGroup { name: name.trim().to_owned(), switch: switch.clone(), vlan });
        }
    }
    Ok(groups)
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
        port_groups(text).unwrap().into_iter().map(|group| (group.name, group.switch, group.vlan)).collect()
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
    fn what_is_no_table_is_refused() {
        assert_eq!(port_groups("hello\n"), Err(Error::NoPortGroup));
        let bad = ESXCLI.replace("4095", "5000");
        assert_eq!(
            port_groups(&bad).unwrap_err().to_string(),
            "line 5: VLAN ID \"5000\" is no number from 0 to 4095"
        );
    }
}
