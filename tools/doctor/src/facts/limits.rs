//! What is set up on this machine to limit, delay, drop or divert: queueing disciplines, filters, rules of
//! the firewall, the route and the neighbour. Read before and after all measurements: what has counted
//! meanwhile acted on them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Value};

use super::cpu::Process;
use super::{files, tools};
use crate::cgroup::{self, Quota};
use crate::question::is_interface;
use crate::text::text_of;

/// Limits that are kept; a firewall may have thousands of rules.
const MOST: usize = 128;
/// Kinds of queueing disciplines that have classes, and those that filters of received frames belong to.
const CLASSFUL: [&str; 6] = ["htb", "hfsc", "cbq", "drr", "qfq", "ets"];
const INGRESS: [&str; 2] = ["clsact", "ingress"];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub queueing: Vec<Limit>,
    pub filters: Vec<Limit>,
    pub firewall: Vec<Limit>,
    pub route: Option<Route>,
    /// The far end, or the router on the way to it.
    pub neighbour: Option<Neighbour>,
    /// Length of the prefix of this end's address.
    pub prefix: Option<u8>,
    /// The program of XDP on the interface: "generic" or "native", and its number.
    pub xdp: Option<String>,
    /// Numbers of the interface that are not the driver's: gso_max_size, txqlen, rps_cpus ...
    pub interface: BTreeMap<String, i64>,
    pub quota: Option<Quota>,
    /// Programs that used the CPU meanwhile; only after the measurements.
    pub busiest: Vec<Process>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
}

/// One thing that limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// An interface, with "ingress" for what it receives; a chain of a firewall.
    pub place: String,
    /// As the system's tool prints it, without counters.
    pub text: String,
    /// Packets that it dropped, and that exceeded or matched it.
    pub dropped: u64,
    pub matched: u64,
    /// Packets that it let through.
    pub passed: u64,
    /// Whether it counts at all; rules of nftables do so where they are asked to.
    pub counts: bool,
}

impl Limit {
    /// The word behind `name`.
    pub fn word(&self, name: &str) -> Option<&str> {
        let mut words = self.text.split_whitespace();
        words.find(|word| *word == name)?;
        words.next()
    }

    /// "qdisc tbf ..." is a "tbf".
    pub fn kind(&self) -> &str {
        self.text.split_whitespace().nth(1).unwrap_or_default()
    }

    /// Bits per second that it lets through, where it limits them.
    pub fn rate(&self) -> Option<f64> {
        let named = ["ceil", "rate", "maxrate", "bandwidth"].iter().find_map(|name| bits(self.word(name)?));
        // The last curve of a class of hfsc is its upper limit.
        named.or_else(|| bits(self.text.rsplit_once(" m2 ")?.1.split(' ').next()?))
    }

    /// The same, with what it has counted since `before`.
    fn since(&self, before: &Limit) -> Limit {
        Limit {
            dropped: self.dropped.saturating_sub(before.dropped),
            matched: self.matched.saturating_sub(before.matched),
            passed: self.passed.saturating_sub(before.passed),
            ..before.clone()
        }
    }

    fn is_same(&self, other: &Limit) -> bool {
        self.place == other.place && self.text == other.text
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// "unicast", or what does not lead anywhere, such as "blackhole".
    pub kind: String,
    pub interface: String,
    pub via: Option<String>,
    /// The address that this end uses.
    pub source: Option<String>,
    /// Its attributes, such as window, mtu, advmss, rto_min.
    pub metrics: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    pub address: String,
    pub mac: Option<String>,
    /// PERMANENT, REACHABLE, FAILED ...
    pub state: String,
}

impl Limits {
    /// Of the way to `peer`, over `interface` if that is known.
    pub fn read(peer: Option<IpAddr>, interface: Option<&str>) -> Limits {
        let quota = cgroup::own().into_iter().min_by(|one, other| one.cpus.total_cmp(&other.cpus));
        let mut limits = Limits { quota, ..Limits::default() };
        let Some(peer) = peer.filter(|peer| !peer.is_loopback()) else { return limits };
        limits.read_way(peer);
        let card = interface.map(str::to_owned).or_else(|| Some(limits.route.as_ref()?.interface.clone()));
        if let Some(card) = card.filter(|card| is_interface(card)) {
            limits.read_interface(&card, peer);
            limits.read_queueing(&card);
        }
        limits.read_firewall();
        limits
    }

