//! Inputs in, decision out.

use super::super::gaps::SLEEP;
use super::super::window::MUCH;
use super::*;

const SPIN: Duration = Duration::from_micros(500);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// What a worker does that waits for `ports`, with nothing moved for `idle` and many rounds in vain.
fn decide(policy: &Policy, ports: Ports, idle: Duration) -> Decision {
    decide_after(policy, ports, idle, 0)
}

/// The same after `moved` bytes.
fn decide_after(policy: &Policy, ports: Ports, idle: Duration, moved: u64) -> Decision {
    policy.decide(&Inputs { now: Instant::now(), idle, rounds: SPINS, moved, ports })
}

/// One whose core comes back late.
fn contended(spin: Duration) -> Policy {
    let (mut policy, now) = (Policy::new(spin, SLEEP), Instant::now());
    policy.window.yields(now - ms(2));
    policy.resumed(now);
    assert!(policy.clock(now).contended);
    policy
}

const ALL: [Ports; 6] = [
    Ports::Polled,
    Ports::Filling(1000),
    Ports::Due,
    Ports::Mixed { announced: false },
    Ports::Armable(None),
    Ports::Armed(None),
];

#[test]
fn within_the_window_it_spins_and_then_yields_whatever_it_waits_for() {
    let policy = Policy::new(SPIN, SLEEP);
    for ports in ALL {
        for (rounds, decision) in [(0, Decision::Spin), (SPINS - 1, Decision::Spin), (SPINS, Decision::Yield)]
        {
            let inputs = Inputs { now: Instant::now(), idle: SPIN - us(1), rounds, moved: 0, ports };
            assert_eq!(policy.decide(&inputs), decision, "{ports:?}");
        }
        let after = decide(&policy, ports, SPIN);
        assert_eq!(after == Decision::Yield, ports == Ports::Polled, "{ports:?} {after:?}");
    }
}

#[test]
fn where_the_core_is_contended_it_spins_and_never_yields() {
    let policy = contended(SPIN);
    for ports in ALL {
        let inputs = |rounds| Inputs { now: Instant::now(), idle: us(1), rounds, moved: 0, ports };
        assert_eq!(policy.decide(&inputs(SPINS - 1)), Decision::Spin, "{ports:?}");
        let then = policy.decide(&inputs(SPINS));
        assert_eq!(then == Decision::Yield, ports == Ports::Polled, "{ports:?} {then:?}");
    }
}

#[test]
fn without_a_window_each_kind_of_ports_has_its_wait() {
    let policy = Policy::new(Duration::ZERO, SLEEP);
    let limit = Some(ms(7));
    assert_eq!(decide(&policy, Ports::Due, ms(8)), Decision::Nap(NAP));
    assert_eq!(decide(&policy, Ports::Armable(limit), ms(8)), Decision::Sleep(limit));
    assert_eq!(decide(&policy, Ports::Armed(limit), ms(8)), Decision::Sleep(limit));
    assert_eq!(decide(&policy, Ports::Filling(1000), ms(8)), Decision::Nap(us(100)));
}

#[test]
fn the_longer_nothing_came_that_may_not_be_announced_the_longer_it_waits() {
    let mut policy = Policy::new(Duration::ZERO, SLEEP);
    let (some, all) = (Ports::Mixed { announced: false }, Ports::Mixed { announced: true });
    for (idle, limit) in [
        (Duration::ZERO, NAP),
        (ms(4), ms(4) / PART),
        (ms(20), LONGEST_RECENT),
        (ms(1001), LONGEST_RECENT),
        (ms(9000), LONGEST),
    ] {
        assert_eq!(decide(&policy, some, idle), Decision::Sleep(Some(limit)), "{idle:?}");
    }
    assert_eq!(decide(&policy, all, ms(9000)), Decision::Sleep(Some(LONGEST_ANNOUNCED)));
    let inputs = |ports| Inputs { now: Instant::now(), idle: us(100), rounds: 0, moved: 0, ports };
    let mut sleep = |ports| {
        policy.sleeps(&inputs(ports));
        policy.decide(&inputs(ports))
    };
    let some = [100, 200, 400, 500].map(|length| Decision::Sleep(Some(us(length))));
    assert_eq!([some.len(); 4].map(|_| sleep(Ports::Mixed { announced: false })), some);
    policy.notified();
    let mut sleep = |ports| {
        policy.sleeps(&inputs(ports));
        policy.decide(&inputs(ports))
    };
    let [first, second, .., last] = [(); 9].map(|()| sleep(all));
    assert_eq!((first, second), (Decision::Sleep(Some(NAP * 8)), Decision::Sleep(Some(NAP * 64))));
    assert_eq!(last, Decision::Sleep(Some(LONGEST_ANNOUNCED)));
    policy.notified();
    assert_eq!(policy.decide(&inputs(all)), Decision::Sleep(Some(NAP)), "from the beginning");
}

