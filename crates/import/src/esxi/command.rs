//! Lines of a listing that are commands: they name what the lines below them are about. They have a prompt in
//! front of them, or the `+` of a shell that prints what it runs.

/// A command, and what it was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub prints: Prints,
    pub subject: Option<Subject>,
    /// As it was written, for notes.
    pub text: String,
}

/// What is expected below a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prints {
    /// Tables, records or JSON of switches, port groups, policies and adapters.
    Networks,
    NetDvs,
    /// Nothing that is read.
    Other,
}

/// Whose policies follow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Switch(String),
    PortGroup(String),
}

/// What a line may have in front of a command, as its last letter.
const PROMPTS: [char; 6] = ['#', '$', ']', '+', '>', '%'];
/// The commands that are read, without options.
const READ: [&str; 10] = [
    "network vswitch standard list",
    "network vswitch standard portgroup list",
    "network vswitch standard policy security get",
    "network vswitch standard policy shaping get",
    "network vswitch standard policy failover get",
    "network vswitch standard portgroup policy security get",
    "network vswitch standard portgroup policy shaping get",
    "network vswitch standard portgroup policy failover get",
    "network vswitch dvs vmware list",
    "network nic list",
];

/// What may follow a name without quotes.
const ENDS: [&str; 7] = [" --", " -p", " -v", " |", " >", " 2>", ";"];

impl Command {
    /// The command of a line, if it is one.
    pub fn of(line: &str) -> Option<Command> {
        ["esxcli ", "esxcfg-", "net-dvs", "vim-cmd "].into_iter().find_map(|program| {
            let at = line.find(program)?;
            let (before, rest) = line.split_at_checked(at)?;
            // A path in front of it: /usr/lib/vmware/bin/net-dvs.
            let path = before.rfind(char::is_whitespace).map_or(0, |space| space + 1);
            let (before, path) = before.split_at_checked(path)?;
            let is_prompt = before.trim_end().is_empty() || before.trim_end().ends_with(PROMPTS);
            let is_path = path.is_empty() || path.ends_with('/') || path.ends_with(PROMPTS);
            (is_prompt && is_path).then(|| Command::parse(rest.trim_end()))
        })
    }

    fn parse(text: &str) -> Command {
        let words: Vec<&str> = text.split_whitespace().collect();
        // Global options stand in front of the names, those of the command behind them.
        let names = words.iter().skip(1).skip_while(|word| word.starts_with('-'));
        let names: Vec<&str> =
            names.copied().take_while(|word| !word.starts_with(['-', '|', '>', ';'])).collect();
        let prints = match words.first() {
            Some(&"esxcfg-vswitch") => Prints::Networks,
            Some(&"net-dvs") => Prints::NetDvs,
            Some(&"esxcli") if READ.contains(&names.join(" ").as_str()) => Prints::Networks,
            _ => Prints::Other,
        };
        Command { prints, subject: subject(text), text: text.to_owned() }
    }
}

fn subject(text: &str) -> Option<Subject> {
    let of = |options: [&str; 2]| options.into_iter().find_map(|option| argument(text, option));
    let group = of([" --portgroup-name", " -p"]).map(Subject::PortGroup);
    group.or_else(|| of([" --vswitch-name", " -v"]).map(Subject::Switch))
}

/// What follows an option. Without quotes, it is all up to the next option: names have blanks in them.
fn argument(text: &str, option: &str) -> Option<String> {
    let (_, rest) = text.split_once(option)?;
    let rest = rest.strip_prefix(['=', ' '])?.trim();
    let value = match rest.chars().next()? {
        quote @ ('"' | '\'') => rest.get(1..)?.split(quote).next()?,
        _ => {
            let end = ENDS.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            rest.get(..end)?
        }
    };
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_behind_prompts_with_their_subjects() {
        let group = |name: &str| Some(Subject::PortGroup(name.into()));
        let switch = |name: &str| Some(Subject::Switch(name.into()));
        const SECURITY: &str = "esxcli network vswitch standard portgroup policy security get";
        for (line, prints, subject) in [
            ("[root@esx1:~] esxcli network vswitch standard list", Prints::Networks, None),
            ("~ # esxcfg-vswitch -l", Prints::Networks, None),
            ("+ esxcli --debug --formatter=json network nic list", Prints::Networks, None),
            (&format!("+ {SECURITY} -p VM Network"), Prints::Networks, group("VM Network")),
            (&format!("$ {SECURITY} -p 'a -v b' 2>/dev/null"), Prints::Networks, group("a -v b")),
            (&format!("{SECURITY} --portgroup-name=\"x\""), Prints::Networks, group("x")),
            (
                "# esxcli network vswitch standard policy failover get -v vSwitch0",
                Prints::Networks,
                switch("vSwitch0"),
            ),
            ("~ # /usr/lib/vmware/bin/net-dvs -l | less", Prints::NetDvs, None),
            ("[root@esx1:~] esxcli network ip interface list", Prints::Other, None),
            ("vim-cmd hostsvc/net/info", Prints::Other, None),
        ] {
            let command = Command::of(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((command.prints, command.subject), (prints, subject), "{line}");
        }
        for line in ["Uplinks: vmnic0", "the output of esxcli network", "VM esxcli x  vSwitch0  1  0", ""] {
            assert_eq!(Command::of(line), None, "{line}");
        }
    }
}
