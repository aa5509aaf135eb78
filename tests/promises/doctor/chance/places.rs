//! Puts faults in where they belong, and takes them out again.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use toml::{Table, Value};
use vmlane_api::call::DebugImpair;
use vmlane_tests::{Bed, Configured};

use super::grammar::{Fault, Place, Who};

/// What lines of shells may use. A value that is kept already is the one from before.
const PRELUDE: &str = "\
saved() { echo /run/chance$(echo \"$1\" | tr / _); }
write() { [ -e $(saved $1) ] || cat $1 >$(saved $1); printf '%s\\n' \"$2\" >$1 || exit 1; }
restore() { cat $(saved $1) >$1 && rm $(saved $1); }
";

/// Faults that are in; dropped, what the host holds of them ends.
pub struct Inserted<'a> {
    bed: &'a Bed,
    faults: &'a [Fault],
    held: Vec<Held<'a>>,
    /// The line that failed: the rest was not put in.
    pub problem: Option<String>,
}

/// What ends when it is dropped.
enum Held<'a> {
    Shaped(#[expect(dead_code, reason = "its end is what counts")] Configured<'a>),
    Stopped(#[expect(dead_code, reason = "its end is what counts")] Stopper),
    Moved(#[expect(dead_code, reason = "its end is what counts")] Moved),
}

impl<'a> Inserted<'a> {
    /// Puts all in, one after another.
    pub fn put(bed: &'a Bed, faults: &'a [Fault]) -> Inserted<'a> {
        let mut inserted = Inserted { bed, faults, held: Vec::new(), problem: None };
        let lines = |fault: &'a Fault| fault.put().into_iter().map(move |(who, line)| (fault, who, line));
        let mut lines = faults.iter().flat_map(lines);
        inserted.problem = lines.find_map(|(fault, who, line)| inserted.run(fault, who, &line).err());
        inserted
    }

    /// Takes all out, the last one first.
    ///
    /// # Errors
    /// The lines that failed: the guests are not as they were.
    pub fn take_out(mut self) -> Result<(), String> {
        self.held.clear();
        let mut failed = Vec::new();
        for fault in self.faults.iter().rev() {
            let lines = fault.undo();
            failed.extend(lines.iter().filter_map(|(who, line)| self.run(fault, *who, line).err()));
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    fn run(&mut self, fault: &Fault, who: Who, line: &str) -> Result<(), String> {
        match who {
            Who::End => shell(self.bed, fault.place.guest(), line),
            Who::Other => shell(self.bed, fault.place.other().guest(), line),
            Who::C => shell(self.bed, "c", line),
            Who::Impair => impair(self.bed, fault.place, line),
            // What is held ends when it is dropped.
            Who::Shape | Who::Vmm if line.is_empty() => Ok(()),
            Who::Shape => {
                self.held.push(Held::Shaped(shape(self.bed, fault.place, line)));
                Ok(())
            }
            Who::Vmm => {
                self.held.push(vmm(self.bed, fault.place, line));
                Ok(())
            }
        }
    }
}

fn shell(bed: &Bed, guest: &str, line: &str) -> Result<(), String> {
    let ran = bed.guest(guest).sh(&format!("{PRELUDE}{line}"));
    ran.map(drop).map_err(|error| format!("{error:#}").replace(PRELUDE, ""))
}

/// `in 20M` or `out 20M`, of the end's first card.
fn shape<'a>(bed: &'a Bed, place: Place, line: &str) -> Configured<'a> {
    let (direction, rate) = line.split_once(' ').expect("a direction and a rate");
    let average = Table::from_iter([("average".to_owned(), Value::from(rate))]);
    let shape = Table::from_iter([(direction.to_owned(), Value::from(average))]);
    bed.edited(|config| {
        let vms = config["vm"].as_array_mut().expect("a list of VMs");
        let vm = vms.iter_mut().find(|vm| vm["name"].as_str() == Some(place.guest())).expect("the VM");
        let card = vm["nic"][0].as_table_mut().expect("a card");
        card.insert("shape".to_owned(), shape.into());
    })
}

/// `loss=50` and the like; nothing ends it.
fn impair(bed: &Bed, place: Place, line: &str) -> Result<(), String> {
    let (key, value) = line.split_once('=').unwrap_or_default();
    let value = value.parse::<u32>().unwrap_or_default();
    let of = |name: &str| if key == name { value } else { 0 };
    let call = DebugImpair {
        vm: place.guest().to_owned(),
        at: "nic0-port".to_owned(),
        loss: of("loss") as u16,
        reorder: of("reorder") as u16,
        delay_us: of("delay_us"),
        longest: Some(of("longest")),
        seed: 7,
    };
    bed.call(&call).map(drop).map_err(|error| format!("{line}: {error}"))
}

fn vmm<'a>(bed: &Bed, place: Place, line: &str) -> Held<'a> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["stop", stopped, running] => {
            let times = [stopped, running].map(|ms| Duration::from_millis(ms.parse().expect("milliseconds")));
            Held::Stopped(Stopper::new(qemu(bed, place.guest()), times))
        }
        ["cpu", cpu] => Held::Moved(Moved::to(["a", "b"].map(|guest| qemu(bed, guest)), cpu)),
        _ => panic!("{line:?} cannot be done to a VM"),
    }
}

fn qemu(bed: &Bed, guest: &str) -> Pid {
    let status = bed.lab().status().unwrap();
    let guest = status.guests.iter().find(|one| one.name == guest).expect("the guest");
    Pid::from_raw(guest.pid.expect("its process") as i32).expect("a process id")
}

/// Stops a process again and again.
struct Stopper {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stopper {
    fn new(pid: Pid, [stopped, running]: [Duration; 2]) -> Stopper {
        let ended = Arc::<AtomicBool>::default();
        let is_over = ended.clone();
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                // A guest that is gone is for others to report.
                let _ = kill_process(pid, Signal::STOP);
                std::thread::sleep(stopped);
                let _ = kill_process(pid, Signal::CONT);
                std::thread::sleep(running);
            }
        });
        Stopper { ended, thread: Some(thread) }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Processes on one CPU.
struct Moved([Pid; 2]);

impl Moved {
    fn to(pids: [Pid; 2], cpu: &str) -> Moved {
        let moved = Moved(pids);
        moved.set(cpu);
        moved
    }

    fn set(&self, cpus: &str) {
        for pid in self.0 {
            let pid = pid.as_raw_nonzero().to_string();
            let ran = Command::new("taskset").args(["-a", "-p", "-c", cpus, &pid]).output();
            // Threads may end meanwhile.
            drop(ran.expect("taskset"));
        }
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        self.set(&format!("0-{last}"));
    }
}
