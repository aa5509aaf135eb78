//! The worker's thread: what is asked of it is done on return, frames move by themselves, idle ports
//! cost nothing, senders share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_guestsim::memory_port::{Trap, Wire};
use vmlane_port::{Frames, PortId};
use vmlane_switch::{Settings, Switch, WorkerStats};
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::Mac;

use crate::common::{Bench, Guest, frame, holding, mac};

fn guest(switch: &Switch, number: u8) -> (PortId, Wire) {
    let id = switch.add_port(Bench::spec(number)).unwrap();
    let (wire, end) = Wire::new(mac(number));
    switch.attach(id, end);
    (id, wire)
}

fn stats(switch: &Switch) -> &WorkerStats {
    switch.worker_stats().next().unwrap()
}

#[test]
fn frames_move_while_ports_come_and_go() {
    let switch = Arc::new(Switch::start(Settings::default()).unwrap());
    let ((a, from), (b, to)) = (guest(&switch, 1), guest(&switch, 2));
    for number in 0..100 {
        from.send(&frame(mac(2), mac(1), 60, number), vmlane_port::Offload::None, None);
        switch.kick(a);
    }
    let mut got = 0;
    wait_until("all frames", || {
        got += to.received().len();
        got >= 100
    });
    assert_eq!(got, 100);
    switch.detach(b);
    assert!(to.dropped() && !switch.ports()[1].attached);
    let (again, end) = Wire::new(mac(2));
    switch.attach(b, end);
    let (third, end) = Wire::new(mac(2));
    switch.attach(b, end);
    assert!(again.dropped() && !third.dropped());
    switch.attach(PortId(99), Wire::new(mac(9)).1);
    assert!(switch.remove_port(b) && third.dropped());
    drop(switch);
    assert!(from.dropped());
}

#[test]
fn a_panic_leaves_the_worker_running() {
    let switch = Switch::start(Settings::default()).unwrap();
    let (a, from) = guest(&switch, 1);
    from.set_trap(Trap::Fetch);
    from.send(&frame(mac(2), mac(1), 60, 0), vmlane_port::Offload::None, None);
    switch.kick(a);
    wait_until("the port is detached", || from.dropped());
    assert_eq!(stats(&switch).panics.get(), 1);
    let (_, again) = guest(&switch, 3);
    switch.detach(a);
    assert!(!again.dropped());
}

#[test]
fn idle_ports_cost_nothing_worth_mentioning() {
    let switch = Switch::start(Settings::default()).unwrap();
    let _wires: Vec<_> = (1..=8).map(|number| guest(&switch, number)).collect();
    wait_until("the worker sleeps", || stats(&switch).sleeps.get() > 20);
    // Its sleeps are shorter while something moved not long ago.
    std::thread::sleep(Duration::from_secs(2));
    let counts = || (switch.heartbeats().next().unwrap().read().rounds, stats(&switch).sleeps.get());
    let (begun, before) = (Instant::now(), counts());
    std::thread::sleep(Duration::from_secs(2));
    let after = counts();
    // A sleep lasts 5 ms in the end, and a round or two go before it.
    let periods = begun.elapsed().as_millis() as u64 / 5;
    let (rounds, sleeps) = (after.0 - before.0, after.1 - before.1);
    assert!(sleeps <= periods + 20, "{sleeps} sleeps in {periods} times 5 ms");
    assert!(rounds <= 3 * sleeps + 20, "{rounds} rounds for {sleeps} sleeps");
}

#[test]
fn who_sends_in_vain_does_not_keep_the_worker_awake() {
    let switch = Switch::start(Settings { floods: 40, ..Settings::default() }).unwrap();
    let ((_, flood), (_, other)) = (guest(&switch, 1), guest(&switch, 2));
    let to_no_one = frame(mac(9), mac(1), 60, 0);
    let slept = || stats(&switch).sleeps.get();
    // The first ones count as any other; from then on there is always one more in the queue.
    wait_until("the sender rests", || {
        (flood.queued()..64).for_each(|_| flood.send(&to_no_one, vmlane_port::Offload::None, None));
        slept() > 0
    });
    let before = slept();
    wait_until("the worker sleeps though frames wait", || {
        (flood.queued()..64).for_each(|_| flood.send(&to_no_one, vmlane_port::Offload::None, None));
        slept() > before + 20
    });
    // Others are served as ever.
    other.send(&frame(mac(1), mac(2), 60, 0), vmlane_port::Offload::None, None);
    wait_until("the frame to the one that rests", || !flood.received().is_empty());
}

