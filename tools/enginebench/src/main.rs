//! `make bench`: the engine without VMs. Synthetic VMCI guests (the driver that the device's own tests
//! use) speak to the real device models and workers; every row stands beside what the machine does
//! without any of it, measured interleaved in the same run.

mod baseline;
mod compare;
mod data_in;
mod dpdk;
mod folders;
mod frames;
mod host;
mod idle;
mod kvm;
mod pair;
mod process;
mod report;
mod rows;
mod vfio;
mod vsock;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::report::{Only, Options, Registry};
use clap::Parser;

/// Native benchmarks of the engine, beside plain copies, rings and sockets
#[derive(Debug, Parser)]
struct Args {
    /// Only the rows whose names begin so; several with commas between them
    #[arg(long, default_value = "")]
    only: String,
    /// Rounds; each row's figure is the median
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Milliseconds a row runs in a round
    #[arg(long, default_value_t = 400)]
    millis: u64,
    /// Where latest.json goes
    #[arg(long, default_value = "out/bench")]
    out: PathBuf,
    /// Compare this build with another's vmlane-enginebench, in pairs of fresh processes
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
    /// How many pairs, for --against
    #[arg(long, default_value_t = 20, requires = "against")]
    pairs: usize,
    /// Internal: be one guest of a row whose guests are processes
    #[arg(long, hide = true, num_args = 4, value_names = ["SOCKET", "ROLE", "BLOCK", "PEER"])]
    guest: Option<Vec<String>>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        // Without a stack backtrace, also with RUST_BACKTRACE: most are mistakes of the command line.
        Err(error) => {
            eprintln!("vmlane-enginebench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(guest) = args.guest {
        return process::be_guest(&guest).map(|()| ExitCode::SUCCESS);
    }
    let only = Only::parse(&args.only);
    if let Some(against) = args.against {
        compare(against, args.pairs, &only, (args.rounds, args.millis), &args.out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options { only, rounds: args.rounds, length: Duration::from_millis(args.millis) };
    let mut registry = Registry::default();
    baseline::register(&mut registry);
    rows::register(&mut registry)?;
    data_in::register(&mut registry);
    vfio::register(&mut registry, &options.only);
    kvm::register(&mut registry);
    frames::register(&mut registry);
    host::register(&mut registry);
    vsock::register(&mut registry, &options.only);
    if let Err(error) = idle::register(&mut registry) {
        eprintln!("left out: the rows of NICs that are idle: {error:#}");
    }
    dpdk::register(&mut registry, &options.only);
    let report = registry.run(&options, |round, name| eprintln!("round {}: {name}", round + 1))?;
    print!("{}", report.table());
    let path = args.out.join("latest.json");
    report.write(&path)?;
    println!("\nwritten: {}", path.display());
    Ok(if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Without `--only`: all that a change of the engines can move, and no program of others.
const COMPARED: [&str; 5] = ["vmci.", "vmxnet3.", "host.", "virtio.vsock.", "virtio.frames."];

fn compare(
    against: PathBuf,
    pairs: usize,
    only: &Only,
    (rounds, millis): (usize, u64),
    out: &std::path::Path,
) -> anyhow::Result<()> {
    let only: Vec<String> = match only.words() {
        [] => COMPARED.iter().map(|&prefix| prefix.to_owned()).collect(),
        words => words.to_vec(),
    };
    let outcome =
        compare::Comparison { against, pairs, only, rounds, millis }.run(|line| eprintln!("{line}"))?;
    print!("{}", outcome.table());
    folders::make(out)?;
    let path = out.join("against.json");
    std::fs::write(&path, serde_json::to_string(&outcome)? + "\n")?;
    println!("\nwritten: {}", path.display());
    Ok(())
}
