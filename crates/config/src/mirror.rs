//! Mirrors as the file names them: what they copy from and to.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_switch::MirrorDirection;

use crate::notes::{Named, Notes};
use crate::ports::Ports;
use crate::raw::RawMirror;
use crate::vlan::VLANS;
use crate::wire;

/// Mirrors at once, those that were added at run time included.
pub const MOST_MIRRORS: usize = 16;
/// Bytes of each frame that may be copied: addresses, headers and more.
const SNAPS: RangeInclusive<u64> = 60..=vmlane_port::MAX_FRAME as u64;

/// One `[[mirror]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    pub name: String,
    /// NICs, uplinks, port groups.
    pub from: Vec<String>,
    /// A NIC or an uplink.
    pub to: String,
    pub direction: MirrorDirection,
    /// The tag of all copies; None: their own.
    pub vlan: Option<u16>,
    /// Bytes of each frame that are copied; None: all.
    pub snap: Option<u64>,
}

/// What is wrong with a mirror, and with which of its keys.
pub type Wrong = (&'static str, String);

impl MirrorConfig {
    /// What is wrong by itself, or among ports that there are and `others`.
    pub fn check(&self, ports: &Ports<'_>, others: &[MirrorConfig]) -> Result<(), Wrong> {
        let Self { name, from, to, vlan, snap, .. } = self;
        if others.iter().any(|other| other.name == *name) {
            return Err(("name", format!("name = {name:?} is taken by another mirror; rename one")));
        }
        if others.len() >= MOST_MIRRORS {
            return Err(("name", format!("{MOST_MIRRORS} mirrors are the most at once; remove one")));
        }
        if let Some(vlan) = vlan.filter(|vlan| !VLANS.contains(vlan)) {
            let text = format!("vlan = {vlan}; use {} to {}, or leave it out", VLANS.start(), VLANS.end());
            return Err(("vlan", text));
        }
        if let Some(snap) = snap.filter(|snap| !SNAPS.contains(snap)) {
            let text =
                format!("snap = {snap}; use {} to {} bytes, or leave it out", SNAPS.start(), SNAPS.end());
            return Err(("snap", text));
        }
        if !ports.names().any(|port| port == *to) {
            let text =
                format!("to = {to:?}: there is no such NIC and no such uplink; {}", ports.known(false));
            return Err(("to", text));
        }
        if let Some(wire) = ports.switch_of(to).and_then(wire::of_network) {
            let text = format!(
                "to = {to:?} is an end of wire {wire:?}, which carries nothing but what its ends send; use another port"
            );
            return Err(("to", text));
        }
        if from.is_empty() {
            let text = "from is empty; name NICs, uplinks or port groups, such as [\"web/nic0\"]".to_owned();
            return Err(("from", text));
        }
        for source in from {
            self.check_source(source, ports, others).map_err(|text| ("from", text))?;
        }
        let copied = others.iter().find(|other| other.from.contains(to));
        copied.map_or(Ok(()), |other| {
            let text = format!(
                "to = {to:?} is a source of mirror {:?}, so copies would be copied; use another port",
                other.name
            );
            Err(("to", text))
        })
    }

    fn check_source(&self, source: &str, ports: &Ports<'_>, others: &[MirrorConfig]) -> Result<(), String> {
        let is_port = ports.names().any(|port| port == source);
        let is_group = ports.has_group(source);
        if is_port && is_group {
            return Err(format!("from: {source:?} is an uplink and a port group; rename one of them"));
        }
        if !is_port && !is_group {
            return Err(format!(
                "from: {source:?} is no NIC, no uplink and no port group; {}",
                ports.known(true)
            ));
        }
        if let (Some(from), Some(to)) = (ports.switch_of(source), ports.switch_of(&self.to))
            && from != to
            && wire::of_network(from).is_none()
        {
            return Err(format!(
                "from: {source:?} is on switch {from:?} and {:?} on switch {to:?}; no frame passes from one to another, so mirror \
                 to a port on the same one",
                self.to
            ));
        }
        let all = others.iter().chain([self]);
        match all.into_iter().find(|mirror| mirror.to == source) {
            Some(other) => Err(format!(
                "from: {source:?} is the destination of mirror {:?}, so copies would be copied; take it out",
                other.name
            )),
            None => Ok(()),
        }
    }

    /// The ports whose frames are copied: none that is the destination of one of `all`.
    pub fn sources(&self, ports: &Ports<'_>, all: &[MirrorConfig]) -> Vec<String> {
        let mut sources: Vec<String> = Vec::new();
        for name in &self.from {
            let members = ports.nics().filter(|(_, _, nic)| nic.port_group == *name);
            let port = ports.names().filter(|port| port == name);
            for port in port.chain(members.map(|(own, ..)| own)) {
                if !sources.contains(&port) && !all.iter().any(|mirror| mirror.to == port) {
                    sources.push(port);
                }
            }
        }
        sources
    }
}

/// One mirror, which is checked once all ports are known ([`judge_ports`]).
pub fn judge(index: usize, spanned: &Spanned<RawMirror>, notes: &mut Notes<'_>) -> MirrorConfig {
    let raw = spanned.get_ref();
    for (key, missing, example) in [
        ("name", raw.name.is_none(), "\"ids\""),
        ("from", raw.from.is_none(), "[\"web/nic0\"]"),
        ("to", raw.to.is_none(), "\"ids/nic0\""),
    ] {
        if missing {
            let text = format!("mirror number {}: {key} is missing; add {key} = {example}", index + 1);
            notes.problem(spanned.span(), text);
        }
    }
    let name = raw.name.as_ref().map(|name| notes.name("mirror", "name", name)).unwrap_or_default();
    let way_out = "\"in\" (from a VM into the switch), \"out\" (from the switch to the VM) or \"both\"";
    let key = format!("mirror {name:?}");
    let direction = notes.word(&key, "direction", &raw.direction, MirrorDirection::of_name, way_out);
    MirrorConfig {
        name,
        from: raw.from.iter().flat_map(|from| from.get_ref().iter().cloned()).collect(),
        to: raw.to.as_ref().map(|to| to.get_ref().clone()).unwrap_or_default(),
        direction: direction.unwrap_or_default(),
        vlan: raw.vlan.as_ref().map(|vlan| u16::try_from(*vlan.get_ref()).unwrap_or(0)),
        // What is no size at all is outside every range.
        snap: raw.snap.as_ref().map(|snap| snap.get_ref().value.unwrap_or(0)),
    }
}

/// Sources and destinations exist, and no copy is copied.
pub fn judge_ports(
    mirrors: &[MirrorConfig],
    ports: &Ports<'_>,
    raws: &[Spanned<RawMirror>],
    notes: &mut Notes<'_>,
) {
    for (index, (mirror, spanned)) in mirrors.iter().zip(raws).enumerate() {
        let raw = spanned.get_ref();
        if raw.name.is_none() || raw.from.is_none() || raw.to.is_none() {
            continue;
        }
        let before = mirrors.get(..index).unwrap_or_default();
        let Err((key, text)) = mirror.check(ports, before) else { continue };
        let kinds = [Named::Vm, Named::Uplink, Named::PortGroup];
        if ["from", "to"].contains(&key) && kinds.into_iter().any(|kind| notes.is_uncertain(kind)) {
            continue;
        }
        let span = match key {
            "from" => raw.from.as_ref().map(Spanned::span),
            "to" => raw.to.as_ref().map(Spanned::span),
            "vlan" => raw.vlan.as_ref().map(Spanned::span),
            "snap" => raw.snap.as_ref().map(Spanned::span),
            _ => raw.name.as_ref().map(Spanned::span),
        };
        let span = span.unwrap_or_else(|| spanned.span());
        notes.conflict(span.clone(), &[span], format!("mirror {:?}: {text}", mirror.name));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    const PORTS: &str = "[[vm]]\nname = \"web\"\ncid = 3\nnic = [{model = \"vmxnet3\", port_group = \"prod\"}, \
        {model = \"vmxnet3\"}]\n[[vm]]\nname = \"ids\"\ncid = 4\nnic = [{model = \"virtio-net\", port_group = \"prod\"}]\n\
        [[port_group]]\nname = \"prod\"\n[[uplink]]\nname = \"lan\"\ntap = \"t0\"\n[[uplink]]\nname = \"prod2\"\ntap = \"t1\"\n";

    fn parse(mirrors: &str) -> Result<Config, String> {
        let text = format!("{PORTS}{mirrors}");
        Config::parse(Path::new("t.toml"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_groups_and_uplinks_are_sources_but_no_destination_is() {
        let config = parse(
            "[[mirror]]\nname = \"m\"\nfrom = [\"prod\", \"lan\", \"web/nic0\"]\nto = \"ids/nic0\"\n\
             [[mirror]]\nname = \"far\"\nfrom = [\"default\"]\nto = \"prod2\"\ndirection = \"in\"\nvlan = 900\nsnap = \"1k\"\n",
        )
        .unwrap();
        let [m, far] = &config.mirrors[..] else { panic!("{config:?}") };
        assert_eq!(m.sources(&config.ports(), &config.mirrors), ["web/nic0", "lan"]);
        assert_eq!((m.direction, m.vlan, m.snap), (MirrorDirection::Both, None, None));
        assert_eq!(far.sources(&config.ports(), &config.mirrors), ["web/nic1"]);
        assert_eq!((far.direction, far.vlan, far.snap), (MirrorDirection::In, Some(900), Some(1024)));
    }

    #[test]
    fn mistakes_name_the_mirror_the_value_and_the_way_out() {
        let mirror = |from: &str, to: &str, more: &str| {
            format!("[[mirror]]\nname = \"m\"\nfrom = [{from}]\nto = {to}\n{more}\n")
        };
        let good = mirror("\"web/nic0\"", "\"lan\"", "");
        let second =
            |from: &str, to: &str| format!("{good}[[mirror]]\nname = \"n\"\nfrom = [{from}]\nto = {to}\n");
        let table = [
            (
                mirror("\"web/nic9\"", "\"lan\"", ""),
                "\"web/nic9\" is no NIC, no uplink and no port group; there are web/nic0",
            ),
            (
                mirror("\"web/nic0\"", "\"prod\"", ""),
                "to = \"prod\": there is no such NIC and no such uplink; there are web/nic0",
            ),
            (mirror("", "\"lan\"", ""), "from is empty; name NICs"),
            (mirror("\"lan\"", "\"lan\"", ""), "\"lan\" is the destination of mirror \"m\""),
            (
                mirror("\"lan\"", "\"ids/nic0\"", "direction = \"ingress\""),
                "direction = \"ingress\" is unknown; use \"in\"",
            ),
            (mirror("\"lan\"", "\"ids/nic0\"", "vlan = 4095"), "vlan = 4095; use 1 to 4094"),
            (mirror("\"lan\"", "\"ids/nic0\"", "vlan = -1"), "vlan = 0; use 1 to 4094"),
            (mirror("\"lan\"", "\"ids/nic0\"", "snap = 20"), "snap = 20; use 60 to"),
            (
                second("\"lan\"", "\"ids/nic0\""),
                "\"lan\" is the destination of mirror \"m\", so copies would be copied",
            ),
            (second("\"prod\"", "\"web/nic0\""), "to = \"web/nic0\" is a source of mirror \"m\""),
            ([good.clone(), good.clone()].concat(), "name = \"m\" is taken by another mirror"),
            (
                "[[mirror]]\nname = \"m\"\n".into(),
                "mirror number 1: from is missing; add from = [\"web/nic0\"]",
            ),
            (
                "[[port_group]]\nname = \"lan\"\n".to_owned() + &mirror("\"lan\"", "\"ids/nic0\"", ""),
                "\"lan\" is an uplink and a port group",
            ),
        ];
        for (text, words) in table {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(words), "{words:?} is not in {error}");
        }
        let many: String = (0..17)
            .map(|number| format!("[[mirror]]\nname = \"m{number}\"\nfrom = [\"web/nic0\"]\nto = \"lan\"\n"))
            .collect();
        assert!(parse(&many).unwrap_err().contains("16 mirrors are the most at once"));
    }
}