    fn keep<T: Default>(&mut self, read: Result<T, String>) -> T {
        read.unwrap_or_else(|why| {
            self.unread.push(why);
            T::default()
        })
    }

    fn read_way(&mut self, peer: IpAddr) {
        // The kernel refuses to name a route that drops, and the tool fails.
        let got = tools::output("ip", &["-j", "-d", "route", "get", &peer.to_string()]);
        let mut found = got.map(|text| objects(&text)).unwrap_or_default();
        if found.is_empty() {
            let match_peer = ["-j", "-d", "route", "show", "match", &peer.to_string()];
            let text = self.keep(tools::output("ip", &match_peer));
            found = objects(&text);
            found.retain(|route| route.get("type").is_some_and(|kind| kind != "unicast"));
        }
        self.route = found.iter().map(route).next();
    }

    fn read_interface(&mut self, card: &str, peer: IpAddr) {
        let address = self.keep(tools::output("ip", &["-j", "-d", "address", "show", "dev", card]));
        let neighbours = self.keep(tools::output("ip", &["-j", "neighbour", "show", "dev", card]));
        let next = self.route.as_ref().and_then(|route| route.via.clone()).unwrap_or(peer.to_string());
        for object in objects(&address).into_iter().chain(objects(&neighbours)) {
            if object.get("addr_info").is_some() {
                self.interface = numbers(card, &object);
                self.prefix = prefix(&object, self.route.as_ref(), peer);
                self.xdp = object.get("xdp").and_then(xdp);
            } else if object.get("dst").and_then(Value::as_str) == Some(&next) {
                self.neighbour = Some(neighbour(&object));
            }
        }
    }

    fn read_queueing(&mut self, card: &str) {
        let tc = |args: &[&str]| tools::output("tc", &[&["-s"], args].concat());
        let all = self.keep(tc(&["qdisc", "show"]));
        let of = |limit: &Limit| limit.word("dev").unwrap_or_default().to_owned();
        let all = parse("", &all).into_iter().map(|limit| Limit { place: of(&limit), ..limit });
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|limit| limit.place == card);
        let is = |kinds: &[&str], limits: &[Limit]| limits.iter().any(|limit| kinds.contains(&limit.kind()));
        if is(&INGRESS, &own) {
            for way in ["ingress", "egress"] {
                let text = self.keep(tc(&["filter", "show", "dev", card, way]));
                self.filters.extend(parse(&format!("{card} {way}"), &text));
            }
        }
        if is(&CLASSFUL, &own) {
            let text = self.keep(tc(&["filter", "show", "dev", card]));
            self.filters.extend(parse(card, &text));
        }
        let mut limits = own;
        // What a filter takes from the card to another interface comes back behind that one's queue.
        limits.extend(others.into_iter().filter(|limit| is_target(&self.filters, &limit.place)));
        let places: Vec<String> = limits
            .iter()
            .filter(|limit| CLASSFUL.contains(&limit.kind()))
            .map(|limit| limit.place.clone())
            .collect();
        for place in places {
            let text = self.keep(tc(&["class", "show", "dev", &place]));
            limits.extend(parse(&place, &text));
        }
        limits.truncate(MOST);
        self.filters.truncate(MOST);
        self.queueing = limits;
    }

    fn read_firewall(&mut self) {
        if !rustix::process::geteuid().is_root() {
            return self.unread.push("rules of the firewall: root can read them".to_owned());
        }
        let nft = match tools::output("nft", &["list", "ruleset"]) {
            // Without the kernel's part of it there are no rules.
            Err(_) if !std::path::Path::new("/sys/module/nf_tables").exists() => String::new(),
            read => self.keep(read),
        };
        self.firewall = nftables(&nft);
        for (names, program) in [("ip_tables_names", "iptables-save"), ("ip6_tables_names", "ip6tables-save")]
        {
            if files::line(format!("/proc/net/{names}")).is_some() {
                let text = self.keep(tools::output(program, &["-c"]));
                self.firewall.extend(text.lines().filter_map(iptables));
            }
        }
        self.firewall.truncate(MOST);
    }
}

