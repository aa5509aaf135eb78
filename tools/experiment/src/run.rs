//! Makes the runs of a plan: a lab for those that can share one, a row for each.
//!
//! A run that fails is a row with the reason, and the others continue: guests that died are started
//! again, a lab that broke is brought up anew. A combination that only fails is given up, because every
//! failure may cost its whole deadline.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::Bench;
use crate::factors::Factors;
use crate::host;
use crate::plan::{OVERHEAD, Plan};
use crate::repeats::Made;
use crate::rows::{PlanSource, Row, VERSION, Writer};
use crate::steps::{Boot, Step};
use vmlane_lab::Lab;

/// Failures in a row after which a combination's other runs are not tried.
const GIVE_UP: u32 = 3;
/// How often a run with too much skew is repeated.
const REPEATS: u32 = 3;

/// What an experiment reports while it runs.
pub enum Progress<'a> {
    Starts {
        step: &'a Step,
        number: usize,
        of: usize,
        left: Option<Duration>,
    },
    Ended(&'a Row),
    /// All rows of one combination that this start has made.
    Combination(&'a [Row]),
    Message(&'a str),
}

/// An experiment under way.
pub struct Runner<'a> {
    pub plan: &'a Plan,
    /// The vmlane that runs everywhere.
    pub program: &'a Path,
    /// Of the labs.
    pub name: &'a str,
    /// Set from outside: no more runs.
    pub stop: &'a AtomicBool,
}

/// What stays the same from run to run.
struct Course<'r, 'w> {
    file: &'r mut Writer,
    watch: &'r mut (dyn FnMut(&Progress<'_>) + 'w),
    begin: Instant,
    date: String,
    number: usize,
    of: usize,
    /// Written by this start of the program.
    rows: Vec<Row>,
    /// By it and by those before.
    made: Made,
    failures: BTreeMap<String, u32>,
}

