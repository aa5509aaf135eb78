//! Which connections may begin a handshake: places, and how soon one that was used in vain is free again.
//!
//! A handshake costs this host a signature, and who connects decides how many it asks for. So a place of
//! a connection that proves no name stays taken for [`HOLD`]: places bound both the handshakes at a time and
//! those of a second. Strangers share theirs by network ([`Network`]); a peer's address has some of its own,
//! which no stranger takes.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use vmlane_port::Bounded;
use vmlane_port::fair::SharedPlaces;

/// A place is taken for so long, at least, unless a name is proved.
const HOLD: Duration = Duration::from_secs(1);
/// Places of each address of a peer's.
const OWN: usize = 4;

/// Who shares: an IPv4 address, or an IPv6 network of 64 bits, of which a host may have all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl Network {
    pub fn of(address: IpAddr) -> Network {
        match address {
            IpAddr::V4(_) => Network(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Network(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        }
    }
}

/// A place, to be given back by [`Admission::proved`] or [`Admission::failed`].
#[derive(Debug)]
pub struct AdmissionPlace {
    whose: Whose,
    taken: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    Peers(IpAddr),
    Strangers(Network),
}

/// See the module's text.
pub struct Admission {
    strangers: SharedPlaces<Network>,
    /// Addresses of peers, and how many of its places each has taken.
    peers: HashMap<IpAddr, usize>,
    /// Places that were used in vain, and are free again then.
    held: Bounded<(Instant, Whose)>,
    /// No place in `held` is free before.
    next: Option<Instant>,
}

impl Admission {
    /// `places`: for strangers. `peers`: how many addresses of peers there may be.
    pub fn new(places: usize, peers: usize) -> Admission {
        let held = Bounded::new(places + OWN * peers);
        Admission { strangers: SharedPlaces::new(places), peers: HashMap::new(), held, next: None }
    }

    /// Which addresses are peers' from here on. What they have taken stays taken.
    pub fn set_peers(&mut self, addresses: HashSet<IpAddr>) {
        let mut before = std::mem::take(&mut self.peers);
        let known = addresses.into_iter().map(|address| address.to_canonical());
        self.peers = known.map(|address| (address, before.remove(&address).unwrap_or(0))).collect();
    }

    /// A connection from `address` takes a place, if there is one.
    pub fn take(&mut self, address: IpAddr, now: Instant) -> Option<AdmissionPlace> {
        self.release(now);
        if let Some(used) = self.peers.get_mut(&address).filter(|used| **used < OWN) {
            *used += 1;
            return Some(AdmissionPlace { whose: Whose::Peers(address), taken: now });
        }
        let network = Network::of(address);
        self.strangers
            .take(network)
            .then_some(AdmissionPlace { whose: Whose::Strangers(network), taken: now })
    }

    /// The connection has proved a peer's name.
    pub fn proved(&mut self, place: AdmissionPlace) {
        self.free(place.whose);
    }

    /// The connection is over, and has proved none.
    pub fn failed(&mut self, place: AdmissionPlace, now: Instant) {
        let until = place.taken + HOLD;
        // Where there is no room, there are more places than were given.
        if until <= now || self.held.push((until, place.whose)).is_err() {
            return self.free(place.whose);
        }
        self.next = Some(self.next.map_or(until, |next| next.min(until)));
    }

    fn release(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let mut free = Vec::new();
        self.next = None;
        self.held.retain(|&(until, whose)| {
            if until <= now {
                free.push(whose);
                return false;
            }
            self.next = Some(self.next.map_or(until, |next| next.min(until)));
            true
        });
        free.into_iter().for_each(|whose| self.free(whose));
    }

    fn free(&mut self, whose: Whose) {
        match whose {
            Whose::Strangers(network) => self.strangers.give_back(&network),
            Whose::Peers(address) => {
                self.peers.get_mut(&address).into_iter().for_each(|used| *used = used.saturating_sub(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn taken(
        admission: &mut Admission,
        addresses: impl Iterator<Item = IpAddr>,
        now: Instant,
    ) -> Vec<AdmissionPlace> {
        addresses.filter_map(|address| admission.take(address, now)).collect()
    }

    fn of_one_network(count: u16) -> impl Iterator<Item = IpAddr> {
        (1..=count).map(|host| Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host).into())
    }

    #[test]
    fn all_addresses_of_a_network_have_the_places_of_one() {
        let now = Instant::now();
        let mut admission = Admission::new(64, 0);
        assert_eq!(taken(&mut admission, of_one_network(1000), now).len(), 32);
        assert!(admission.take(ip("2001:db8:0:8::1"), now).is_some(), "another network");
        assert!(admission.take(ip("192.0.2.1"), now).is_some());
    }

    #[test]
    fn a_peers_address_has_places_that_no_stranger_takes() {
        let now = Instant::now();
        let peer = ip("2001:db8:0:7::1");
        let mut admission = Admission::new(64, 1);
        admission.set_peers(HashSet::from([peer]));
        let strangers = (0..=255).flat_map(|a| (0..=255).map(move |b| IpAddr::from([10, 0, a, b])));
        assert_eq!(taken(&mut admission, strangers, now).len(), 64);
        assert!(taken(&mut admission, of_one_network(1000).skip(1), now).is_empty());
        let own = taken(&mut admission, std::iter::repeat_n(peer, 100), now);
        assert_eq!(own.len(), OWN);
        own.into_iter().for_each(|place| admission.proved(place));
        assert_eq!(taken(&mut admission, std::iter::repeat_n(peer, 100), now).len(), OWN);
    }

    #[test]
    fn handshakes_in_vain_are_as_many_a_second_as_there_are_places() {
        let begun = Instant::now();
        let mut admission = Admission::new(64, 0);
        let mut begin = |address: IpAddr| {
            let mut count = 0;
            for millisecond in 0..10_000 {
                let now = begun + Duration::from_millis(millisecond);
                if let Some(place) = admission.take(address, now) {
                    count += 1;
                    admission.failed(place, now);
                }
            }
            count
        };
        assert_eq!(begin(ip("198.51.100.1")), 32 * 10);
        let mut admission = Admission::new(64, 0);
        let first = admission.take(ip("198.51.100.1"), begun).unwrap();
        admission.failed(first, begun + HOLD);
        assert!(admission.held.is_empty(), "it has been taken for long enough");
    }
}
