//! Options of TCP that are switched off.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "tcp-options", examine };

const OPTIONS: [(&str, &str, f64, &str); 3] = [
    ("net.ipv4.tcp_window_scaling", "Window scaling", 0.7, "windows of at most 64 KiB, in both directions"),
    (
        "net.ipv4.tcp_moderate_rcvbuf",
        "Autotuning of the receive window",
        0.5,
        "windows that stay as small as they begin",
    ),
    (
        "net.ipv4.tcp_sack",
        "Selective acknowledgement",
        0.3,
        "after a loss, much is sent again that has arrived",
    ),
];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, facts) in evidence.ends() {
        let off = OPTIONS.into_iter().filter(|(setting, ..)| facts.sysctls.number(setting) == Some(0));
        for (setting, name, share, effect) in off {
            let what = format!("{name} is off on {}.", evidence.name(end));
            let finding = CHECK.slow(what, Cost::estimated(share, effect)).at(end);
            found.push(finding.evidence(format!("{setting}: 0")).remedy(Remedy::sysctl(setting, "1")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn each_option_is_checked() {
        let mut evidence = testing::healthy();
        for (setting, ..) in OPTIONS {
            evidence.near.sysctls.0.insert(setting.to_owned(), "0".to_owned());
        }
        assert_eq!(examine(&evidence).len(), 3);
    }
}
