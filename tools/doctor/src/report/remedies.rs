//! Remedies as a report's text shows them: for the systems at hand, and each one once.

use crate::evidence::{Evidence, PathEnd};
use crate::facts::Machine;
use crate::finding::Finding;
use crate::remedy::{self, Persistent, Remedy};

/// Those of a report's findings.
pub struct Remedies<'e> {
    evidence: &'e Evidence,
    /// What was shown, and the number of its finding.
    shown: Vec<(String, Vec<String>, usize)>,
}

impl<'e> Remedies<'e> {
    pub fn of(evidence: &'e Evidence) -> Remedies<'e> {
        Remedies { evidence, shown: Vec::new() }
    }

    /// The lines of the next finding, each with its indent.
    pub fn lines(&mut self, number: usize, finding: &Finding) -> Vec<(usize, String)> {
        let each = finding.remedies.iter().enumerate();
        each.flat_map(|(which, remedy)| {
            let end = remedy.end.or(finding.end);
            let or = if which == 0 { "" } else { "or " };
            self.of_remedy(number, remedy, end, or)
        })
        .collect()
    }

    fn of_remedy(
        &mut self,
        number: usize,
        remedy: &Remedy,
        end: Option<PathEnd>,
        or: &str,
    ) -> Vec<(usize, String)> {
        let place = end.map_or(String::new(), |end| format!(", on {}", self.evidence.name(end)));
        let commands = self.commands(remedy, end);
        let is_same =
            |(what, lines, _): &&(String, Vec<String>, usize)| *what == remedy.what && *lines == commands;
        if let Some((.., first)) = self.shown.iter().find(is_same) {
            return vec![(3, format!("remedy: {or}as under {first}{place}: {}", remedy.what))];
        }
        let mut lines = vec![(3, format!("remedy: {or}{}{place}", remedy.what))];
        lines.extend(commands.iter().map(|command| (6, command.clone())));
        self.shown.push((remedy.what.clone(), commands, number));
        lines
    }

    fn commands(&self, remedy: &Remedy, end: Option<PathEnd>) -> Vec<String> {
        let mut lines: Vec<String> =
            remedy.temporary.iter().map(|words| format!("now: {}", remedy::line(words))).collect();
        let word = |lasting: &Persistent| format!("{}: {}", lasting.system, lasting.text);
        if self.evidence.captures.is_empty() {
            let machines = self.machines(end);
            let fitting = remedy.persistent.iter().filter(|lasting| lasting.is_for(&machines));
            lines.extend(fitting.map(|lasting| format!("for good, {}", word(lasting))));
        } else if !remedy.persistent.is_empty() {
            // Which system made a capture is not known.
            let all: Vec<String> = remedy.persistent.iter().map(word).collect();
            lines.push(format!("for good: {}", all.join("; ")));
        }
        lines
    }

    /// The machines of which something is known: this end's, or both.
    fn machines(&self, end: Option<PathEnd>) -> Vec<&'e Machine> {
        let ends = self.evidence.ends().filter(|(one, _)| end.is_none_or(|end| end == *one));
        ends.map(|(_, facts)| &facts.machine).filter(|machine| !machine.kernel.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Capture;
    use crate::finding::{Cost, Severity};
    use crate::testing;

    fn finding(end: Option<PathEnd>, remedies: Vec<Remedy>) -> Finding {
        let cost = Cost::estimated(0.5, "something");
        Finding { end, remedies, ..Finding::new("mss", Severity::Slow, "Slow.", cost) }
    }

    /// The systems for which a remedy is shown "for good".
    fn systems(evidence: &Evidence, end: Option<PathEnd>, remedy: Remedy) -> Vec<String> {
        let lines = Remedies::of(evidence).lines(1, &finding(end, vec![remedy]));
        let lasting = lines.iter().filter_map(|(_, line)| line.strip_prefix("for good, "));
        lasting.filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
    }

    fn machines(network: &[&str], hypervisor: &str) -> Evidence {
        let mut evidence = testing::healthy();
        let machine = &mut evidence.near.machine;
        machine.kernel = "6.12".to_owned();
        machine.network = network.iter().map(|name| (*name).to_owned()).collect();
        machine.hypervisor = Some(hypervisor.to_owned());
        evidence
    }

    #[test]
    fn the_lasting_remedy_is_that_of_the_system_at_hand() {
        const ALL: [&str; 3] = ["NetworkManager", "systemd-networkd", "ifupdown"];
        let near = Some(PathEnd::Near);
        type Case = (&'static [&'static str], &'static str, Option<PathEnd>, &'static [&'static str]);
        let cases: [Case; 6] = [
            (&["NetworkManager"], "KVM", near, &["NetworkManager"]),
            (&["systemd-networkd"], "VMware", near, &["systemd-networkd"]),
            (&["NetworkManager", "ifupdown"], "KVM", near, &["NetworkManager", "ifupdown"]),
            (&["ifupdown"], "KVM", None, &["ifupdown"]),
            // What configures it is not known; neither is anything of the other machine.
            (&[], "KVM", near, &ALL),
            (&["ifupdown"], "KVM", Some(PathEnd::Far), &ALL),
        ];
        for (network, hypervisor, end, expected) in cases {
            let evidence = machines(network, hypervisor);
            assert_eq!(systems(&evidence, end, Remedy::mtu("eth0", 9000)), expected, "{network:?}");
            let others = Remedy::sysctl("net.ipv4.tcp_rmem", "1 2 3");
            assert_eq!(systems(&evidence, end, others), ["sysctl.d"], "{network:?}");
        }
    }

    #[test]
    fn a_hypervisor_s_remedy_is_shown_where_the_machine_may_be_its_own() {
        let remedy = || {
            ["VMware", "QEMU", "vmlane"]
                .into_iter()
                .fold(Remedy::new("x"), |all, name| all.lasting(name, "y"))
        };
        for (hypervisor, expected) in [("VMware", &["VMware"][..]), ("KVM", &["QEMU", "vmlane"])] {
            let evidence = machines(&[], hypervisor);
            assert_eq!(systems(&evidence, Some(PathEnd::Near), remedy()), expected);
        }
    }

    #[test]
    fn of_captures_all_systems_share_a_line() {
        let evidence = Evidence { captures: vec![Capture::default()], ..Evidence::default() };
        let lines = Remedies::of(&evidence).lines(1, &finding(None, vec![Remedy::mtu("eth0", 9000)]));
        let last = &lines.last().unwrap().1;
        assert!(last.starts_with("for good: NetworkManager: ") && last.contains("; Windows: "), "{lines:?}");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn the_same_remedy_is_shown_once() {
        let evidence = machines(&["ifupdown"], "KVM");
        let mut remedies = Remedies::of(&evidence);
        let probing = || Remedy::sysctl("net.ipv4.tcp_mtu_probing", "1");
        let first =
            remedies.lines(1, &finding(Some(PathEnd::Near), vec![Remedy::mtu("eth0", 9000), probing()]));
        assert_eq!(first.iter().filter(|(_, line)| line.contains("tcp_mtu_probing")).count(), 3, "{first:?}");
        let again =
            remedies.lines(2, &finding(Some(PathEnd::Far), vec![Remedy::mtu("eth0", 1500), probing()]));
        let refers = "remedy: or as under 1, on the other machine (b): set net.ipv4.tcp_mtu_probing";
        assert_eq!(again.last().unwrap().1, refers);
        assert!(
            again[0].1.starts_with("remedy: set the MTU of eth0 to 1500") && again.len() > 2,
            "{again:?}"
        );
    }
}
