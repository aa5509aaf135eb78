//! No end sleeps through what it waits for: readers, writers, low-water marks, long pauses.

use vmlane_guestsim::{Options, Path, Pattern};
use vmlane_port::queue_pair::Protocol;
use vmlane_stream::Settings;
use vmlane_testkit::wait_until;

use super::{World, check_pattern, connect, rings, send_pattern};

const PROTOCOLS: [Protocol; 2] = [Protocol::Qstate, Protocol::Pkt];

/// Workers that sleep as soon as they may: every wake-up is needed.
fn sleepy() -> World {
    World::with(Settings { spin: std::time::Duration::ZERO, ..Settings::default() })
}

#[test]
fn bytes_are_passed_to_and_fro() {
    for protocol in PROTOCOLS {
        for path in [Path::Dma, Path::DmaPosted] {
            let world = sleepy();
            let [(_a, client), (_b, server)] = world.two(path);
            let (a, b) = connect(&client, &server, 5000, Options { protocol, ..rings(4096) });
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut byte = [0];
                    while b.recv(&mut byte) == Ok(1) {
                        b.send_all(&byte).expect("to answer");
                    }
                });
                for round in 0..5_000u32 {
                    let mut byte = [0];
                    a.send_all(&[round as u8]).expect("to ask");
                    assert_eq!((a.recv(&mut byte), byte[0]), (Ok(1), round as u8));
                }
                a.shutdown(2);
            });
            world.assert_clean();
        }
    }
}

#[test]
fn a_reader_that_wants_many_bytes_is_woken_when_they_are_there() {
    for protocol in PROTOCOLS {
        let world = sleepy();
        let [(_a, client), (_b, server)] = world.two(Path::Dma);
        let (a, b) = connect(&client, &server, 5000, Options { protocol, ..rings(8192) });
        let pattern = Pattern::new(5);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for piece in 0..2_000 {
                    a.send_all(&pattern.bytes(piece * 100, 100)).expect("to send");
                }
                a.shutdown(2);
            });
            let mut at = 0;
            while at < 200_000 {
                // More than a WROTE for the first bytes can have announced.
                let wanted = 2_500.min(200_000 - at);
                assert!(b.wait_readable(wanted).expect("to be woken") >= wanted);
                let mut bytes = vec![0; wanted as usize];
                assert_eq!(b.recv_all(&mut bytes), Ok(wanted as usize));
                pattern.check(at, &bytes);
                at += wanted;
            }
        });
        world.assert_clean();
    }
}

#[test]
fn a_writer_sleeps_until_a_slow_reader_has_made_room() {
    for protocol in PROTOCOLS {
        for size in [128, 4096, 65_536] {
            let world = sleepy();
            let [(_a, client), (_b, server)] = world.two(Path::Dma);
            let (a, b) = connect(&client, &server, 5000, Options { protocol, ..rings(size) });
            let pattern = Pattern::new(6);
            std::thread::scope(|scope| {
                scope.spawn(|| send_pattern(&a, pattern, 20 * size, 3 * size as usize));
                let mut at = 0;
                while at < 19 * size {
                    // Both rings fill up before anything is read.
                    wait_until("both rings are full", || {
                        let full = a.queues(|queues| queues.room()) == 0;
                        at > 0 || full && b.queues(|queues| queues.ready()) == size - 1
                    });
                    let mut bytes = vec![0; size as usize / 2];
                    assert_eq!(b.recv_all(&mut bytes), Ok(bytes.len()));
                    pattern.check(at, &bytes);
                    at += bytes.len() as u64;
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                let mut rest = Vec::new();
                let mut byte = [0; 4096];
                while let Ok(len @ 1..) = b.recv(&mut byte) {
                    rest.extend_from_slice(&byte[..len]);
                }
                pattern.check(at, &rest);
                assert_eq!(at + rest.len() as u64, 20 * size);
            });
            world.assert_clean();
        }
    }
}

#[test]
fn many_streams_share_two_workers() {
    let world = World::with(Settings { workers: 2, ..Settings::default() });
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    let sizes = [128, 5003, 4096, 65_536, 262_144, 1000];
    std::thread::scope(|scope| {
        for (number, size) in sizes.into_iter().enumerate() {
            let (client, server, world) = (&client, &server, &world);
            scope.spawn(move || {
                let port = 5000 + number as u32;
                let protocol = PROTOCOLS[number % 2];
                let (a, b) = connect(client, server, port, Options { protocol, ..rings(size) });
                let pattern = Pattern::new(u64::from(port));
                let bytes = 2_000 * size.min(4096);
                std::thread::scope(|scope| {
                    scope.spawn(|| send_pattern(&a, pattern, bytes, 10_000));
                    assert_eq!(check_pattern(&b, pattern, 10_000), bytes);
                });
                assert_eq!(world.stats.panics.get(), 0);
            });
        }
    });
    world.assert_clean();
}

#[test]
fn connections_come_and_go() {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(Path::Dma);
    for round in 0..300u32 {
        let (a, b) = connect(&client, &server, 5000, rings(4096));
        a.send_all(&round.to_le_bytes()).expect("to send");
        a.close();
        let mut got = [0; 8];
        assert_eq!((b.recv_all(&mut got), got[..4].to_vec()), (Ok(4), round.to_le_bytes().to_vec()));
    }
    assert_eq!(world.hypervisor.connections(), []);
    world.assert_clean();
}
