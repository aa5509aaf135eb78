//! Streams between two guests whose every byte is checked at the end.

use vmlane_lab::{LabSpec, Running};

use crate::traffic::address;
use crate::{Bed, Service, begin, begin_tcp, moves, spec, take, take_tcp, whole};

/// Four VMCI streams and four of TCP over the NICs, between two guests.
pub struct Load {
    streams: Vec<(&'static str, Running)>,
    _takers: Vec<Service>,
}

impl Load {
    /// Two guests for it, with VMCI and a NIC.
    pub fn guests(what: &str, kernels: &[&str]) -> LabSpec {
        spec(what, kernels).device("vmxnet3").unwrap()
    }

    /// All streams move when this returns.
    pub fn start(bed: &Bed) -> Load {
        let takers = ["a", "b"].map(|name| [take(&bed.guest(name)), take_tcp(&bed.guest(name))]);
        let mut streams = Vec::new();
        for (from, to, address) in [("a", "b", "10.77.0.2"), ("b", "a", "10.77.0.1")].repeat(2) {
            streams
                .extend([begin(bed, from, to), begin_tcp(bed, from, address)].map(|stream| (from, stream)));
        }
        let streams = streams.into_iter().map(|(from, stream)| (from, moves(stream))).collect();
        Load { streams, _takers: takers.into_iter().flatten().collect() }
    }

    /// Two streams of TCP, one each way, over each of these cards of guests a and b.
    pub fn over_cards(bed: &Bed, cards: &[u32]) -> Load {
        let takers = ["a", "b"].map(|name| take_tcp(&bed.guest(name)));
        let ways = cards.iter().flat_map(|&card| [("a", address(card, 2)), ("b", address(card, 1))]);
        let streams: Vec<_> = ways.map(|(from, to)| (from, begin_tcp(bed, from, &to))).collect();
        let streams = streams.into_iter().map(|(from, stream)| (from, moves(stream))).collect();
        Load { streams, _takers: takers.into() }
    }

    /// Streams of sockets alone, between these guests.
    pub fn sockets(bed: &Bed, pairs: &[(&'static str, &'static str)]) -> Load {
        let mut takers: Vec<&str> = pairs.iter().map(|(_, to)| *to).collect();
        takers.sort_unstable();
        takers.dedup();
        let takers = takers.into_iter().map(|name| take(&bed.guest(name))).collect();
        let streams: Vec<_> = pairs.iter().map(|(from, to)| (*from, begin(bed, from, to))).collect();
        let streams = streams.into_iter().map(|(from, stream)| (from, moves(stream))).collect();
        Load { streams, _takers: takers }
    }

    /// Every stream must be complete. Returns the longest pause of any, in seconds.
    pub fn finish(self, bed: &Bed) -> f64 {
        let pause = |(from, stream)| whole(bed, from, stream)["pause"].as_f64().expect("a time");
        self.streams.into_iter().map(pause).fold(0.0, f64::max)
    }
}
