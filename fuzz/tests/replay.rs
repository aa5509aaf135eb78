//! Every input that is committed goes through its target, without libFuzzer: those of `corpus/`, and those of
//! `crashes/`, with which a target failed once. Each target has a process of its own, because some check
//! all of their descriptors, and C ends with `abort`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};

use libtest_mimic::{Arguments, Failed, Trial};
use vmlane_fuzz::{TARGETS, target};
use vmlane_testkit::{LONGEST, run};

/// Names the target of a process that a trial starts.
const TARGET: &str = "VMLANE_REPLAY_TARGET";

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(TARGET) {
        replay(&name);
        return ExitCode::SUCCESS;
    }
    let targets = TARGETS.iter().map(|(name, _)| Trial::test(*name, move || in_a_process(name)));
    let names = Trial::test("every_file_and_folder_is_of_a_target", names);
    libtest_mimic::run(&Arguments::from_args(), targets.chain([names]).collect()).exit_code()
}

/// What a folder of this package has, in its order; nothing if there is none.
fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// None is left behind, or without its line in the list and in SECURITY.md.
fn names() -> Result<(), Failed> {
    for folder in ["src/targets", "corpus", "crashes"] {
        let paths = entries(folder);
        assert!(!paths.is_empty(), "nothing is in {folder}");
        for path in paths {
            let name = path.file_stem().expect("a name");
            assert!(TARGETS.iter().any(|(target, _)| name == *target), "{} is of no target", path.display());
        }
    }
    let security = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../SECURITY.md"))?;
    for (target, _) in TARGETS {
        assert!(security.contains(&format!("| `{target}` |")), "SECURITY.md, Tests, lacks {target}");
    }
    Ok(())
}

fn in_a_process(name: &str) -> Result<(), Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(TARGET, name);
    let ran = run(command);
    if ran.code == 0 {
        return Ok(());
    }
    let input = ran.out.lines().last().unwrap_or("no input");
    Err(format!("target {name} failed with {input}\n{}", ran.err).into())
}

/// Reports which input comes, and gives it to the target.
fn replay(name: &str) {
    // As under libFuzzer, a panic is a fault, even in a thread that no one asks, or if something catches it.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let (begin, begun) = mpsc::channel();
    std::thread::spawn(move || {
        let end = std::iter::repeat_with(|| begun.recv_timeout(LONGEST)).find_map(Result::err);
        assert_eq!(end, Some(RecvTimeoutError::Disconnected), "an input takes longer than {LONGEST:?}");
    });
    let target = target(name);
    println!("the empty input");
    target(&[]);
    for path in ["corpus", "crashes"].into_iter().flat_map(|kind| entries(Path::new(kind).join(name))) {
        println!("{}", path.display());
        begin.send(()).expect("a thread that checks the time");
        target(&std::fs::read(path).expect("an input"));
    }
}