/// Each limit, with what it has counted from `before` to `after`; nothing if it is gone.
pub fn counted(before: &[Limit], after: &[Limit]) -> impl Iterator<Item = Limit> {
    before.iter().map(|limit| after.iter().find(|now| now.is_same(limit)).unwrap_or(limit).since(limit))
}

/// Is it the target of a redirection?
fn is_target(filters: &[Limit], interface: &str) -> bool {
    filters.iter().any(|filter| filter.text.contains(&format!("to device {interface})")))
}

/// The objects of the lists that `ip -j` prints one after another.
fn objects(text: &str) -> Vec<Value> {
    let lists = Deserializer::from_str(text).into_iter::<Vec<Value>>().map_while(Result::ok);
    lists.flatten().filter(|object| object.as_object().is_some_and(|object| !object.is_empty())).collect()
}

fn route(object: &Value) -> Route {
    let metrics = object["metrics"].as_array().into_iter().flatten().filter_map(Value::as_object).flatten();
    Route {
        kind: object.get("type").map(text_of).unwrap_or_default(),
        interface: object.get("dev").map(text_of).unwrap_or_default(),
        via: object.get("gateway").or_else(|| object["via"].get("host")).map(text_of),
        source: object.get("prefsrc").map(text_of),
        metrics: metrics.map(|(name, value)| (name.clone(), text_of(value))).collect(),
    }
}

fn neighbour(object: &Value) -> Neighbour {
    Neighbour {
        address: object.get("dst").map(text_of).unwrap_or_default(),
        mac: object.get("lladdr").map(text_of),
        state: object["state"].get(0).map(text_of).unwrap_or_default(),
    }
}

/// Of the address that the route to `peer` is used from, or of the first one of that family.
fn prefix(object: &Value, route: Option<&Route>, peer: IpAddr) -> Option<u8> {
    let family = if peer.is_ipv4() { "inet" } else { "inet6" };
    let source = route.and_then(|route| route.source.as_deref());
    let all = object["addr_info"].as_array()?.iter().filter(|address| address["family"] == family);
    let all: Vec<&Value> = all.filter(|address| address["scope"] != "link").collect();
    let chosen =
        all.iter().find(|address| source.is_some() && source == address["local"].as_str()).or(all.first())?;
    chosen["prefixlen"].as_u64().and_then(|length| u8::try_from(length).ok())
}

/// `mode` is 1 in the driver, 2 in the stack, 3 in the card.
fn xdp(value: &Value) -> Option<String> {
    let mode = match value["mode"].as_u64()? {
        2 => "generic",
        _ => "native",
    };
    Some(format!("{mode}, program {}", value.pointer("/prog/id")?))
}

/// What the kernel keeps of an interface, beside what its driver does.
fn numbers(card: &str, object: &Value) -> BTreeMap<String, i64> {
    let printed = ["mtu", "txqlen", "gso_max_size", "gso_max_segs", "gro_max_size", "gso_ipv4_max_size"];
    let printed = printed.iter().filter_map(|name| Some(((*name).to_owned(), object[*name].as_i64()?)));
    let path = format!("/sys/class/net/{card}");
    let of_files = ["gro_flush_timeout", "napi_defer_hard_irqs", "threaded"];
    let of_files = of_files
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), files::number(format!("{path}/{name}"))?)));
    printed.chain(of_files).chain(of_queues(&path)).collect()
}

/// The least or most of all queues.
fn of_queues(path: &str) -> impl Iterator<Item = (String, i64)> + use<> {
    let (mut rate, mut limit, mut steered) = (0, i64::MAX, 0);
    for queue in files::names(format!("{path}/queues"), 64) {
        let number = |name: &str| files::number::<i64>(format!("{path}/queues/{queue}/{name}"));
        rate = rate.max(number("tx_maxrate").unwrap_or(0));
        limit = limit.min(number("byte_queue_limits/limit_max").unwrap_or(i64::MAX));
        let cpus = files::line(format!("{path}/queues/{queue}/rps_cpus")).unwrap_or_default();
        let cpus = cpus.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum::<u32>();
        steered = steered.max(i64::from(cpus));
    }
    let all = [("tx_maxrate", rate), ("rps_cpus", steered), ("limit_max", limit)];
    all.into_iter()
        .filter(|(_, value)| (1..i64::MAX).contains(value))
        .map(|(name, value)| (name.to_owned(), value))
}

