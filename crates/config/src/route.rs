//! Other hosts: which CIDs each owns, and whom it may reach.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use toml::Spanned;
use vmlane_access::Owner;

use crate::notes::Notes;
use crate::owner;
use crate::raw::{RawPeer, RawRoute, RawVm};
use crate::vsock::CIDS;

/// A peer of which nothing is received for so long is gone, unless the configuration has another time.
const DEAD_S: u64 = 10;
const DEADS: RangeInclusive<i64> = 2..=600;

/// CIDs that a host owns: the first and the last one.
pub type CidRange = (u32, u32);

/// The table `[route]`, and `[[peer]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConfig {
    /// This host's, which its certificate proves.
    pub name: String,
    /// CIDs that it owns.
    pub cids: Vec<CidRange>,
    /// The one that its programs have for other hosts.
    pub cid: Option<u32>,
    /// As whom the helper runs.
    pub owner: Option<Owner>,
    pub listen: Option<SocketAddr>,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authority: PathBuf,
    /// Lists of revoked certificates.
    pub crl: Option<PathBuf>,
    pub dead_s: u64,
    /// Names are unique, and no CID is owned by two.
    pub peers: Vec<PeerConfig>,
}

/// One `[[peer]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    pub name: String,
    /// None: it connects to this host.
    pub address: Option<SocketAddr>,
    pub cids: Vec<CidRange>,
    pub groups: Vec<String>,
    pub trusted: bool,
    /// SHA-256 of each certificate that it may have, 64 hexadecimal digits; empty: any that proves its name
    /// will do.
    pub fingerprints: Vec<String>,
}

impl RouteConfig {
    /// May VMs of this group reach the CID of another host?
    pub fn reaches(&self, cid: u32, group: &str) -> bool {
        let owns = |peer: &&PeerConfig| is_in(&peer.cids, cid.into());
        self.peers.iter().find(owns).is_some_and(|peer| peer.groups.iter().any(|one| one == group))
    }
}

/// Whose a range is, for messages: a key and a place in the files.
struct Owned {
    range: CidRange,
    whose: String,
    place: usize,
}

pub fn judge(
    raw: &Option<Spanned<RawRoute>>,
    raw_peers: &[Spanned<RawPeer>],
    vms: &[Spanned<RawVm>],
    notes: &mut Notes<'_>,
) -> Option<RouteConfig> {
    let Some(spanned) = raw else {
        if let Some(peer) = raw_peers.first() {
            let text = "peer: there is no [route]; add it, with this host's name, cids, certificate, key and authority";
            notes.problem(peer.span(), text.into());
        }
        return None;
    };
    let (raw, whole) = (spanned.get_ref(), spanned.span());
    let mut owned = Vec::new();
    let name = host_name("route", &raw.name, &whole, notes);
    let cids = ranges("route", &raw.cids, &whole, &mut owned, notes);
    let own_name = place(&raw.name, &whole);
    let peers = peers(raw_peers, (&name, &own_name), &mut owned, notes);
    overlaps(owned, notes);
    let of_cids: Vec<_> = match raw.cids.as_deref() {
        None | Some([]) => vec![whole.clone()],
        Some(ranges) => ranges.iter().map(Spanned::span).collect(),
    };
    vms_are_inside(&cids, &of_cids, vms, notes);
    let cid: Option<u32> = notes.number("route", "cid", &raw.cid, CIDS);
    if let Some(cid) = cid {
        let is_its = |vm: &Spanned<i64>| *vm.get_ref() == i64::from(cid);
        let taken = vms.iter().any(|vm| vm.get_ref().cid.as_ref().is_some_and(is_its));
        if taken || !is_in(&cids, cid.into()) {
            let text =
                format!("route: cid = {cid} must be in the ranges of cids, and no VM's; use another one");
            let own = place(&raw.cid, &whole);
            let of: Vec<_> = of_cids.into_iter().chain([own.clone()]).collect();
            notes.conflict(own, &of, text);
        }
    }
    let listen = raw.listen.as_ref().and_then(|listen| address("route: listen", listen, notes));
    if raw.listen.is_none() && peers.iter().any(|peer| peer.name < name) {
        let text = "route: listen is missing, and there are peers that connect to this host; add listen = \"0.0.0.0:7447\"";
        let of_peers = raw_peers.iter().map(|peer| place(&peer.get_ref().name, &peer.span()));
        let of: Vec<_> = of_peers.chain([own_name]).collect();
        notes.conflict(whole.clone(), &of, text.into());
    }
    let mut file = |key: &str, value: &Option<Spanned<String>>| {
        let path = value.as_ref().map_or("", |value| value.get_ref());
        if !path.starts_with('/') {
            let text = format!(
                "route: {key} is missing or no absolute path; name a PEM file, as /etc/vmlane/route/{key}.pem"
            );
            notes.problem(place(value, &whole), text);
        }
        PathBuf::from(path)
    };
    let (certificate, key) = (file("certificate", &raw.certificate), file("key", &raw.key));
    let authority = file("authority", &raw.authority);
    let crl = raw.crl.is_some().then(|| file("crl", &raw.crl));
    let dead_s = notes.number("route", "dead_s", &raw.dead_s, DEADS).unwrap_or(DEAD_S);
    let owner = owner::judge("route", &raw.owner, notes);
    Some(RouteConfig { name, cids, cid, owner, listen, certificate, key, authority, crl, dead_s, peers })
}

