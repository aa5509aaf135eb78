//! Streams between guests: every byte arrives, in order, whatever the rings and the protocol.

use vmlane_guestsim::{Options, Path, Placement};
use vmlane_port::queue_pair::Protocol;

use super::{World, connect, rings, stream_both_ways};

const MIB: u64 = 1 << 20;

fn both_ways(options: Options, path: Path, bytes: u64, largest: usize) {
    let world = World::new();
    let [(_a, client), (_b, server)] = world.two(path);
    stream_both_ways(connect(&client, &server, 5000, options), bytes, largest);
    world.assert_clean();
    for cid in [3, 4] {
        let view = world.view(cid);
        assert_eq!((view.queue_pairs, view.connections), (0, 0), "everything is given back");
        assert_eq!(view.stats.stream_bytes_received.get(), bytes);
    }
}

#[test]
fn rings_of_256_kib() {
    both_ways(rings(262_144), Path::Dma, 64 * MIB, 100_000);
}

#[test]
fn rings_of_a_page() {
    both_ways(rings(4096), Path::Dma, 24 * MIB, 9_000);
}

#[test]
fn rings_of_an_odd_size() {
    both_ways(rings(5003), Path::Dma, 24 * MIB, 9_000);
}

#[test]
fn the_smallest_rings() {
    both_ways(rings(128), Path::Dma, MIB, 300);
}

#[test]
fn the_older_protocol() {
    let options = Options { protocol: Protocol::Pkt, ..rings(262_144) };
    both_ways(options, Path::Dma, 32 * MIB, 100_000);
    both_ways(Options { size: 5003, ..options }, Path::Dma, 2 * MIB, 9_000);
}

#[test]
fn pages_in_a_row() {
    let options = Options { placement: Placement::Contiguous, ..rings(262_144) };
    both_ways(options, Path::DmaPosted, 32 * MIB, 100_000);
}

#[test]
fn byte_ports() {
    both_ways(rings(65_536), Path::Ports, 8 * MIB, 50_000);
}
