//! `vmlane doctor --pcap`: captures instead of machines.

use std::process::ExitCode;
use std::time::Instant;

use vmlane_doctor::evidence::Evidence;
use vmlane_doctor::{Diagnosis, capture};

use super::{Args, print};
use crate::cmd::exit_codes::NOT_EXAMINED;

pub fn judge(args: &Args) -> ExitCode {
    let began = Instant::now();
    let captures = match capture::read(&args.pcap, &args.progress()) {
        Ok(captures) => captures,
        Err(why) => {
            eprintln!("vmlane: {why}");
            return ExitCode::from(NOT_EXAMINED);
        }
    };
    let evidence = Evidence { captures, ..Evidence::default() };
    let diagnosis = Diagnosis::new(evidence, began.elapsed().as_secs_f64());
    print(&if args.json { diagnosis.json() + "\n" } else { diagnosis.text() });
    ExitCode::from(diagnosis.exit_code())
}
