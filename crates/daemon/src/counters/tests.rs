use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use vmlane_stats::counters;

use super::*;

/// What is held for the next daemon.
#[derive(Default)]
struct Held(Mutex<HashMap<String, OwnedFd>>);

impl Held {
    fn left(&self) -> Option<OwnedFd> {
        self.0.lock().remove("web/counters")
    }
}

impl Store for Held {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.lock().insert(name.to_owned(), fd.try_clone_to_owned()?);
        Ok(())
    }

    fn remove(&self, _: &str) {}

    fn remove_all(&self, _: &str) {}
}

counters! {
    /// Of one version.
    struct Old { frames, bytes, gone, }
}
counters! {
    /// Of another one.
    struct New { added, bytes, frames, }
}

fn next<C: Atomics + Counters>(held: &Held) -> Kept<C> {
    kept(held, held.left(), "web/counters")
}

/// A set of which a daemon has counted something, and when it began.
fn counted(held: &Held) -> u64 {
    let counts: Kept<Old> = next(held);
    counts.frames.add(3);
    counts.bytes.bump(180);
    counts.gone.inc();
    counts.since()
}

#[test]
fn counting_goes_on_where_a_daemon_ended() {
    let held = Held::default();
    let since = counted(&held);
    assert!(since > 1_700_000_000);
    for round in 1..4 {
        let next: Kept<Old> = next(&held);
        next.frames.inc();
        assert_eq!(next.snapshot(), [("frames", 3 + round), ("bytes", 180), ("gone", 1)]);
        assert_eq!(next.since(), since);
    }
    let next: Kept<New> = next(&held);
    assert_eq!(next.snapshot(), [("added", 0), ("bytes", 180), ("frames", 6)], "of another version, by name");
}

#[test]
fn pages_that_are_of_no_use_make_counters_begin_again() {
    type Damage = fn(&Window);
    let damages: [Damage; 5] = [
        |page| page.store_u64(at::MAGIC, 1),
        |page| page.store_u64(at::COUNTS + 8, MOST + 1),
        |page| page.write(at::NAMES, &[0xff; 2048]),
        |page| page.write(0, &[0xff; 4096]),
        |page| page.write(0, &[0; 4096]),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let held = Held::default();
        counted(&held);
        let file = held.left().unwrap();
        let page = Window::over_file(&file, BYTES).unwrap();
        page.store_u64(at::SINCE, 7);
        damage(&page);
        let next: Kept<Old> = kept(&held, Some(file), "web/counters");
        assert_eq!(next.snapshot(), [("frames", 0), ("bytes", 0), ("gone", 0)], "damage {number}");
        assert!(next.since() > 7, "damage {number}");
    }
    let short = vmlane_mem::memfd("short", 100).unwrap();
    let next: Kept<Old> = kept(&Held::default(), Some(short), "web/counters");
    assert_eq!(next.frames.get(), 0);
}

#[test]
fn names_that_are_not_known_and_lines_without_end_do_no_harm() {
    let held = Held::default();
    counted(&held);
    let file = held.left().unwrap();
    let page = Window::over_file(&file, BYTES).unwrap();
    page.write(at::NAMES, "\n".repeat(2048).as_bytes());
    page.write(at::NAMES, b"other\nbytes\nbytes\n");
    let next: Kept<Old> = kept(&held, Some(file), "web/counters");
    assert_eq!(next.snapshot(), [("frames", 0), ("bytes", 1), ("gone", 0)]);
}

/// As many as any set has, each with a name as long as any.
#[test]
fn the_sets_of_all_devices_have_room() {
    let sets: [Vec<(&str, u64)>; 3] = [
        vmlane_port::PortStats::default().snapshot(),
        vmlane_device::vmci::VmciStats::default().snapshot(),
        vmlane_transport::SessionStats::default().snapshot(),
    ];
    for set in sets {
        let names: usize = set.iter().map(|(name, _)| name.len() + 1).sum();
        assert!(names <= BYTES as usize - at::NAMES && set.len() <= (at::NAMES - at::COUNTS) / 8);
    }
}
