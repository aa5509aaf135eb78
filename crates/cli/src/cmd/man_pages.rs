//! `vmlane man-pages`: for packages (`make install`). Pages of commands are their --help, with its examples
//! in a section; vmlane.toml(5) is the table of all keys.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use vmlane_config::reference::{Row, Section, sections};

/// What a page has of files, by the option that names another one.
const FILES: [(&str, &str, &str); 5] = [
    ("config", vmlane_config::DEFAULT_PATH, "The configuration: see vmlane.toml(5)."),
    (
        "config",
        "/etc/vmlane/conf.d/*.toml",
        "Further files of the configuration, read in the order of their names.",
    ),
    (
        "runtime_dir",
        "/run/vmlane",
        "Sockets of the daemon ($XDG_RUNTIME_DIR/vmlane for users other than root).",
    ),
    ("state_dir", "/var/lib/vmlane/vms.d", "VMs that were added while the daemon runs."),
    ("lab", "${XDG_CACHE_HOME:-~/.cache}/vmlane", "QEMU, kernels and the guests' image."),
];

/// Exit statuses of commands that have no others.
const STATUS: &str = "0: success; 1: the command failed; 2: the command line is invalid.";

/// Writes a man page for each command, and one for the configuration
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory that exists
    directory: PathBuf,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        write(&self.directory)
            .with_context(|| format!("writing man pages into {}", self.directory.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes all pages.
pub fn write(directory: &Path) -> std::io::Result<()> {
    let mut root = crate::command().disable_help_subcommand(true);
    root.build();
    command_pages(directory, &root, &Text::default())?;
    std::fs::write(directory.join("vmlane.toml.5"), configuration_page())
}

/// The page of a command, and those of all below it.
fn command_pages(directory: &Path, command: &Command, above: &Text) -> std::io::Result<()> {
    let path = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let text = Text::of(command, &path, above);
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        command_pages(directory, sub, &text)?;
    }
    let name = path.replace(' ', "-");
    std::fs::write(directory.join(format!("{name}.1")), page(command, &path, &text)?)
}

/// What stands behind the options in a command's --help.
#[derive(Default)]
struct Text {
    examples: Vec<String>,
    /// Paragraphs, and lists, whose lines begin with a space.
    notes: Vec<String>,
    status: Vec<String>,
}

impl Text {
    /// `above`: that of the command which it is below; its examples of this command stand in for its own.
    fn of(command: &Command, path: &str, above: &Text) -> Text {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let mut text = Text::default();
        let mut in_examples = false;
        for line in help.lines() {
            in_examples = line == "Examples:" || (in_examples && !line.is_empty());
            match line {
                "" | "Examples:" => {}
                _ if in_examples => text.examples.push(example(line.trim(), path)),
                _ if line.starts_with("Exit code") => text.status.push(line.to_owned()),
                _ => text.notes.push(line.to_owned()),
            }
        }
        if text.examples.is_empty() {
            let words = format!(" {path} ");
            let has = |line: &&String| format!(" {line} ").contains(&words);
            text.examples = above.examples.iter().filter(has).cloned().collect();
        }
        text
    }
}

/// An example may leave its command away.
fn example(line: &str, path: &str) -> String {
    if line.starts_with("--") { format!("{path} {line}") } else { line.to_owned() }
}

fn page(command: &Command, path: &str, text: &Text) -> std::io::Result<Vec<u8>> {
    let man =
        Man::new(command.clone()).source(format!("vmlane {}", env!("CARGO_PKG_VERSION"))).manual("vmlane");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    status(&mut rest, &text.status);
    let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
    let is_root = !path.contains(' ');
    files(&mut rest, |id| is_root || has(id) || (id == "lab" && path.starts_with("vmlane lab")));
    notes(&mut rest, &text.notes);
    examples(&mut rest, text.examples.iter().map(String::as_str));
    see_also(&mut rest, command, path, is_root || has("config") || has("runtime_dir"));
    page.extend(rest.render().into_bytes());
    Ok(page)
}

fn notes(page: &mut Roff, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    page.control("SH", ["NOTES"]);
    let mut in_list = false;
    for line in notes {
        let is_list = line.starts_with(' ');
        match (in_list, is_list) {
            (false, true) => _ = page.control("nf", []),
            (true, false) => _ = page.control("fi", []),
            _ => {}
        }
        if !is_list {
            page.control("PP", []);
        }
        page.text([roman(line.as_str())]);
        in_list = is_list;
    }
    if in_list {
        page.control("fi", []);
    }
}

fn examples<'e>(page: &mut Roff, lines: impl Iterator<Item = &'e str>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    page.control("SH", ["EXAMPLES"]).control("nf", []);
    lines.for_each(|line| _ = page.text([roman(line)]));
    page.control("fi", []);
}

/// A text that lists all of them stands alone.
fn status(page: &mut Roff, given: &[String]) {
    page.control("SH", ["EXIT STATUS"]);
    if !given.iter().any(|line| line.starts_with("Exit codes:")) {
        page.text([roman(STATUS)]);
    }
    for line in given {
        page.control("PP", []).text([roman(line.as_str())]);
    }
}