/// Where a value stands, or what lacks it.
fn place<T>(value: &Option<Spanned<T>>, whole: &Range<usize>) -> Range<usize> {
    value.as_ref().map_or(whole.clone(), Spanned::span)
}

/// The other hosts. `own` is this one's name, and its place.
fn peers(
    raws: &[Spanned<RawPeer>],
    (own, own_place): (&str, &Range<usize>),
    owned: &mut Vec<Owned>,
    notes: &mut Notes<'_>,
) -> Vec<PeerConfig> {
    let mut names = HashSet::from([own.to_owned()]);
    let mut peers = Vec::new();
    for (index, spanned) in raws.iter().enumerate() {
        let (peer, whole) = (spanned.get_ref(), spanned.span());
        let key = match &peer.name {
            Some(name) => format!("peer {:?}", name.get_ref()),
            None => format!("peer number {}", index + 1),
        };
        let name = host_name(&key, &peer.name, &whole, notes);
        let both = [own_place.clone(), place(&peer.name, &whole)];
        if !names.insert(name.clone()) {
            let text = format!("{key}: name is this host's or another peer's; rename one");
            notes.conflict(whole.clone(), &both, text);
        }
        let cids = ranges(&key, &peer.cids, &whole, owned, notes);
        let groups = notes.names(&key, "groups", peer.groups.as_deref().unwrap_or_default());
        if groups.is_empty() {
            let text = format!(
                "{key}: groups is missing; list the groups that it may reach: groups = [\"default\"]"
            );
            notes.problem(whole.clone(), text);
        }
        let address =
            peer.address.as_ref().and_then(|value| address(&format!("{key}: address"), value, notes));
        if peer.address.is_none() && *own < *name {
            let text = format!(
                "{key}: address is missing; of two hosts the one whose name sorts first ({own:?}) connects to the other; \
                 add address = \"IP:PORT\""
            );
            notes.conflict(whole.clone(), &both, text);
        }
        let fingerprints = fingerprints(&key, peer.fingerprints.as_deref(), whole, notes);
        peers.push(PeerConfig { name, address, cids, groups, trusted: peer.trusted, fingerprints });
    }
    peers
}

/// In one spelling: digits only, in lower case.
fn fingerprints(
    key: &str,
    raw: Option<&[Spanned<String>]>,
    whole: Range<usize>,
    notes: &mut Notes<'_>,
) -> Vec<String> {
    let Some(raw) = raw else { return Vec::new() };
    if raw.is_empty() {
        let text = format!(
            "{key}: fingerprints = [] would let no certificate of it pass; list them, or omit the key"
        );
        notes.problem(whole, text);
    }
    let mut all = Vec::new();
    for value in raw {
        let text = value.get_ref().to_ascii_lowercase();
        let digits: String = text.split(':').collect();
        let pairs = !text.contains(':') || text.split(':').all(|pair| pair.len() == 2);
        if !pairs || digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let text = format!(
                "{key}: fingerprints: {:?} is no SHA-256 fingerprint of a certificate (64 hexadecimal digits, with or without colons); \
                 `openssl x509 -noout -fingerprint -sha256 -in FILE.pem` shows it",
                value.get_ref()
            );
            notes.problem(value.span(), text);
        }
        all.push(digits);
    }
    all
}

fn host_name(
    key: &str,
    name: &Option<Spanned<String>>,
    whole: &Range<usize>,
    notes: &mut Notes<'_>,
) -> String {
    let Some(name) = name else {
        let text = format!("{key}: name is missing; add name = \"...\", as in the host's certificate");
        notes.problem(whole.clone(), text);
        return String::new();
    };
    let text = notes.name(key, "name", name);
    if text.contains('_') || !text.contains(|letter: char| letter.is_ascii_alphabetic()) {
        let text = format!(
            "{key}: name = {text:?} cannot be a host's in a certificate; use letters, digits, '.' and '-'"
        );
        notes.problem(name.span(), text);
    }
    text.to_ascii_lowercase()
}

