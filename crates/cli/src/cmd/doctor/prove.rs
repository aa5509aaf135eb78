//! `vmlane doctor --prove`, its guardian, and `--undo`.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;

use vmlane_bench::Error;
use vmlane_doctor::proof::{self, Candidate, guardian, record};
use vmlane_doctor::{Diagnosis, Proven};

use super::Args;
use crate::cmd::exit_codes::NOT_EXAMINED;

/// Whether settings may be changed, asked before anything is measured.
pub fn may_prove(args: &Args) -> Result<(), Error> {
    if !args.prove {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Usage("--prove changes settings of this machine: run it as root".to_owned()));
    }
    if !args.yes && !std::io::stdin().is_terminal() {
        return Err(Error::Usage(
            "--prove changes settings of this machine and asks first, and there is no terminal: add --yes"
                .to_owned(),
        ));
    }
    Ok(())
}

/// None if the answer was no.
pub fn prove(args: &Args, diagnosis: &Diagnosis) -> Result<Option<Proven>, Error> {
    let candidates = proof::candidates(diagnosis);
    if candidates.is_empty() {
        let untried = (1..=diagnosis.findings.len()).collect();
        return Ok(Some(Proven { untried, ..Proven::default() }));
    }
    if !args.yes && !asked(&candidates) {
        return Ok(None);
    }
    let (to, options) = (args.to()?, args.reach.options()?);
    Ok(Some(proof::prove(&to.control, &options, diagnosis, &candidates, args.quick, &args.progress())))
}

fn asked(candidates: &[Candidate]) -> bool {
    eprintln!(
        "\nThese settings of this machine would be changed, one after another, measured, and put back:"
    );
    for change in
        candidates.iter().flat_map(|candidate| &candidate.remedies).flat_map(|remedy| &remedy.changes)
    {
        eprintln!("  {}", vmlane_doctor::remedy::line(&change.command()));
    }
    eprint!("Connections over these interfaces may stall for a moment. Go on? [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

pub fn guard() -> ExitCode {
    ExitCode::from(u8::from(!guardian::guard(&record::directory())))
}

pub fn undo() -> ExitCode {
    match proof::undo_earlier() {
        Ok((report, is_well)) => {
            println!("{report}");
            ExitCode::from(if is_well { 0 } else { NOT_EXAMINED })
        }
        Err(error) => {
            eprintln!("vmlane: {error}");
            ExitCode::from(NOT_EXAMINED)
        }
    }
}
