//! Owners share a worker: what one gets does not depend on how many streams another has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmlane_guestsim::endless::{Counts, Endless, RING};
use vmlane_port::{Budget, StreamEnd, Streams};
use vmlane_stream::{Settings, Worker, Workers};

/// One VM: who pays, and what it has sent.
struct Owner {
    budget: Arc<Budget>,
    sent: Arc<AtomicU64>,
}

impl Owner {
    fn new() -> Owner {
        Owner { budget: Arc::new(Budget::new(0)), sent: Arc::default() }
    }

    /// Opens `count` streams to another owner, which sends nothing.
    fn open(&self, workers: &Workers, count: usize, chunk: usize) {
        for _ in 0..count {
            let far = Owner::new();
            let counts = |owner: &Owner| Counts { sent: owner.sent.clone(), ..Counts::default() };
            let end = |owner: &Owner, chunk| StreamEnd {
                port: Box::new(Endless::new(chunk, counts(owner))),
                budget: owner.budget.clone(),
                slow: false,
                worker: None,
            };
            workers.join([end(self, chunk), end(&far, 0)]);
        }
    }

    fn sent(&self) -> u64 {
        self.sent.swap(0, Ordering::Relaxed)
    }
}

fn turn(worker: &mut Worker, rounds: usize) {
    (0..rounds).for_each(|_| assert!(worker.step()));
}

fn bench() -> (Workers, Worker) {
    let (workers, mut worker) = Workers::unstarted(Settings { poll: true, ..Settings::default() }).unwrap();
    (workers, worker.remove(0))
}

#[test]
fn an_owner_with_many_streams_gets_no_more_than_one_with_few() {
    let (workers, mut worker) = bench();
    let (honest, greedy) = (Owner::new(), Owner::new());
    honest.open(&workers, 16, RING);
    greedy.open(&workers, 300, RING);
    turn(&mut worker, 20);
    honest.sent();
    greedy.sent();
    turn(&mut worker, 400);
    let (honest, greedy) = (honest.sent() as f64, greedy.sent() as f64);
    assert!((0.9..1.1).contains(&(honest / greedy)), "{honest} bytes beside {greedy}");
    assert!(workers.stats().deferred.get() > 0);
}

#[test]
fn single_bytes_and_idle_polls_are_charged_too() {
    let (workers, mut worker) = bench();
    let (honest, bytes, idle) = (Owner::new(), Owner::new(), Owner::new());
    honest.open(&workers, 1, RING);
    bytes.open(&workers, 600, 1);
    idle.open(&workers, 800, 0);
    turn(&mut worker, 100);
    let (sent, trickle) = (honest.sent(), bytes.sent());
    assert_eq!(sent, 100 * RING as u64, "it has a turn in every round");
    // A turn counts as 2 KiB, a round has 1 MiB.
    assert!(trickle <= 100 * 513, "{trickle} turns of one byte in 100 rounds");
}

#[test]
fn all_streams_of_an_owner_get_their_turn() {
    let (workers, mut worker) = bench();
    let owners: Vec<Owner> = (0..64).map(|_| Owner::new()).collect();
    let account = Owner::new();
    for owner in &owners {
        // One account, counted apart.
        Owner { budget: account.budget.clone(), sent: owner.sent.clone() }.open(&workers, 1, RING);
    }
    turn(&mut worker, 640);
    let sent: Vec<u64> = owners.iter().map(Owner::sent).collect();
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(*least * 2 > *most, "{sent:?}");
}
