//! The grammar of faults: mechanisms, where each may be, how strong, and which findings name it.
//!
//! Lines of the shell run in guests: of the end that has the fault ([`Who::End`]), of the other one, of the
//! forwarder c. In them stand for something: `{s}` the strength, `{if}` the card, `{me}`, `{far}` and `{c}`
//! the addresses of the end, of the other one and of the forwarder, `{net}` their network, `{macc}` the
//! forwarder's MAC address. `write FILE VALUE` keeps what was in the file, and `restore FILE` writes it back.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    Queueing,
    Filter,
    Firewall,
    Route,
    Tcp,
    Program,
    Cpu,
    Memory,
    Card,
    Kernel,
    Switch,
    Vmm,
}

impl Layer {
    pub fn name(self) -> &'static str {
        match self {
            Layer::Queueing => "queueing",
            Layer::Filter => "filter",
            Layer::Firewall => "firewall",
            Layer::Route => "route",
            Layer::Tcp => "tcp",
            Layer::Program => "program",
            Layer::Cpu => "cpu",
            Layer::Memory => "memory",
            Layer::Card => "card",
            Layer::Kernel => "kernel",
            Layer::Switch => "switch",
            Layer::Vmm => "vmm",
        }
    }

    /// Whether it slows every transport down, and not only what passes a network card.
    const fn is_below_all(self) -> bool {
        matches!(self, Layer::Program | Layer::Cpu | Layer::Memory | Layer::Vmm)
    }
}

/// Who does what a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A shell in the guest that has the fault.
    End,
    /// A shell in the other guest.
    Other,
    /// A shell in the forwarder.
    C,
    /// The switch: shapes the end's card. The line is a direction and a rate, or nothing.
    Shape,
    /// The line from the switch to the end's card: `loss`, `reorder` (of 1000), `delay_us` or `longest`, a
    /// number.
    Impair,
    /// The processes of the VMs: `stop MS MS` stops the end's again and again, `cpu N` puts both on one CPU.
    Vmm,
}

pub type Line = (Who, &'static str);

/// What of the two devices a mechanism needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Any,
    /// A network card of any kind.
    Card,
    Vmxnet3,
    VirtioNet,
}

impl Needs {
    fn are_met(self, device: &str) -> bool {
        match self {
            Needs::Any => true,
            Needs::Card => Needs::Vmxnet3.are_met(device) || Needs::VirtioNet.are_met(device),
            Needs::Vmxnet3 => device.starts_with("vmxnet3"),
            Needs::VirtioNet => device.starts_with("virtio-net"),
        }
    }
}

pub struct Mechanism {
    pub name: &'static str,
    pub layer: Layer,
    pub needs: Needs,
    pub places: &'static [Place],
    /// Empty: it has one strength.
    pub strengths: &'static [&'static str],
    pub put: &'static [Line],
    pub undo: &'static [Line],
    /// What it has for itself at its end: two that take the same cannot be put in at once.
    pub takes: &'static [&'static str],
    /// The checks that name this cause. With `@` at the end, only a finding of the fault's own end does.
    pub truth: &'static [&'static str],
    /// Checks that report what the fault does, without its cause: neither right nor wrong.
    pub symptoms: &'static [&'static str],
}

/// An end of the path: guest a, where the doctor runs, or b.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    A,
    B,
}

impl Place {
    pub fn guest(self) -> &'static str {
        match self {
            Place::A => "a",
            Place::B => "b",
        }
    }

    pub fn other(self) -> Place {
        match self {
            Place::A => Place::B,
            Place::B => Place::A,
        }
    }

    /// As the doctor in a names it.
    fn end(self) -> &'static str {
        match self {
            Place::A => "near",
            Place::B => "far",
        }
    }

    fn address(self) -> &'static str {
        match self {
            Place::A => "10.77.0.1",
            Place::B => "10.77.0.2",
        }
    }
}

/// A mechanism at a place, with a strength.
#[derive(Clone, Copy)]
pub struct Fault {
    pub mechanism: &'static Mechanism,
    pub place: Place,
    pub strength: &'static str,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { mechanism, place, strength } = self;
        let strength = if strength.is_empty() { String::new() } else { format!(" ({strength})") };
        write!(f, "{}{strength} at {}", mechanism.name, place.guest())
    }
}

impl Fault {
    pub fn put(&self) -> Vec<(Who, String)> {
        self.fill(self.mechanism.put)
    }

    pub fn undo(&self) -> Vec<(Who, String)> {
        self.fill(self.mechanism.undo)
    }

    fn fill(&self, lines: &[Line]) -> Vec<(Who, String)> {
        lines.iter().map(|(who, line)| (*who, self.filled(line))).collect()
    }

    fn filled(&self, line: &str) -> String {
        let values = [
            ("{s}", self.strength),
            ("{if}", "eth0"),
            ("{me}", self.place.address()),
            ("{far}", self.place.other().address()),
            ("{c}", "10.77.0.3"),
            ("{net}", "10.77.0.0/24"),
            ("{macc}", "52:54:00:77:00:03"),
        ];
        values.iter().fold(line.to_owned(), |line, (name, value)| line.replace(name, value))
    }

