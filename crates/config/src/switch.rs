//! `[[switch]]`: switches of a host beside the one that is always there. No frame passes from one to another.

use toml::Spanned;
use vmlane_switch::Policy;

use crate::notes::{Named, Notes};
use crate::raw::RawSwitch;

/// The switch of port groups, NICs and uplinks that name none.
pub const DEFAULT: &str = "default";

/// One `[[switch]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    pub name: String,
    /// Of its port groups that do not decide otherwise.
    pub policy: Policy,
}

/// All switches, the one called [`DEFAULT`] among them.
pub fn judge(raws: &[Spanned<RawSwitch>], notes: &mut Notes<'_>) -> Vec<SwitchConfig> {
    let mut switches: Vec<SwitchConfig> = Vec::new();
    for (index, spanned) in raws.iter().enumerate() {
        let raw = spanned.get_ref();
        let Some(name) = notes.name_of(Named::Switch, index, spanned.span(), &raw.name) else { continue };
        if switches.iter().any(|other| other.name == *name.get_ref()) {
            let text = format!("switch: name = {:?} is taken by another one; rename one", name.get_ref());
            notes.conflict(name.span(), &[name.span()], text);
        }
        switches.push(SwitchConfig {
            name: name.get_ref().clone(),
            policy: policy(Policy::default(), raw.promiscuous, raw.mac_changes, raw.forged_transmits),
        });
    }
    if !switches.iter().any(|switch| switch.name == DEFAULT) {
        switches.push(SwitchConfig { name: DEFAULT.to_owned(), policy: Policy::default() });
    }
    switches
}

/// The switch that the element `key` of a list names, or the default one.
pub fn of(
    key: &str,
    raw: &Option<Spanned<String>>,
    switches: &[SwitchConfig],
    notes: &mut Notes<'_>,
) -> String {
    let Some(name) = raw else { return DEFAULT.to_owned() };
    if !switches.iter().any(|switch| switch.name == *name.get_ref()) {
        let known: Vec<&str> = switches.iter().map(|switch| switch.name.as_str()).collect();
        let text = format!(
            "{key}: switch = {:?}: there is none of that name; known are {}",
            name.get_ref(),
            known.join(", ")
        );
        notes.unknown(Named::Switch, name.span(), text);
    }
    name.get_ref().clone()
}

/// `base` where nothing is configured.
pub fn policy(
    base: Policy,
    promiscuous: Option<bool>,
    mac_changes: Option<bool>,
    forged: Option<bool>,
) -> Policy {
    Policy {
        promiscuous: promiscuous.unwrap_or(base.promiscuous),
        mac_changes: mac_changes.unwrap_or(base.mac_changes),
        forged_transmits: forged.unwrap_or(base.forged_transmits),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    fn check(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("t.toml"), text).map_err(|error| error.to_string())
    }

    fn vm(name: &str, cid: u32, nic: &str) -> String {
        format!("[[vm]]\nname = {name:?}\ncid = {cid}\nnic = [{{ model = \"vmxnet3\", {nic} }}]\n")
    }

    const STORAGE: &str = "[[switch]]\nname = \"storage\"\nforged_transmits = false\n";

    #[test]
    fn nics_uplinks_and_port_groups_are_on_a_switch_and_have_its_policy() {
        let text = STORAGE.to_owned()
            + "[[port_group]]\nname = \"iscsi\"\nswitch = \"storage\"\nvlan = 7\n\
               [[port_group]]\nname = \"open\"\nswitch = \"storage\"\nforged_transmits = true\n\
               [[uplink]]\nname = \"san\"\ntap = \"t0\"\nswitch = \"storage\"\n[[uplink]]\nname = \"lan\"\ntap = \"t1\"\n"
            + &vm("a", 3, "port_group = \"iscsi\"")
            + &vm("b", 4, "switch = \"storage\"")
            + &vm("c", 5, "switch = \"storage\", port_group = \"open\"")
            + &vm("d", 6, "mtu = 9000");
        let config = check(&text).unwrap();
        let nics = config.vms.iter().map(|vm| &vm.nics[0]);
        let nics: Vec<_> =
            nics.map(|nic| (&*nic.switch, &*nic.port_group, nic.policy.forged_transmits)).collect();
        assert_eq!(
            nics,
            [
                ("storage", "iscsi", false),
                ("storage", "storage", false),
                ("storage", "open", true),
                ("default", "default", true)
            ]
        );
        let uplinks = config.uplinks.iter().map(|uplink| (&*uplink.name, &*uplink.switch));
        assert_eq!(uplinks.collect::<Vec<_>>(), [("san", "storage"), ("lan", "default")]);
    }

    #[test]
    fn addresses_are_those_of_one_switch() {
        let mac = "mac = \"52:54:00:00:00:01\"";
        let two = |switch: &str| vm("a", 3, mac) + &vm("b", 4, &format!("{mac}, switch = {switch:?}"));
        check(&(STORAGE.to_owned() + &two("storage"))).unwrap();
        assert!(check(&(STORAGE.to_owned() + &two("default"))).unwrap_err().contains("is taken by VM \"a\""));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        let team = "[[uplink]]\nname = \"u\"\ntap = \"t0\"\n[[uplink]]\nname = \"v\"\ntap = \"t1\"\nswitch = \"storage\"\n\
                    [[team]]\nname = \"t\"\nuplinks = [\"u\", \"v\"]\n";
        let mirror = "[[mirror]]\nname = \"m\"\nfrom = [\"a/nic0\"]\nto = \"b/nic0\"\n";
        for (text, words) in [
            (STORAGE.to_owned(), "switch: name = \"storage\" is taken by another one"),
            ("[[switch]]\npromiscuous = true\n".to_owned(), "switch number 2: name is missing"),
            (
                vm("a", 3, "switch = \"lan\""),
                "switch = \"lan\": there is none of that name; known are storage, default",
            ),
            (
                "[[port_group]]\nname = \"g\"\n".to_owned()
                    + &vm("a", 3, "port_group = \"g\", switch = \"storage\""),
                "port group \"g\" is on switch \"default\"",
            ),
            ("[[port_group]]\nname = \"storage\"\n".to_owned(), "add switch = \"storage\", or rename it"),
            (team.to_owned(), "on switch \"storage\""),
            (
                vm("a", 3, "queues = 1") + &vm("b", 4, "switch = \"storage\"") + mirror,
                "on switch \"storage\"",
            ),
        ] {
            let error = check(&(STORAGE.to_owned() + &text)).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
