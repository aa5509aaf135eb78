//! The `vmlane` command: one file a subcommand under `cmd/`, this file only dispatches.
// Doc comments are the text of --help, where brackets mean what they mean in usage lines.
#![allow(rustdoc::broken_intra_doc_links)]

mod cmd;

pub(crate) use vmlane_bench::row;

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches, Parser};
use vmlane_daemon::extras::Extras;

/// On the man page; `vmlane --help` is a list of commands.
const EXAMPLES: &str = "Examples:
  vmlane demo                                                 what it does: two VMs, measured
  vmlane check --config ./vmlane.toml
  vmlane daemon --config ./vmlane.toml --runtime-dir ./run
  eval \"qemu-system-x86_64 -machine q35 $(vmlane attach web --for qemu) web.qcow2\"
  vmlane status
  vmlane vm show web
  vmlane top
  echo hello | vmlane connect web 5000
  vmlane doctor web db                                        why is the network between two VMs slow?";

/// Two VMs on one Linux host talk at memory speed, with the drivers they already have.
#[derive(Debug, Parser)]
#[command(name = "vmlane", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
}

/// Carries out the command line of this process. `extras` is what its daemon has.
pub fn main(extras: Extras) -> ExitCode {
    if cmd::completions::complete() {
        return ExitCode::SUCCESS;
    }
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command.run(extras) {
        Ok(code) => code,
        Err(error) => {
            vmlane_daemon::log::print_error(&format!("{error:#}"));
            ExitCode::from(1)
        }
    }
}

/// The whole command line.
fn command() -> Command {
    let command = Cli::command().mut_subcommand("bench", cmd::bench::with_options);
    cmd::headings::with_headings(cmd::completions::with_names(with_paragraphs(command), ""))
}

/// The text after the options has line breaks where the source does; a terminal of another width would show
/// single words on lines of their own. So the lines of a paragraph are joined, and clap breaks them anew.
fn with_paragraphs(command: Command) -> Command {
    let command = command.mut_subcommands(with_paragraphs);
    match command.get_after_help().map(|text| join_paragraphs(&text.to_string())) {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// Joins lines that are prose. Those of lists and examples begin with a space, those above them end with a
/// colon.
fn join_paragraphs(text: &str) -> String {
    let mut joined = String::new();
    let mut in_prose = false;
    for line in text.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        if !joined.is_empty() {
            joined.push(if in_prose && is_prose { ' ' } else { '\n' });
        }
        joined += line;
        in_prose = is_prose && !line.ends_with(':');
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every subcommand that is shown, with the words that lead to it.
    fn commands(command: &Command, path: &str, all: &mut Vec<(String, Command)>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            all.push((path.clone(), sub.clone()));
            commands(sub, &path, all);
        }
    }

    #[test]
    fn help_describes_every_argument() {
        let mut root = Cli::command();
        root.build();
        let mut all = Vec::new();
        commands(&root, "vmlane", &mut all);
        assert!(all.len() > 30, "{}", all.len());
        let mut without = Vec::new();
        for (path, command) in &all {
            let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
            let empty = arguments
                .filter(|argument| argument.get_help().is_none_or(|help| help.to_string().is_empty()));
            without.extend(empty.map(|argument| format!("{path}: {}", argument.get_id())));
        }
        assert!(without.is_empty(), "no help:\n{}", without.join("\n"));
    }

    /// The words are those that `make lint` finds in identifiers and in the log.
    #[test]
    fn help_is_in_the_words_of_the_field() {
        let list = include_str!("../../../scripts/words.txt").lines();
        let list = list.filter(|line| !line.starts_with(['#']) && !line.starts_with("allow "));
        let words: Vec<&str> =
            list.filter_map(|line| line.split_once(": ")).flat_map(|(words, _)| words.split(' ')).collect();
        let mut root = Cli::command();
        root.build();
        let mut all = vec![("vmlane".to_owned(), root.clone())];
        commands(&root, "vmlane", &mut all);
        let mut found = Vec::new();
        for (path, mut command) in all {
            let text = command.render_long_help().to_string().to_lowercase();
            let used = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| words.contains(word));
            found.extend(used.map(|word| format!("{path}: {word}")));
        }
        assert!(words.len() > 40 && found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn every_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        cmd::man_pages::write(folder.path()).unwrap();
        let mut root = Cli::command();
        root.build();
        let mut all = vec![("vmlane".to_owned(), root.clone())];
        commands(&root, "vmlane", &mut all);
        for (path, _) in &all {
            let page = folder.path().join(format!("{}.1", path.replace(' ', "-")));
            let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(text.contains(".SH SYNOPSIS"), "{path}: {text}");
        }
        let pages = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(pages, all.len() + 1, "hidden commands have none; the configuration has one");
    }

    #[test]
    fn paragraphs_have_no_line_breaks_of_their_own() {
        let text = "Examples:\n  vmlane top   live\n  vmlane top --json\n\nA line that is\nbroken in two\nand three.\n\nList:\nwords";
        let joined = "Examples:\n  vmlane top   live\n  vmlane top --json\n\nA line that is broken in two and three.\n\nList:\nwords";
        assert_eq!(join_paragraphs(text), joined);

        let mut all = Vec::new();
        let mut root = command();
        root.build();
        commands(&root, "vmlane", &mut all);
        for (path, command) in &all {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert_eq!(join_paragraphs(&text), text, "{path}");
        }
    }
}
