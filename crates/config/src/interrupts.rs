//! Whether a guest has interrupts for all of its NICs: its drivers fall back to fewer queues, or do not
//! start a NIC, when there are none left.
//!
//! Linux's virtio driver takes an interrupt for each ring, whatever the number of processors, and one for
//! changes of the configuration. Its VMXNET3 driver takes one for each queue in use, which are at most as
//! many as there are processors, and one for events. The driver of root ports takes one for each of them.

use crate::{NicModel, VmConfig};

/// Of the 256 vectors of a processor, so many are left for devices.
const OF_A_PROCESSOR: usize = 200;
/// KVM delivers no more of them to a VM.
const OF_A_VM: usize = 4096;

/// What to change if they do not suffice.
///
/// How many processors the guest has is not known; it is taken to have one for each queue that a virtio NIC
/// is given, because that is what one sets `queues` for.
pub fn too_few(vm: &VmConfig) -> Option<String> {
    let virtio = vm.nics.iter().filter(|nic| nic.model != NicModel::Vmxnet3);
    let processors = virtio.map(|nic| usize::from(nic.queues)).max().unwrap_or(1);
    let (needed, there) = (needed(vm, processors), (OF_A_PROCESSOR * processors).min(OF_A_VM));
    (needed > there).then(|| {
        let nics = vm.nics.len();
        let guest = if processors == 1 { "one CPU".to_owned() } else { format!("{processors} CPUs") };
        let change = if there == OF_A_VM { "" } else { "give it more CPUs, or " };
        format!(
            "nic: {nics} NICs take {needed} interrupts in a guest of {guest}, which has about {there}; {change}use fewer NICs or \
             fewer queues"
        )
    })
}

fn needed(vm: &VmConfig, processors: usize) -> usize {
    let nics = vm.nics.iter().enumerate();
    let of_nic = nics.map(|(number, nic)| {
        let queues = usize::from(nic.queues);
        let own = match nic.model {
            NicModel::VirtioNet(_) => 2 * queues + 1,
            NicModel::Vmxnet3 if nic.profile.has_msix() => queues.min(processors) + 1,
            NicModel::Vmxnet3 => 1,
        };
        own + usize::from(vm.port_slot(number).is_some())
    });
    of_nic.sum()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    fn vm(virtio: &str, of_virtio: usize, of_vmxnet3: usize) -> VmConfig {
        let nics = format!("{{ model = \"virtio-net\"{virtio} }}, ").repeat(of_virtio)
            + &"{ model = \"vmxnet3\" }, ".repeat(of_vmxnet3);
        let text = format!("[[vm]]\nname = \"a\"\nvsock = \"none\"\nnic = [{nics}]\n");
        Config::parse(Path::new("t.toml"), &text).unwrap().vms.remove(0)
    }

    #[test]
    fn they_are_counted_as_linux_takes_them() {
        let thirty_two_each = vm("", 32, 32);
        // 54 ports; VMXNET3's numbers are from 32 on, so each has two queues.
        assert_eq!(needed(&thirty_two_each, 1), 32 * 3 + 32 * 2 + 54);
        assert_eq!(needed(&thirty_two_each, 8), 32 * 3 + 32 * 3 + 54);
        assert_eq!(needed(&vm("", 0, 10), 4), 10 * 5);
    }

    #[test]
    fn what_does_not_fit_is_reported_and_what_does_is_not() {
        for (virtio, of_virtio, of_vmxnet3, expected) in [
            ("", 0, 10, None),
            ("", 0, 64, None),
            (
                "",
                32,
                32,
                Some("64 NICs take 214 interrupts in a guest of one CPU, which has about 200; give"),
            ),
            (", queues = 2", 32, 32, None),
            (", queues = 8", 32, 32, None),
            (
                ", queues = 32",
                64,
                0,
                Some("4214 interrupts in a guest of 32 CPUs, which has about 4096; use fewer"),
            ),
            (", queues = 16", 10, 0, None),
        ] {
            let found = too_few(&vm(virtio, of_virtio, of_vmxnet3));
            match (expected, &found) {
                (None, None) => {}
                (Some(words), Some(text)) if text.contains(words) => {}
                _ => panic!("{virtio} {of_virtio} {of_vmxnet3}: {found:?}"),
            }
        }
    }
}