#[test]
fn senders_share_a_receiver_whatever_the_size_of_their_frames() {
    let mut bench = Bench::new();
    let senders: Vec<_> = (1..=3).map(|number| bench.guest(number)).collect();
    let receiver = bench.guest(9);
    receiver.wire.set_capabilities(vmlane_port::RxCapabilities {
        frame: 20_000,
        ..vmlane_guestsim::memory_port::PLAIN
    });
    for (sender, len) in senders.iter().zip([60, 1500, 16_000]) {
        let number = senders.iter().position(|other| other.id == sender.id).unwrap() as u8 + 1;
        (0..5000).for_each(|_| sender.send(&frame(mac(9), mac(number), len, 0)));
    }
    receiver.wire.forget_frames();
    for _ in 0..40 {
        bench.step();
    }
    let frames: Vec<_> = senders.iter().map(|sender| sender.stats.tx_frames.get()).collect();
    // Small ones are limited by number, large ones by bytes.
    assert_eq!(&frames[..2], [40 * 64, 40 * 64]);
    let large = frames[2] * 16_000 / 40;
    assert!((200 << 10..300 << 10).contains(&large), "{large} bytes a turn");
}

#[test]
fn a_receiver_that_stops_does_not_slow_the_others() {
    let mut bench = Bench::with(Settings { hold: Duration::from_millis(2), ..Settings::default() });
    let (a, stopped, other) = (bench.guest(1), bench.guest(2), bench.guest(3));
    stopped.wire.set_room(Some(0));
    let start = Instant::now();
    let mut sent = 0u64;
    while start.elapsed() < Duration::from_millis(200) || sent < 1000 {
        if a.wire.queued() < 64 {
            a.send(&frame(mac(2), mac(1), 60, 0));
            a.send(&frame(mac(3), mac(1), 60, 0));
            sent += 1;
        }
        bench.step();
    }
    bench.run();
    assert_eq!(other.stats.rx_frames.get(), sent);
    // Some before it is known that it takes nothing.
    let dropped = || stopped.stats.drop_no_buffers.get() + stopped.stats.drop_slow_receiver.get();
    wait_until("no frame waits any more", || {
        bench.step();
        dropped() >= sent
    });
    assert_eq!(dropped(), sent);
}

/// Keeps a port's queue filled, and turns the worker.
fn saturate(bench: &mut Bench, senders: &[(&Guest, Vec<u8>)], rounds: usize) {
    for _ in 0..rounds {
        for (sender, frame) in senders {
            while sender.wire.queued() < 300 {
                sender.send(frame);
            }
        }
        bench.step();
    }
}

#[test]
fn ports_of_one_vm_share_its_part() {
    let mut bench = Bench::exactly(holding());
    let port = |bench: &mut Bench, name: &str, number: u8| {
        bench.port(vmlane_switch::PortSpec { name: name.into(), ..Bench::spec(number) })
    };
    let honest = port(&mut bench, "web/nic0", 1);
    let greedy: Vec<_> = (2..10).map(|n| port(&mut bench, &format!("evil/nic{n}"), n)).collect();
    let sink = port(&mut bench, "db/nic0", 99);
    sink.wire.forget_frames();
    let to = |number: u8| frame(mac(99), mac(number), 1000, 0);
    let mut senders = vec![(&honest, to(1))];
    senders.extend(greedy.iter().zip(2..).map(|(guest, number)| (guest, to(number))));
    saturate(&mut bench, &senders, 200);
    let sent = |guest: &Guest| guest.stats.tx_frames.get();
    let all: u64 = greedy.iter().map(sent).sum();
    assert_eq!(sent(&honest), all);
    let each: Vec<u64> = greedy.iter().map(sent).collect();
    assert!(each.iter().max().unwrap() < &(2 * each.iter().min().unwrap()), "{each:?}");
}

#[test]
fn broadcasts_are_charged_by_their_copies() {
    let mut bench = Bench::exactly(holding());
    let (honest, storm) = (bench.guest(1), bench.guest(2));
    let others: Vec<_> = (3..40).map(|number| bench.guest(number)).collect();
    others.iter().for_each(|other| other.wire.forget_frames());
    let senders = [(&honest, frame(mac(3), mac(1), 1000, 0)), (&storm, frame(Mac([0xff; 6]), mac(2), 60, 0))];
    saturate(&mut bench, &senders, 100);
    let (sent, storms) = (honest.stats.tx_frames.get(), storm.stats.tx_frames.get());
    assert!(storms * 8 < sent, "{storms} broadcasts beside {sent} frames");
}

#[test]
fn addresses_seen_behind_a_port_are_listed() {
    let switch = Switch::start(Settings::default()).unwrap();
    let ((a, from), (_, to)) = (guest(&switch, 1), guest(&switch, 2));
    for source in [mac(1), mac(7)] {
        from.send(&frame(mac(2), source, 60, 0), vmlane_port::Offload::None, None);
    }
    switch.kick(a);
    let mut got = 0;
    wait_until("both frames", || {
        got += to.received().len();
        got >= 2
    });
    let learned: Vec<_> = switch.learned().into_iter().map(|one| (one.port, one.mac, one.vlan)).collect();
    assert_eq!(learned, [(a, mac(7), 0)], "its own address is not learned");
}
