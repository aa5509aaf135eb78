//! `vmlane --help`: the commands under headings, which clap has for options only.

use clap::Command;

/// Headings with their commands, in the order in which they are shown.
const HEADINGS: [(&str, &[&str]); 7] = [
    ("Serve", &["daemon", "check", "import", "keeper", "completions"]),
    ("Attach", &["attach", "libvirt-hook"]),
    ("Watch", &["status", "top", "ports", "stats", "capture", "metrics"]),
    ("Change", &["vm", "reload", "release", "link", "wire", "mirror", "route", "ovn"]),
    ("Sockets", &["connect", "listen", "run"]),
    ("Measure", &["doctor", "bench"]),
    ("Lab", &["lab", "demo"]),
];

/// What `attach` does, by names of their own: for scripts that have them.
const OLDER: [&str; 5] =
    ["qemu-args", "libvirt-xml", "proxmox-args", "cloud-hypervisor-args", "firecracker-config"];

/// The whole command line, with its own help.
pub fn with_headings(command: Command) -> Command {
    let template = template(&command);
    command.help_template(template)
}

/// As clap's own, but for the list of commands.
fn template(command: &Command) -> String {
    let style = *command.get_styles().get_header();
    let name = *command.get_styles().get_literal();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (heading, commands) in HEADINGS {
        text += &format!("{style}{heading}:{style:#}\n");
        for command in commands.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format!("  {name}{:12}{name:#}  {about}\n", command.get_name());
        }
        if heading == "Attach" {
            let (first, rest) = OLDER.split_at(3);
            text += &format!("  Older names: {},\n    {}\n", first.join(", "), rest.join(", "));
        }
        text += "\n";
    }
    // As clap has them in short help, also in long help.
    text += &format!("{style}Options:{style:#}\n");
    for (option, about) in [("-h, --help", "Print help"), ("-V, --version", "Print version")] {
        text += &format!("  {name}{option:13}{name:#}  {about}\n");
    }
    text += "\n";
    text + "`vmlane COMMAND --help` explains a command, with examples.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_has_one_heading_and_lines_fit_a_terminal() {
        let mut root = crate::command().term_width(80);
        let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
        let mut known: Vec<String> = commands.map(|command| command.get_name().to_owned()).collect();
        let headed = HEADINGS.iter().flat_map(|(_, commands)| commands.iter().chain(&[]));
        let mut listed: Vec<&str> = headed.chain(&OLDER).copied().collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(known, listed);
        let (short, long) = (root.render_help().to_string(), root.render_long_help().to_string());
        assert_eq!(short, long);
        for line in short.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for word in known.iter().map(String::as_str).chain(["Serve:", "Lab:", "--version"]) {
            assert!(short.contains(word), "{word} is not in {short}");
        }
    }
}
