//! `make bench`: the engine without VMs. Synthetic VMCI guests (the driver that the device's own tests
//! use) speak to the real device models and workers; every row stands beside what the machine does
//! without any of it, measured interleaved in the same run.

mod baseline;
mod compare;
mod dpdk;
mod frames;
mod host;
mod model;
mod pair;
mod process;
mod report;
mod route;
mod rows;
mod vsock;
mod xdp;

use std::path::PathBuf;
use std::time::Duration;

use crate::report::{Options, Registry};
use clap::Parser;

/// Native benchmarks of the engine, beside plain copies, rings and sockets
#[derive(Debug, Parser)]
struct Args {
    /// Only the rows whose names begin so
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
    /// Print what a model of the switch says of 1 to 32 workers, from these costs in nanoseconds: a 64-byte frame, one
    /// that another worker delivers (both workers' parts), a round, and a port in it
    #[arg(long, num_args = 4, value_names = ["FRAME", "HANDED", "ROUND", "PORT"])]
    model: Option<Vec<f64>>,
    /// Internal: be one guest of a row whose guests are processes
    #[arg(long, hide = true, num_args = 4, value_names = ["SOCKET", "ROLE", "BLOCK", "PEER"])]
    guest: Option<Vec<String>>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(guest) = args.guest {
        return process::be_guest(&guest);
    }
    if let Some(&[frame, handed, round, port]) = args.model.as_deref() {
        print!("{}", model::table(model::Costs { frame, handed, round, port }));
        return Ok(());
    }
    if let Some(against) = args.against {
        return compare(against, args.pairs, &args.only, (args.rounds, args.millis), &args.out);
    }
    let options =
        Options { only: args.only, rounds: args.rounds, length: Duration::from_millis(args.millis) };
    let mut registry = Registry::default();
    baseline::register(&mut registry);
    rows::register(&mut registry)?;
    frames::register(&mut registry);
    host::register(&mut registry);
    vsock::register(&mut registry, &options.only);
    route::register(&mut registry, &options.only);
    xdp::register(&mut registry);
    dpdk::register(&mut registry, &options.only);
    let report = registry.run(&options, |round, name| eprintln!("round {}: {name}", round + 1))?;
    print!("{}", report.table());
    let path = args.out.join("latest.json");
    report.write(&path)?;
    println!("\nwritten: {}", path.display());
    Ok(())
}

/// Without `--only`: all that a change of the engines can move, and no program of others.
const COMPARED: [&str; 5] = ["vmci.", "vmxnet3.", "host.", "virtio.vsock.", "virtio.frames."];

fn compare(
    against: PathBuf,
    pairs: usize,
    only: &str,
    (rounds, millis): (usize, u64),
    out: &std::path::Path,
) -> anyhow::Result<()> {
    let only: Vec<String> = match only {
        "" => COMPARED.iter().map(|&prefix| prefix.to_owned()).collect(),
        only => only.split(',').map(str::to_owned).collect(),
    };
    let outcome =
        compare::Comparison { against, pairs, only, rounds, millis }.run(|line| eprintln!("{line}"))?;
    print!("{}", outcome.table());
    std::fs::create_dir_all(out)?;
    let path = out.join("against.json");
    std::fs::write(&path, serde_json::to_string(&outcome)? + "\n")?;
    println!("\nwritten: {}", path.display());
    Ok(())
}
