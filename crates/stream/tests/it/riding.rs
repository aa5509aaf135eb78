//! Streams on the thread of another engine: their ends belong to it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use vmlane_port::{Side, StreamEnd, Streams};
use vmlane_stream::{Settings, Workers};
use vmlane_worker::{Ports, Ride};

use crate::common::{Bytes, OtherSide, end};

#[derive(Default)]
struct Other(Bytes);

impl OtherSide for Other {
    fn bytes(&self) -> &Bytes {
        &self.0
    }
}

fn ends(workers: [Option<u16>; 2]) -> ([Arc<Other>; 2], [StreamEnd; 2]) {
    let others = [Arc::<Other>::default(), Arc::default()];
    let [a, b] = [0, 1].map(|at| StreamEnd { worker: workers[at], ..end(&others[at], None) });
    (others, [a, b])
}

fn round(ride: &mut Ride) -> bool {
    ride.engine.run_commands();
    ride.engine.rounds_mut().round(Instant::now())
}

#[test]
fn a_stream_is_with_the_worker_that_one_of_its_ends_belongs_to() {
    let (mut workers, _unstarted) = Workers::unstarted(Settings::default()).unwrap();
    let mut rides = [(); 2].map(|()| workers.ride().unwrap());
    assert_eq!(workers.heartbeats().len(), 1, "those that ride have their threads' own");
    let number = rides[1].number;
    let (others, ends) = ends([None, Some(number)]);
    let stream = workers.join(ends);
    assert_eq!(stream.worker, number);
    round(&mut rides[0]);
    round(&mut rides[1]);
    others[0].0.stored.store(100, SeqCst);
    assert!(rides[1].engine.rounds_mut().turn_now(stream.number, Instant::now()));
    assert_eq!(others[1].0.got.load(SeqCst), 100);
    assert!(
        !rides[1].engine.rounds_mut().turn_now(stream.number + 1, Instant::now()),
        "there is no such stream"
    );
    // Its own thread waits for no answer.
    rides[1].heartbeat.adopt();
    workers.leave(&[(stream, Side::A), (stream, Side::B)]);
    round(&mut rides[1]);
    assert!(matches!(rides[1].engine.rounds_mut().ports(), Ports::Armed(None)), "nothing is left");
}

#[test]
fn ends_that_belong_to_different_workers_are_reset() {
    let (mut workers, _unstarted) = Workers::unstarted(Settings::default()).unwrap();
    let mut rides = [(); 2].map(|()| workers.ride().unwrap());
    let numbers = rides.each_ref().map(|ride| Some(ride.number));
    let (others, ends) = ends(numbers);
    let stream = workers.join(ends);
    for (other, ride) in others.iter().zip(&mut rides) {
        assert_eq!(other.0.resets.load(SeqCst), 0);
        round(ride);
        assert_eq!(other.0.resets.load(SeqCst), 1);
    }
    // There is none; a caller with its number asks in vain.
    workers.kick(stream);
    workers.leave(&[(stream, Side::A)]);
}
