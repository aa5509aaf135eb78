//! A model of a switch with more workers than this machine has cores: what they carry, from costs that were measured
//! with one worker and with two. It knows rounds, shares, the places between workers and which ports are whose; it does
//! not know caches, memory or the guests.

use std::collections::VecDeque;

/// Frames that a port sends in a round (`vmlane_switch::Settings`), and that two workers may have under way one way.
const SHARE: u32 = 64;
const PLACES: usize = 256;
/// Simulated time, of which the first tenth does not count.
const LENGTH: f64 = 20e6;

/// Nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A frame between two ports of one worker.
    pub frame: f64,
    /// A frame to another worker's port: the sum of what both workers spend.
    pub handed: f64,
    /// A round, and a port in it that is awake.
    pub round: f64,
    pub port: f64,
}

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// VM 0 to VM 1 and back, 2 and 3, and so on, each pair with one worker.
    PairsApart,
    /// The same pairs, but each port belongs to the worker with the fewest ports when it is made: a pair's two lie
    /// with different workers.
    Pairs,
    /// Each frame to any other VM.
    Any,
}

struct Worker {
    /// Its clock, in nanoseconds.
    now: f64,
    ports: Vec<usize>,
    /// Frames from each other worker.
    inbox: Vec<VecDeque<f64>>,
    first: usize,
}

/// Million frames a second that `workers` carry while all of `vms` send small frames as fast as they can.
pub fn simulate(workers: usize, vms: usize, traffic: Traffic, costs: Costs) -> f64 {
    let place = |vm: usize| if traffic == Traffic::PairsApart { vm / 2 % workers } else { vm % workers };
    let ports = |worker: usize| (0..vms).filter(|&vm| place(vm) == worker).collect();
    let new =
        |worker| Worker { now: 0.0, ports: ports(worker), inbox: vec![VecDeque::new(); workers], first: 0 };
    let mut all: Vec<Worker> = (0..workers).map(new).collect();
    let (mut delivered, mut random) = (0u64, 0x9e37_79b9_7f4a_7c15_u64);
    loop {
        // The worker whose clock is behind has its round.
        let (number, now) =
            all.iter().map(|worker| worker.now).enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).expect("one");
        if now >= LENGTH {
            return delivered as f64 * 1e3 / (LENGTH * 0.9);
        }
        let counts = u64::from(now >= LENGTH / 10.0);
        let worker = &mut all[number];
        let mut spent = costs.round + costs.port * worker.ports.len() as f64;
        for inbox in &mut worker.inbox {
            while inbox.front().is_some_and(|&sent| sent <= now) {
                inbox.pop_front();
                spent += costs.handed / 2.0;
                delivered += counts;
            }
        }
        worker.first += 1;
        let (own, first) = (worker.ports.clone(), worker.first);
        for at in 0..own.len() {
            let vm = own[(at + first) % own.len()];
            for _ in 0..SHARE {
                let to = match traffic {
                    Traffic::PairsApart | Traffic::Pairs => vm ^ 1,
                    Traffic::Any => {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        (vm + 1 + (random % (vms as u64 - 1)) as usize) % vms
                    }
                };
                let owner = place(to);
                if owner == number {
                    spent += costs.frame;
                    delivered += counts;
                    continue;
                }
                let inbox = &mut all[owner].inbox[number];
                if inbox.len() == PLACES {
                    // Its frames wait for a place, in order.
                    break;
                }
                spent += costs.handed / 2.0;
                inbox.push_back(now + spent);
            }
        }
        // A look in vain takes time, too.
        all[number].now = now + spent.max(costs.frame);
    }
}

/// The table: million frames a second by number of workers, for each number of VMs and kind of traffic.
pub fn table(costs: Costs) -> String {
    const WORKERS: [usize; 6] = [1, 2, 4, 8, 16, 32];
    let mut text = format!("{:<28}", "VMs, traffic");
    WORKERS.iter().for_each(|count| text += &format!("{count:>9}"));
    text += " workers\n";
    for vms in [8, 64, 512] {
        for (name, traffic) in [
            ("pairs, one worker each", Traffic::PairsApart),
            ("pairs across", Traffic::Pairs),
            ("any to any", Traffic::Any),
        ] {
            text += &format!("{:<28}", format!("{vms}, {name}"));
            for workers in WORKERS {
                text += &format!("{:>9.1}", simulate(workers, vms, traffic, costs));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { frame: 100.0, handed: 400.0, round: 0.0, port: 0.0 };

    fn near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 0.05, "{value}, and it should be {expected}");
    }

    #[test]
    fn one_worker_is_as_fast_as_a_frame_costs() {
        near(simulate(1, 8, Traffic::Any, COSTS), 10.0);
        near(simulate(1, 8, Traffic::Pairs, Costs { round: 6400.0, ..COSTS }), 10.0 * 8.0 / 9.0);
    }

    #[test]
    fn pairs_apart_grow_with_the_workers_until_there_are_no_more_pairs() {
        near(simulate(4, 8, Traffic::PairsApart, COSTS), 40.0);
        near(simulate(32, 8, Traffic::PairsApart, COSTS), 40.0);
    }

    #[test]
    fn pairs_across_two_workers_pay_for_each_frame_twice() {
        near(simulate(2, 8, Traffic::Pairs, COSTS), 5.0);
    }

    #[test]
    fn any_to_any_is_a_mixture() {
        near(simulate(2, 64, Traffic::Any, COSTS), 2e3 / (0.5 * 100.0 + 0.5 * 400.0));
    }
}
