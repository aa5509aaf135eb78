//! The native rows alone: `cargo run --release -p vmlane-bench --example native`, `ONLY=ring` for some.

use vmlane_bench::native::report::{Options, Registry};

fn main() -> std::io::Result<()> {
    let report =
        Registry::native().run(&Options::from_env(), |round, name| eprintln!("round {round}: {name}"))?;
    print!("{}", report.table());
    Ok(())
}
