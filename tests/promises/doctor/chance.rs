//! Faults by chance: a seed draws them from a grammar, and only those count whose effect was measured.
//!
//! [`grammar`] says what there is, with the tables of [`packets`], [`kernel`] and [`machine`]; [`draw`] takes
//! from it; [`places`] puts faults in and takes them out; [`effect`] measures what they do, [`judge`] what
//! the doctor makes of them, and [`report`] counts.
//!
//! Settings: `VMLANE_SEED` (else the kept seeds and a new one), `VMLANE_DRAWS` (of each device, or `each` for
//! every mechanism once), `VMLANE_QUICK` (1: only quick examinations, 0: only full ones), `VMLANE_DEVICES`,
//! and `VMLANE_FAULT`, a part of the names of mechanisms.

mod draw;
mod effect;
mod grammar;
mod judge;
mod kernel;
mod machine;
mod packets;
mod places;
mod report;

use std::collections::BTreeMap;
use std::io::Write as _;

use vmlane_lab::{LabSpec, Running};
use vmlane_tests::{Bed, kept};

use draw::draws;
use effect::{Gauges, Healthy, Path};
use grammar::{Fault, NOT_DRAWN, inconsistencies};
use places::Inserted;
use report::{Record, Records};

/// Seeds whose draws the doctor has passed: they stay as regression. Each release draws new ones.
const KEPT: &[u64] = &[20_261];

const DEVICES: &str = "vmxnet3:queues=2 virtio-net:queues=2 vmci";

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub fn the_grammar_of_faults_is_consistent() {
    let wrong = inconsistencies();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let choices = |one: &grammar::Mechanism| one.strengths().len() * one.places.len();
    println!(
        "  {} mechanisms, {} with their strengths and ends",
        grammar::all().count(),
        grammar::all().map(choices).sum::<usize>()
    );
}

/// A lab of three guests, in which faults are put into the path from a to b.
struct Place {
    device: String,
    to: &'static str,
    bed: Bed,
    server: Running,
    healthy: Healthy,
}

impl Place {
    fn new(device: &str) -> Place {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        writeln!(config, "[daemon]\nfault_injection = true").unwrap();
        let daemon_config = Some(config.path().to_owned());
        let is_ip = !device.starts_with("vmci") && !device.contains("vsock");
        let guests = if is_ip { 3 } else { 2 };
        let bed = Bed::up(&LabSpec { guests, daemon_config, ..super::lab("chance", &[device]) });
        for guest in ["a", "b", "c"].iter().take(guests) {
            let program =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("promises/doctor/chance/guest.py");
            bed.guest(guest).cp_to(&program, "/chance.py").unwrap();
        }
        let (to, listen) = if is_ip { (super::TO, "tcp:0.0.0.0") } else { ("vsock:4", "vsock:") };
        let server = super::server(&bed, "b", listen);
        let healthy = Healthy::of(&Path { bed: &bed, to });
        println!("  {device}: {:?}", healthy.middle());
        Place { device: device.to_owned(), to, bed, server, healthy }
    }

    /// Boots all anew.
    fn again(self) -> Place {
        let Place { device, bed, server, .. } = self;
        println!("  the lab of {device} is booted anew");
        drop(server);
        drop(bed);
        Place::new(&device)
    }