fn files(page: &mut Roff, has: impl Fn(&str) -> bool) {
    let mut rows = FILES.iter().filter(|(id, ..)| has(id)).peekable();
    if rows.peek().is_none() {
        return;
    }
    page.control("SH", ["FILES"]);
    for (_, path, meaning) in rows {
        page.control("TP", []).text([bold(*path)]).text([roman(*meaning)]);
    }
}

fn see_also(page: &mut Roff, command: &Command, path: &str, is_configured: bool) {
    let above = path.rsplit_once(' ').map(|(above, _)| format!("{}(1)", above.replace(' ', "-")));
    let below = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let below = below.map(|sub| format!("{}-{}(1)", path.replace(' ', "-"), sub.get_name()));
    let format = is_configured.then(|| "vmlane.toml(5)".to_owned());
    let pages: Vec<String> = above.into_iter().chain(below).chain(format).collect();
    page.control("SH", ["SEE ALSO"]).text([roman(pages.join(", "))]);
}

/// vmlane.toml(5).
fn configuration_page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["vmlane.toml", "5", "", concat!("vmlane ", env!("CARGO_PKG_VERSION")), "vmlane"]);
    page.control("SH", ["NAME"]).text([roman("vmlane.toml - configuration of vmlane")]);
    page.control("SH", ["SYNOPSIS"]);
    for (_, path, _) in FILES.iter().filter(|(id, ..)| *id == "config") {
        page.control("TP", []).text([bold(*path)]);
    }
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman("The files are TOML; unknown keys are errors. `vmlane check` validates them, and `vmlane reload` applies changes while VMs run. Behind each key: its values, its default, and whether a reload applies a change. A restart of the VM: the change is refused while a VMM is attached. Sizes are numbers of bytes, or texts with k, M or G (powers of 1024; in rates, of 1000).")]);
    page.control("SH", ["KEYS"]);
    for section in sections() {
        keys(&mut page, &section);
    }
    files(&mut page, |id| id == "config" || id == "state_dir");
    examples(&mut page, EXAMPLE.lines());
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("vmlane-daemon(1), vmlane-check(1), vmlane-reload(1), vmlane-vm(1)")]);
    page.render()
}

const EXAMPLE: &str = "[[vm]]
name = \"web\"
cid = 3
nic = [ { model = \"virtio-net\" } ]

[[uplink]]
name = \"lan\"
tap = \"vmlane0\"";

fn keys(page: &mut Roff, section: &Section) {
    page.control("SS", [section.places.join(", ").as_str()]);
    page.text(spans(&section.meaning));
    for Row { name, meaning, values, default, applied } in &section.rows {
        page.control("TP", []).text([bold(*name)]).text(spans(meaning));
        page.control("br", []);
        page.text(spans(&format!("Value: {values}. Default: {default}. Applied by reload: {applied}.")));
    }
}

/// Markdown's code is bold.
fn spans(text: &str) -> Vec<Inline> {
    let part = |(number, part): (usize, &str)| if number % 2 == 0 { roman(part) } else { bold(part) };
    text.split('`').enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use super::*;

    fn pages() -> Vec<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: PathBuf| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())
        };
        files.map(read).collect()
    }

    #[test]
    fn every_page_has_examples_statuses_and_other_pages_that_exist() {
        let pages = pages();
        let mut wrong = Vec::new();
        for (name, text) in pages.iter().filter(|(name, _)| name.ends_with(".1")) {
            let wanted = ["SYNOPSIS", "EXAMPLES", "\"EXIT STATUS\"", "\"SEE ALSO\""];
            let missing = wanted.iter().filter(|section| !text.contains(&format!("\n.SH {section}\n")));
            wrong.extend(missing.map(|section| format!("{name} has no {section}")));
            let others = text.rsplit_once("ALSO\"\n").unwrap().1.trim().replace("\\-", "-");
            for other in others.split(", ") {
                let file = other.replace('(', ".").replace(')', "");
                if !pages.iter().any(|(name, _)| *name == file) {
                    wrong.push(format!("{name}: there is no page {other}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(pages.iter().any(|(_, text)| text.contains("71 see above")));
    }

    #[test]
    fn the_page_of_the_configuration_has_every_key() {
        let (_, text) = pages().into_iter().find(|(name, _)| name == "vmlane.toml.5").unwrap();
        for row in sections().iter().flat_map(|section| &section.rows) {
            assert!(text.contains(&format!("\\fB{}\\fR\n", row.name.replace('-', "\\-"))), "{}", row.name);
        }
    }

    /// The formatter of `man`, where it is installed.
    #[test]
    fn groff_formats_every_page_without_a_warning() {
        for (name, text) in pages() {
            let mut groff = std::process::Command::new("groff");
            groff.args(["-man", "-ww", "-Tutf8", "-z"]).stdin(Stdio::piped()).stderr(Stdio::piped());
            let Ok(mut groff) = groff.spawn() else { return };
            groff.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            let printed = String::from_utf8(groff.wait_with_output().unwrap().stderr).unwrap();
            assert!(printed.is_empty(), "{name}: {printed}");
        }
    }
}
