//! The rows that need nothing but this machine.

use super::copy::{copy_pages, copy_ring};
use super::ring::{ring_round_trips, ring_stream};
use super::socket::{tcp_round_trips, tcp_stream, unix_round_trips, unix_round_trips_asleep, unix_stream};
use crate::report::{GBITS, ROUND_TRIPS, Registry};

pub fn register(registry: &mut Registry) {
    for (size, bytes) in [("4k", 4 << 10), ("64k", 64 << 10)] {
        let name = |what: &str| format!("{what}.{size}");
        let [copy, ring, unix, tcp] = ["copy.ring", "ring", "unix", "tcp"].map(name);
        registry.add(&copy, GBITS, &[], move |length| copy_ring(bytes, length));
        registry.add(&name("copy.pages"), GBITS, &[&copy], move |length| copy_pages(bytes, length));
        registry.add(&ring, GBITS, &[&copy, &unix, &tcp], move |length| ring_stream(bytes, length));
        registry.add(&unix, GBITS, &[], move |length| unix_stream(bytes, length));
        registry.add(&tcp, GBITS, &[], move |length| tcp_stream(bytes, length));
    }
    registry.add("ring.rr.1", ROUND_TRIPS, &["unix.rr.1", "tcp.rr.1"], ring_round_trips);
    registry.add("unix.rr.1", ROUND_TRIPS, &[], unix_round_trips);
    registry.add("unix.asleep.1", ROUND_TRIPS, &[], unix_round_trips_asleep);
    registry.add("tcp.rr.1", ROUND_TRIPS, &[], tcp_round_trips);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::{Only, Options};

    #[test]
    fn every_row_measures_something() {
        let mut registry = Registry::default();
        register(&mut registry);
        let options = Options { only: Only::default(), rounds: 1, length: Duration::from_millis(5) };
        let mut ran = Vec::new();
        let report = registry.run(&options, |_, name| ran.push(name.to_owned())).unwrap();
        assert!(report.rows.iter().map(|row| &row.name).eq(&ran), "{ran:?}: {:?}", report.rows);
        for row in &report.rows {
            assert!(row.value > 0.0 && row.value.is_finite(), "{row:?}");
        }
    }
}
