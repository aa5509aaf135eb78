//! A driver that was not built with this kernel.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "foreign-driver", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.interfaces().filter(|(_, _, card)| card.is_foreign_module).map(|(end, facts, card)| {
        let what = format!(
            "The driver {} of {} on {} was not built with this kernel.",
            card.driver,
            card.name,
            evidence.name(end)
        );
        let cost = Cost::estimated(0.2, "none, if it was built for this kernel; settings without effect, if not");
        let module = &card.driver;
        CHECK.advice(what, cost)
            .at(end)
            .evidence(format!("module {module} {} has the taint O; the kernel is {}", card.driver_version, facts.machine.kernel))
            .remedy(
                Remedy::new("use the kernel's own driver, or the build for this very kernel")
                    .run(&["modinfo", "-F", "vermagic", module])
                    .lasting("VMware", "remove the drivers of old VMware Tools; Linux has its own vmxnet3")
                    .lasting("Windows", "update VMware Tools, and check the driver's date: Get-NetAdapter | Format-List Driver*"),
            )
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_module_from_outside_is_named() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).is_foreign_module = true;
        assert!(examine(&evidence)[0].evidence[0].contains("vmxnet3"));
    }
}
