//! The exit codes of the commands: 0 success, 1 the thing failed, 2 usage (clap's own), and those below. The
//! guide has them in a table (docs/guide/troubleshooting.md), a command's --help those that it has beyond
//! these three.

/// The request is invalid, as is a command line that clap refuses.
pub const USAGE: u8 = 2;
/// Something could not be examined, measured, tried or restored.
pub const NOT_EXAMINED: u8 = 3;
/// The configuration is wrong or cannot be read.
pub const CONFIGURATION: u8 = vmlane_config::EXIT_CODE;

#[cfg(test)]
mod tests {
    use super::*;

    /// As the guide writes them, each with its commands.
    fn beyond() -> [(String, &'static [&'static str]); 5] {
        [
            (NOT_EXAMINED.to_string(), &["doctor"]),
            (vmlane_daemon::VIOLATION.to_string(), &["daemon"]),
            (CONFIGURATION.to_string(), &["check", "daemon", "ovn run", "route run"]),
            ("128 + N".into(), &["demo", "lab run"]),
            ("any".into(), &["lab exec", "run"]),
        ]
    }

    #[test]
    fn the_table_of_the_guide_has_the_codes_and_the_commands_that_use_them() {
        let page = include_str!("../../../../docs/guide/troubleshooting.md");
        let rows = page.split("| exit code | meaning | commands |\n").nth(1).expect("a table of exit codes");
        let rows = rows.lines().skip(1).take_while(|line| line.starts_with('|'));
        let rows: Vec<(String, String)> = rows
            .map(|row| {
                let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
                (cells.next().expect("a code").to_owned(), cells.last().expect("commands").to_owned())
            })
            .collect();
        let usual = ["0", "1", &USAGE.to_string()].map(|code| (code.to_owned(), "all".to_owned()));
        let beyond = beyond().map(|(code, commands)| {
            let commands: Vec<String> = commands.iter().map(|command| format!("`{command}`")).collect();
            (code, commands.join(", "))
        });
        assert_eq!(rows, [&usual[..], &beyond[..]].concat());
    }

    #[test]
    fn the_help_of_a_command_names_its_codes_beyond_the_usual_ones() {
        for (code, commands) in beyond() {
            for path in commands {
                let mut command = crate::command();
                for word in path.split(' ') {
                    command = command.find_subcommand(word).expect("a command").clone();
                }
                let help = command.render_long_help().to_string();
                let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
                let number = if code == "any" { "xit code" } else { &code };
                assert!(help.contains("xit code") && help.contains(number), "{path}: {code}: {help}");
            }
        }
    }
}