fn address(key: &str, value: &Spanned<String>, notes: &mut Notes<'_>) -> Option<SocketAddr> {
    let parsed = value.get_ref().parse().ok();
    if parsed.is_none() {
        let text = format!(
            "{key} = {:?} is not IP:PORT; write for example \"192.0.2.7:7447\" or \"[2001:db8::7]:7447\"",
            value.get_ref()
        );
        notes.problem(value.span(), text);
    }
    parsed
}

fn ranges(
    key: &str,
    raw: &Option<Vec<Spanned<toml::Value>>>,
    whole: &Range<usize>,
    owned: &mut Vec<Owned>,
    notes: &mut Notes<'_>,
) -> Vec<CidRange> {
    let raw = raw.as_deref().unwrap_or_default();
    if raw.is_empty() {
        let text =
            format!("{key}: cids is missing; list the CIDs that the host owns: cids = [\"1000-1999\"]");
        notes.problem(whole.clone(), text);
    }
    let mut ranges = Vec::new();
    for value in raw {
        match range(value.get_ref()) {
            Some(range) => {
                ranges.push(range);
                owned.push(Owned { range, whose: key.to_owned(), place: value.span().start });
            }
            None => {
                let text = format!(
                    "{key}: cids: {} is no range of CIDs; write for example \"1000-1999\", or a number, from {} to {}",
                    value.get_ref(),
                    CIDS.start(),
                    CIDS.end()
                );
                notes.problem(value.span(), text);
            }
        }
    }
    ranges
}

fn overlaps(mut owned: Vec<Owned>, notes: &mut Notes<'_>) {
    owned.sort_by_key(|owned| owned.range);
    let mut furthest: Option<&Owned> = None;
    for next in &owned {
        if let Some(before) = furthest.filter(|before| before.range.1 >= next.range.0) {
            let (first, second) = (shown(before.range), shown(next.range));
            let text = format!(
                "{}: cids: {second} overlaps {first} of {} ({}); a CID is owned by one host",
                next.whose,
                before.whose,
                notes.shown(before.place, next.place)
            );
            notes.problem(next.place..next.place, text);
        }
        if furthest.is_none_or(|before| before.range.1 < next.range.1) {
            furthest = Some(next);
        }
    }
}

fn vms_are_inside(
    cids: &[CidRange],
    of_cids: &[Range<usize>],
    vms: &[Spanned<RawVm>],
    notes: &mut Notes<'_>,
) {
    for (index, vm) in vms.iter().enumerate() {
        let Some(cid) = &vm.get_ref().cid else { continue };
        if CIDS.contains(cid.get_ref()) && !is_in(cids, *cid.get_ref()) {
            let text = format!(
                "{}: cid = {} is none that this host owns: [route] cids has {}; give the VM another, or add it there",
                vm.get_ref().label(index),
                cid.get_ref(),
                cids.iter().copied().map(shown).collect::<Vec<_>>().join(", ")
            );
            let of: Vec<_> = of_cids.iter().cloned().chain([cid.span()]).collect();
            notes.conflict(cid.span(), &of, text);
        }
    }
}

fn is_in(cids: &[CidRange], cid: i64) -> bool {
    cids.iter().any(|&(first, last)| (i64::from(first)..=i64::from(last)).contains(&cid))
}