/// What `tc -s` prints: disciplines, classes, and the actions of filters, each with its counters behind it.
fn parse(place: &str, text: &str) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    for line in text.lines().map(str::trim) {
        let action = line.strip_prefix("action order").and_then(|rest| rest.split_once(": "));
        let is_own = ["qdisc ", "class ", "police "].iter().any(|word| line.starts_with(word));
        let is_program = line.starts_with("filter ") && line.contains(" bpf ") && line.contains(" handle ");
        let text = match action {
            Some((_, action)) => Some(words(&format!("action {action}"))),
            None => (is_own || is_program).then(|| words(line)),
        };
        if let Some(text) = text {
            limits.push(Limit { place: place.to_owned(), text, counts: true, ..Limit::default() });
        } else if let Some(last) = limits.last_mut() {
            last.passed += line.split_once(" bytes ").and_then(|(_, rest)| leading(rest)).unwrap_or(0);
            last.dropped += behind(line, "(dropped ").unwrap_or(0);
            last.matched += behind(line, "overlimits ").unwrap_or(0);
        }
    }
    limits
}

/// With single spaces, and without how many use it.
fn words(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "refcnt" => drop(words.next()),
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}

/// The number behind `name`.
fn behind(line: &str, name: &str) -> Option<u64> {
    line.split_once(name).and_then(|(_, rest)| leading(rest))
}

fn leading(text: &str) -> Option<u64> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// "30Mbit", as `tc` prints rates.
fn bits(word: &str) -> Option<f64> {
    let (digits, unit) = word.split_at(word.find(|c: char| c.is_ascii_alphabetic())?);
    let scale = match unit {
        "bit" => 1.0,
        "Kbit" => 1e3,
        "Mbit" => 1e6,
        "Gbit" => 1e9,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|number| number * scale)
}

/// Rules and policies that drop, refuse or limit, in what `nft list ruleset` prints.
fn nftables(text: &str) -> Vec<Limit> {
    let (mut table, mut chain) = (String::new(), String::new());
    let mut limits = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("table ") {
            table = name.trim_end_matches(" {").to_owned();
        } else if let Some(name) = line.strip_prefix("chain ") {
            chain = name.trim_end_matches(" {").to_owned();
        } else if ["drop", "reject", "limit rate", "queue"].iter().any(|word| line.contains(word)) {
            limits.push(of_rule(format!("nftables: {table}, chain {chain}"), line));
        }
    }
    limits
}

fn of_rule(place: String, line: &str) -> Limit {
    let count = behind(line, "counter packets ").unwrap_or(0);
    let text = match line.split_once("counter packets ") {
        Some((front, rest)) => {
            let rest = rest.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
            format!("{front}{rest}")
        }
        None => line.to_owned(),
    };
    let drops = text.contains("drop") || text.contains("reject");
    met(Limit { place, text, counts: line.contains("counter packets"), ..Limit::default() }, count, drops)
}

/// With how many packets met it: it drops them, or not.
fn met(limit: Limit, count: u64, drops: bool) -> Limit {
    let (dropped, matched) = if drops { (count, 0) } else { (0, count) };
    Limit { dropped, matched, ..limit }
}

/// "[12:960] -A INPUT -p tcp -m statistic ... -j DROP"
fn iptables(line: &str) -> Option<Limit> {
    let (packets, rule) = line.strip_prefix('[')?.split_once("] -A ")?;
    let count = packets.split(':').next()?.parse().ok()?;
    let drops = rule.contains("-j DROP") || rule.contains("-j REJECT");
    let limits = ["-m limit", "-m hashlimit", "-m connlimit"].iter().any(|word| rule.contains(word));
    let place = "iptables".to_owned();
    let limit = Limit { place, text: rule.to_owned(), counts: true, ..Limit::default() };
    (drops || limits).then(|| met(limit, count, drops))
}

#[cfg(test)]
mod tests;