#[test]
fn no_wait_is_longer_than_until_shortly_before_something_is_due() {
    let (nap, sleep) = (|count| Decision::Nap(us(count)), |count| Decision::Sleep(Some(us(count))));
    for (decision, due, then) in [
        (nap(100), 1000, nap(100)),
        (nap(100), 120, nap(70)),
        (sleep(500), 1000, sleep(500)),
        (sleep(500), 300, sleep(250)),
        (Decision::Sleep(None), 300, sleep(250)),
        (Decision::Sleep(None), 50, Decision::Spin),
        (nap(100), 0, Decision::Spin),
        (Decision::Yield, 0, Decision::Yield),
    ] {
        assert_eq!(decision.until(us(due)), then, "{decision:?}, {due}");
    }
}

#[test]
fn a_contended_worker_naps_before_it_arms_its_ports() {
    let (policy, all) = (contended(Duration::ZERO), Ports::Mixed { announced: true });
    assert_eq!(decide(&policy, all, Duration::ZERO), Decision::Nap(NAP));
    assert_eq!(decide(&policy, all, ms(4)), Decision::Nap(ms(4) / PART));
    assert!(matches!(decide(&policy, all, NAPS_FOR), Decision::Sleep(_)));
}

#[test]
fn after_much_has_moved_a_contended_worker_naps_for_longer() {
    let long = Decision::Nap(us(150));
    let sleep = Decision::Sleep(Some(NAP));
    for (ports, short, alone) in [
        (Ports::Due, Decision::Nap(NAP), Decision::Nap(NAP)),
        (Ports::Mixed { announced: true }, Decision::Nap(NAP), sleep),
        (Ports::Armable(None), Decision::Sleep(None), Decision::Sleep(None)),
    ] {
        let free = Policy::new(Duration::ZERO, SLEEP);
        assert_eq!(decide_after(&free, ports, us(1), MUCH), alone, "the core is its own");
        let mut policy = contended(Duration::ZERO);
        assert_eq!(decide_after(&policy, ports, us(1), MUCH), long);
        policy.naps(&Inputs { now: Instant::now(), idle: us(1), rounds: 0, moved: MUCH, ports });
        assert_eq!(decide_after(&policy, ports, us(1), MUCH), short, "nothing came");
        assert_eq!(decide_after(&policy, ports, us(1), MUCH + 100), short, "a question or its answer");
        assert_eq!(decide_after(&policy, ports, us(1), 2 * MUCH), long);
    }
    let armed = Ports::Armed(None);
    assert_eq!(decide_after(&contended(Duration::ZERO), armed, us(1), MUCH), Decision::Sleep(None));
}

#[test]
fn what_naps_found_in_rings_makes_the_next_ones_longer_or_shorter() {
    let (mut policy, mut now) = (Policy::new(Duration::ZERO, SLEEP), Instant::now());
    let mut nap = |policy: &mut Policy, moved: u64, brought: u64| {
        let ports = Ports::Filling(1000);
        policy.naps(&Inputs { now, idle: us(1), rounds: 0, moved, ports });
        now += ms(1);
        policy.napped(now, moved + brought);
        policy.clock(now).nap
    };
    assert!(nap(&mut policy, 0, 1000) < us(100), "they were full");
    let longer = nap(&mut policy, 1000, 400);
    assert!(longer > us(100), "they were not half full");
    assert_eq!(decide(&policy, Ports::Filling(1000), us(1)), Decision::Nap(longer));
}