fn shown((first, last): CidRange) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn range(value: &toml::Value) -> Option<CidRange> {
    let cid = |number: i64| CIDS.contains(&number).then_some(number as u32);
    match value {
        toml::Value::Integer(number) => cid(*number).map(|cid| (cid, cid)),
        toml::Value::String(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (cid(first.trim().parse().ok()?)?, cid(last.trim().parse().ok()?)?);
            (first <= last).then_some((first, last))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    fn check(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("t.toml"), text).map_err(|error| error.to_string())
    }

    const ROUTE: &str = "[route]\nname = \"alpha\"\ncids = [\"1000-1999\", 5]\ncid = 1000\nlisten = \"0.0.0.0:7447\"\n\
        certificate = \"/c\"\nkey = \"/k\"\nauthority = \"/a\"\n";
    const PEER: &str = "[[peer]]\nname = \"beta\"\naddress = \"192.0.2.7:7447\"\ncids = [\"2000-2999\"]\ngroups = [\"default\"]\n";

    #[test]
    fn hosts_and_their_cids_are_read() {
        let config = check(&format!(
            "{ROUTE}{PEER}[[vm]]\nname = \"a\"\ncid = 5\nforward = [{{ port = 1, to = \"2005:80\" }}]\n"
        ))
        .unwrap();
        let route = config.route.as_ref().unwrap();
        assert_eq!(
            (route.name.as_str(), route.cids.as_slice()),
            ("alpha", [(1000, 1999), (5, 5)].as_slice())
        );
        assert_eq!((route.cid, route.dead_s), (Some(1000), 10));
        assert_eq!(route.peers[0].cids, [(2000, 2999)]);
        assert!(
            route.reaches(2005, "default")
                && !route.reaches(2005, "other")
                && !route.reaches(3000, "default")
        );
        let forwards = config.forwards(config.vm("a").unwrap());
        assert_eq!((forwards[0].to_cid, forwards[0].to_port), (2005, 80));
        assert_eq!(check("").unwrap().route, None);
        let colons = ["AB"; 32].join(":");
        let text =
            format!("{ROUTE}crl = \"/l\"\n{PEER}fingerprints = [{colons:?}, \"{}\"]\n", "0f".repeat(32));
        let route = check(&text).unwrap().route.unwrap();
        assert_eq!(route.crl.as_deref(), Some(Path::new("/l")));
        assert_eq!(route.peers[0].fingerprints, ["ab".repeat(32), "0f".repeat(32)]);
    }

    #[test]
    fn mistakes_name_both_hosts_the_value_and_the_way_out() {
        let gamma = "[[peer]]\nname = \"gamma\"\naddress = \"192.0.2.8:7447\"\ncids = [\"2500-3500\"]\ngroups = [\"default\"]\n";
        let own = PEER.replace("2000-2999", "1900-2100");
        for (text, words) in [
            (
                format!("{ROUTE}{PEER}{gamma}"),
                ["peer \"gamma\": cids: 2500-3500 overlaps 2000-2999", "peer \"beta\""],
            ),
            (format!("{ROUTE}{own}"), ["peer \"beta\": cids: 1900-2100 overlaps 1000-1999", "of route"]),
            (format!("{ROUTE}{PEER}[[vm]]\nname = \"a\"\ncid = 7\n"), ["vm \"a\": cid = 7", "1000-1999, 5"]),
            (PEER.to_owned(), ["there is no [route]", "add it"]),
            (
                format!("{ROUTE}{}", PEER.replace("address = \"192.0.2.7:7447\"\n", "")),
                ["peer \"beta\": address is missing", "IP:PORT"],
            ),
            (
                format!("{ROUTE}{}", PEER.replace("192.0.2.7:7447", "beta:7447")),
                ["address = \"beta:7447\"", "is not IP:PORT"],
            ),
            (
                format!("{ROUTE}{}", PEER.replace("groups = [\"default\"]", "")),
                ["peer \"beta\": groups is missing", "list"],
            ),
            (format!("{ROUTE}{}", PEER.replace("beta", "alpha")), ["name is this host's", "rename"]),
            (
                format!("{ROUTE}{}", PEER.replace("2000-2999", "2999-2000")),
                ["\"2999-2000\" is no range", "1000-1999"],
            ),
            (ROUTE.replace("cid = 1000", "cid = 7"), ["route: cid = 7", "in the ranges"]),
            (ROUTE.replace("key = \"/k\"\n", ""), ["route: key is missing", "PEM"]),
            (format!("{ROUTE}crl = \"crl.pem\"\n"), ["route: crl is missing or no absolute path", "PEM"]),
            (format!("{ROUTE}{PEER}fingerprints = []\n"), ["peer \"beta\": fingerprints = []", "omit"]),
            (
                format!("{ROUTE}{PEER}fingerprints = [\"{}\"]\n", "a".repeat(63)),
                ["peer \"beta\": fingerprints: \"aaa", "openssl x509"],
            ),
            (
                format!("{ROUTE}{PEER}fingerprints = [\"a:{}\"]\n", "a".repeat(63)),
                ["peer \"beta\": fingerprints: \"a:a", "64 hexadecimal digits"],
            ),
            (
                format!(
                    "{}{}",
                    ROUTE.replace("listen = \"0.0.0.0:7447\"\n", ""),
                    PEER.replace("beta", "aaa")
                ),
                ["route: listen is missing", "7447"],
            ),
            (
                format!(
                    "{ROUTE}{PEER}[[vm]]\nname = \"a\"\ncid = 5\nforward = [{{ port = 1, to = \"3005:80\" }}]\n"
                ),
                ["there is no VM \"3005\"", "known are"],
            ),
        ] {
            let error = check(&text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