impl Runner<'_> {
    /// Makes every run that `done` lacks and returns the new rows, which are in the file as well. Ends early
    /// when stopped.
    ///
    /// # Errors
    /// The file cannot be written. A lab that cannot be brought up makes failed rows.
    pub fn run(
        &self,
        file: &mut Writer,
        done: &[Row],
        watch: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Vec<Row>> {
        let made = Made::of(done);
        let mut boots = self.plan.boots();
        for boot in &mut boots {
            boot.steps = self.plan.next_rounds(&boot.groups, &made);
        }
        boots.retain(|boot| !boot.steps.is_empty());
        let of = boots.iter().map(|boot| boot.steps.len()).sum();
        let mut course = Course {
            file,
            watch,
            begin: Instant::now(),
            date: host::date(),
            number: 0,
            of,
            rows: Vec::new(),
            made,
            failures: BTreeMap::new(),
        };
        for boot in &boots {
            if self.stopped() {
                break;
            }
            self.serve(boot, &mut course)?;
        }
        Ok(course.rows)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// All runs of one lab.
    fn serve(&self, boot: &Boot, course: &mut Course<'_, '_>) -> Result<()> {
        let mut bench: Option<Bench> = None;
        let mut steps: VecDeque<Step> = boot.steps.iter().cloned().collect();
        while let Some(step) = steps.pop_front() {
            let step = &step;
            course.starts(step, self.plan);
            let mut row = self.blank(step, course);
            let id = row.id.clone();
            let failures = course.failures.get(&id).copied().unwrap_or(0);
            if failures >= GIVE_UP {
                row.failed = Some(format!("not tried: {failures} runs failed one after the other"));
            } else {
                let result = self.attempt(&mut bench, boot, step, &mut row, course);
                if self.stopped() {
                    break;
                }
                let failures = course.failures.entry(id).or_default();
                *failures = if result.is_ok() { 0 } else { *failures + 1 };
                row.failed = result.err().map(|error| format!("{error:#}"));
            }
            course.ended(row)?;
            let of_it = |next: &Step| next.combination == step.combination;
            if steps.iter().any(of_it) {
                continue;
            }
            let Some(group) = boot.groups.iter().find(|group| group.combination == step.combination) else {
                continue;
            };
            let more = self.plan.next_round(group, &course.made);
            course.of += more.len();
            if more.is_empty() {
                let ids: Vec<String> = group.members.iter().map(Factors::id).collect();
                let rows: Vec<Row> =
                    course.rows.iter().filter(|row| ids.contains(&row.id)).cloned().collect();
                (course.watch)(&Progress::Combination(&rows));
            }
            // Behind those of the others that are still to come.
            steps.extend(more);
        }
        if let Some(bench) = bench {
            bench.down()?;
        }
        Ok(())
    }

    /// One run, in a lab that is whole.
    fn attempt(
        &self,
        bench: &mut Option<Bench>,
        boot: &Boot,
        step: &Step,
        row: &mut Row,
        course: &mut Course<'_, '_>,
    ) -> Result<()> {
        let mut present = match bench.take() {
            Some(bench) => bench,
            None => self.bring_up(boot, course)?,
        };
        present.describe(row);
        let result = self.measure(&mut present, step, row);
        if let Err(error) = &result
            && !self.stopped()
        {
            row.log = present.last_words();
            (course.watch)(&Progress::Message(&format!("{}: run {} failed: {error:#}", row.id, row.run)));
            match present.mend() {
                Ok(()) => *bench = Some(present),
                Err(error) => {
                    (course.watch)(&Progress::Message(&format!(
                        "the lab cannot be mended, a new one comes: {error:#}"
                    )));
                    let _ = present.down();
                }
            }
        } else {
            *bench = Some(present);
        }
        result
    }

    fn measure(&self, bench: &mut Bench, step: &Step, row: &mut Row) -> Result<()> {
        loop {
            bench.measure(step, self.plan, row, self.stop)?;
            let skew = row.skew_ms.unwrap_or(0.0);
            if skew <= self.plan.max_skew_ms {
                return Ok(());
            }
            if row.repeated >= REPEATS {
                (row.throughput_bps, row.transactions_per_second) = (None, None);
                bail!(
                    "skew {skew:.0} ms, and the plan allows {:.0}; repeated {REPEATS} times",
                    self.plan.max_skew_ms
                );
            }
            row.repeated += 1;
        }
    }

    fn bring_up(&self, boot: &Boot, course: &mut Course<'_, '_>) -> Result<Bench> {
        let mut spec = boot.spec(self.name);
        spec.accelerator = boot.like.accelerator.clone();
        let reported = std::cell::RefCell::new(Vec::new());
        let lab = Lab::up_with(&spec, self.program, &|line| reported.borrow_mut().push(line.to_owned()));
        let warnings = reported.into_inner();
        for line in warnings.iter().filter(|line| line.contains("warning")) {
            (course.watch)(&Progress::Message(line));
        }
        let lab = lab.with_context(|| {
            format!("the lab of {} guests with {:?} did not come up", spec.guests, spec.devices)
        })?;
        Bench::new(lab, boot, self.program)
    }

    /// A row with everything that is known before the run.
    fn blank(&self, step: &Step, course: &Course<'_, '_>) -> Row {
        let (factors, plan) = (&step.factors, self.plan);
        let first = course.rows.is_empty();
        let mut row = Row {
            version: VERSION,
            run: step.run,
            plan_source: first.then(|| PlanSource { text: plan.source.clone(), quick: plan.quick }),
            ..Row::default()
        };
        row.describe(factors, &plan.named);
        row.setup = crate::rows::Setup {
            date: course.date.clone(),
            cpu_model: host::cpu_model(),
            cpus: host::cpus(),
            memory_bytes: host::memory_bytes(),
            host_kernel: host::kernel(),
            guest_cpus: factors.cpus,
            guest_memory_mib: factors.memory,
            vmlane: env!("CARGO_PKG_VERSION").to_owned(),
            commit: host::commit(self.program),
            pinned: "nothing".into(),
            plan: plan.name.clone(),
            seconds: plan.seconds,
            warmup_seconds: plan.warmup,
            runs: plan.runs,
            most_runs: plan.repeats.map_or(0, |repeats| repeats.most),
            ..crate::rows::Setup::default()
        };
        row
    }
}

impl Course<'_, '_> {
    fn starts(&mut self, step: &Step, plan: &Plan) {
        self.number += 1;
        let (made, left) = (self.number - 1, self.of - self.number + 1);
        let each = match made {
            0..3 => plan.seconds + plan.warmup + OVERHEAD,
            _ => self.begin.elapsed().as_secs_f64() / made as f64,
        };
        let left = Some(Duration::from_secs_f64(each * left as f64));
        (self.watch)(&Progress::Starts { step, number: self.number, of: self.of, left });
    }

    fn ended(&mut self, row: Row) -> Result<()> {
        self.file.add(&row)?;
        self.made.add(&row);
        (self.watch)(&Progress::Ended(&row));
        self.rows.push(row);
        Ok(())
    }
}