    /// Whether a finding of this check and this end (`near`, `far` or neither) names it.
    pub fn is_named(&self, check: &str, end: Option<&str>) -> bool {
        let is_here = end.is_none_or(|end| end == self.place.end());
        self.mechanism.truth.iter().any(|truth| match truth.strip_suffix('@') {
            Some(name) => name == check && is_here,
            None => *truth == check,
        })
    }

    pub fn is_symptom(&self, check: &str) -> bool {
        self.mechanism.symptoms.contains(&check)
    }

    /// Whether both can be put in at once.
    pub fn goes_with(&self, other: &Fault) -> bool {
        let shared = self.mechanism.takes.iter().any(|taken| other.mechanism.takes.contains(taken));
        let global = |fault: &Fault| fault.mechanism.takes.iter().any(|taken| GLOBAL.contains(taken));
        !(shared && (self.place == other.place || global(self) && global(other)))
            && !std::ptr::eq(self.mechanism, other.mechanism)
    }
}

/// What there is once for both ends.
const GLOBAL: [&str; 2] = ["c", "qemu"];

impl Mechanism {
    pub fn strengths(&self) -> &'static [&'static str] {
        if self.strengths.is_empty() { &[""] } else { self.strengths }
    }

    pub const fn only_at_b(self) -> Mechanism {
        Mechanism { places: &[Place::B], ..self }
    }

    pub const fn over_ip(self) -> Mechanism {
        self.needs(Needs::Card)
    }

    /// Whether it can be drawn between these devices.
    pub fn suits(&self, device: &str) -> bool {
        self.needs.are_met(device)
    }

    pub const fn needs(self, needs: Needs) -> Mechanism {
        Mechanism { needs, ..self }
    }

    pub const fn symptoms(self, symptoms: &'static [&'static str]) -> Mechanism {
        Mechanism { symptoms, ..self }
    }
}

pub const fn mechanism(
    layer: Layer,
    name: &'static str,
    strengths: &'static [&'static str],
    put: &'static [Line],
    undo: &'static [Line],
    takes: &'static [&'static str],
    truth: &'static [&'static str],
) -> Mechanism {
    let needs = if layer.is_below_all() { Needs::Any } else { Needs::Card };
    Mechanism {
        name,
        layer,
        needs,
        places: &[Place::A, Place::B],
        strengths,
        put,
        undo,
        takes,
        truth,
        symptoms: &[],
    }
}

/// All mechanisms.
pub fn all() -> impl Iterator<Item = &'static Mechanism> {
    let tables = [super::machine::TABLE, super::kernel::TABLE, super::packets::TABLE];
    tables.into_iter().flatten()
}

/// What cannot be drawn today, and why.
pub const NOT_DRAWN: &[(&str, &str)] = &[
    ("uplink", "a lab with an uplink leads to a network namespace of the host, not between its guests"),
    ("IPv6", "all draws examine IPv4"),
    (
        "rules with counters, and iptables",
        "rules are made over netlink, without counters; nft lists them",
    ),
    ("tunnels, VLANs, bonds, bridges in guests", "the lab's guests have plain cards"),
    ("tx_maxrate, hardware rate limits, flow control", "neither vmxnet3 nor virtio-net of the lab has them"),
    (
        "somaxconn and the accept queue",
        "read when the server begins to listen, which is before the fault is put in",
    ),
    (
        "CPU quota of the VMM by control group",
        "needs a writable hierarchy of the host; SIGSTOP pulses draw the same",
    ),
    ("links that go down and up", "no mechanism yet; the switch can do it (`vmlane link`)"),
    ("NUMA, huge pages, power management", "not emulated"),
    ("TLS, MPTCP, BPF at sockets", "the measuring program has none"),
];

/// What the grammar has wrong.
pub fn inconsistencies() -> Vec<String> {
    let mut wrong = Vec::new();
    for mechanism in all() {
        let mut note = |why: &str| wrong.push(format!("{}: {why}", mechanism.name));
        if mechanism.put.is_empty() || mechanism.undo.is_empty() {
            note("cannot be put in and taken out");
        }
        if mechanism.takes.is_empty() {
            note("takes nothing for itself");
        }
        if mechanism.truth.is_empty() {
            note("no finding names it");
        }
        for name in mechanism.truth.iter().chain(mechanism.symptoms) {
            if !super::judge::is_check(name.trim_end_matches('@')) {
                note(&format!("{name} is no check"));
            }
        }
        if mechanism.strengths.is_empty() == mechanism.put.iter().any(|(_, line)| line.contains("{s}")) {
            note("strengths without a place in its lines, or the other way round");
        }
        for strength in mechanism.strengths() {
            let fault = Fault { mechanism, place: Place::A, strength };
            let left = |(_, line): &(Who, String)| line.contains('{');
            if fault.put().iter().chain(&fault.undo()).any(left) {
                note("a placeholder is not filled");
            }
        }
    }
    wrong
}