    fn path(&self) -> Path<'_> {
        Path { bed: &self.bed, to: self.to }
    }

    /// Puts a draw in, measures, examines, and takes it out. Returns what the lab does then, if it is as
    /// before.
    fn try_out(&self, faults: &[Fault], record: &mut Record) -> Option<Gauges> {
        let inserted = Inserted::put(&self.bed, faults);
        if inserted.problem.is_some() {
            record.problem.clone_from(&inserted.problem);
            // Not all of it is there to be taken out.
            let _ = inserted.take_out();
            return self.path().recovers(&record.healthy);
        }
        let with = self.path().with_fault(&record.healthy);
        record.effects = with.effects(&record.healthy);
        record.with = Some(with);
        if record.has_effect() {
            record.verdicts = self.examine(faults);
        }
        match inserted.take_out() {
            Ok(()) => self.path().recovers(&record.healthy),
            Err(why) => {
                println!("  not taken out: {why}");
                None
            }
        }
    }

    fn examine(&self, faults: &[Fault]) -> BTreeMap<&'static str, judge::Verdict> {
        let forms = forms().iter();
        forms.map(|form| (*form, judge::examine(&self.bed, self.to, faults, *form == "quick"))).collect()
    }

    fn record(&self, seed: u64, number: usize, faults: &[Fault]) -> Record {
        let layer = if faults.len() > 1 { "two" } else { faults[0].mechanism.layer.name() };
        Record {
            seed,
            number,
            device: self.device.clone(),
            layer,
            faults: faults.iter().map(Fault::to_string).collect(),
            healthy: self.healthy.middle(),
            with: None,
            effects: Vec::new(),
            verdicts: BTreeMap::new(),
            problem: None,
        }
    }
}

/// The examinations that are made of each fault.
fn forms() -> &'static [&'static str] {
    match setting("VMLANE_QUICK").as_deref() {
        Some("1") => &["quick"],
        Some("0") => &["full"],
        _ => &["full", "quick"],
    }
}

/// The seeds, and how many draws each makes.
fn seeds() -> (Vec<u64>, usize) {
    let mut seeds = KEPT.to_vec();
    match setting("VMLANE_SEED") {
        Some(_) => seeds = vec![super::namespaces::seed()],
        None => seeds.push(super::namespaces::seed()),
    }
    let draws = setting("VMLANE_DRAWS").and_then(|draws| draws.parse().ok()).unwrap_or(40_usize);
    let each = draws.div_ceil(seeds.len());
    (seeds, each)
}

/// What is drawn for a device: seeds with their faults.
fn drawn(device: &str) -> Vec<(u64, Vec<Fault>)> {
    let (seeds, count) = seeds();
    println!("  seeds {seeds:?}");
    let of = |seed: u64| {
        let mut draws = draws(seed, device);
        if setting("VMLANE_DRAWS").as_deref() == Some("each") {
            return draws.each();
        }
        (0..count).map(|_| draws.draw()).collect()
    };
    seeds.into_iter().flat_map(|seed| of(seed).into_iter().map(move |faults| (seed, faults))).collect()
}

/// All draws of a device. What is not reached.
fn between(device: &str) -> Vec<String> {
    let mut records = Records::new();
    let mut place = Place::new(device);
    for (number, (seed, faults)) in drawn(device).into_iter().enumerate() {
        let mut record = place.record(seed, number + 1, &faults);
        let after = place.try_out(&faults, &mut record);
        records.add(record);
        match after {
            Some(healthy) => place.healthy.add(healthy),
            None => place = place.again(),
        }
    }
    drop(place.server);
    place.bed.lab_down();
    let judged = forms().iter().flat_map(|form| judged(&records, device, form));
    judged.collect()
}

fn judged(records: &Records, device: &str, form: &str) -> Vec<String> {
    println!("{device}\n{}", records.table(form));
    let (total, (whole, pairs)) = (records.total(form), records.whole_pairs(form));
    kept(
        "doctor",
        &format!(
            "{device}, {form}: {} faults by chance with an effect of {} drawn; the cause first in {}, among three in {}, a \
             wrong one first in {}, nothing found in {}; both of two in {whole} of {pairs}",
            total.effective, total.drawn, total.first, total.first_three, total.wrong_first, total.nothing
        ),
    );
    total.failures().into_iter().map(|failure| format!("{device}, {form}: {failure}")).collect()
}

pub fn faults_drawn_by_chance_are_named() {
    for (what, why) in NOT_DRAWN {
        println!("  not drawn: {what}: {why}");
    }
    let devices = setting("VMLANE_DEVICES").unwrap_or_else(|| DEVICES.to_owned());
    let failures: Vec<String> = devices.split_whitespace().flat_map(between).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}
