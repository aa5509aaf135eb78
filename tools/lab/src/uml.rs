//! User Mode Linux's command line for one guest.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::device::Device;
use crate::plan::Plan;
use crate::proto::PORT_WORD;
use crate::setup::PCI;
use crate::spec::{GuestSpec, Nic};
use crate::supervisor::net;

/// Virtio's numbers of the devices (virtio 1.3, 5: device types).
const NET: u32 = 1;
const VSOCK: u32 = 19;

/// How long a guest may wait for a register of a PCI device; it counts microseconds of its own processor.
const REGISTER_US: u32 = 30_000_000;

/// The name of the processes that a guest's programs run in. They end with it, and become orphans.
pub const PROCESSES: &str = "uml-userspace";

/// Its arguments. Standard input must be a connected socket: it becomes the agent's port, a serial line.
/// Standard output is the console.
///
/// # Errors
/// Paths that its command line cannot hold.
pub fn args(plan: &Plan, guest: &GuestSpec) -> Result<Vec<String>> {
    let uml = plan.assets.uml(&guest.kernel)?;
    let mut args = vec![
        format!("mem={}M", plan.spec.mem_mib),
        format!("initrd={}", word(&plan.initrd(&guest.kernel))?),
        // Of the two ways to catch a guest's system calls the fast one. It trusts what runs in the guest.
        "seccomp=on".into(),
        format!("uml_dir={}", word(&plan.guest_dir(&guest.name))?),
        "umid=uml".into(),
        format!("ubd0={},{}", word(&disk(plan, guest))?, word(&plan.assets.root.image())?),
        format!("ubd1r={}", word(&uml.modules())?),
    ];
    args.extend(["con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:0", "quiet"].map(str::to_owned));
    args.push(format!("{PORT_WORD}/dev/ttyS0"));
    // A register's reader gives up after 40 ms, which is too soon on a host that is busy.
    args.push(format!("virtio_pcidev.max_delay_us={REGISTER_US}"));
    for (socket, number) in sockets(plan, guest) {
        args.push(format!("virtio_uml.device={}:{number}", word(&socket)?));
    }
    args.extend(vector_cards(&plan.spec.name, guest));
    args.extend(plan.spec.append.split_whitespace().map(str::to_owned));
    Ok(args)
}

/// What the guest writes to the root image. A process begins with an empty one.
pub fn disk(plan: &Plan, guest: &GuestSpec) -> PathBuf {
    plan.guest_dir(&guest.name).join("root.cow")
}

/// The daemon's sockets for the guest, with the devices' numbers.
fn sockets(plan: &Plan, guest: &GuestSpec) -> Vec<(PathBuf, u32)> {
    let dir = plan.daemon_runtime().join("vm").join(&guest.name);
    let mut nics = 0..;
    let devices = guest.devices.iter().filter_map(|device| match device {
        Device::VirtioNet(_) => Some((format!("nic{}.sock", nics.next()?), NET)),
        Device::VirtioVsock => Some(("vsock.sock".to_owned(), VSOCK)),
        Device::Vmxnet3(_) => Some((format!("nic{}.sock", nics.next()?), PCI)),
        Device::Vmci => Some(("vmci.sock".to_owned(), PCI)),
        _ => None,
    });
    devices.map(|(socket, number)| (dir.join(socket), number)).collect()
}

/// Its own network cards. With the transport `tap` a bridge joins them, with checksums and TSO by vnet
/// headers; `gro=1` makes room for whole super-frames. `depth` is how many frames a poll takes, which NAPI
/// limits to 64.
fn vector_cards(lab: &str, guest: &GuestSpec) -> Vec<String> {
    let cards = guest.devices.iter().filter(|device| device.is_nic()).zip(&guest.nics);
    let vector = cards.filter(|(device, _)| **device == Device::UmlVector);
    let word = |nic: &Nic| {
        let (net, mac) = (nic.network, &nic.mac);
        let tap = net::tap_name(lab, guest.number, net as usize);
        format!("vec{net}:transport=tap,ifname={tap},depth=64,gro=1,mac={mac}")
    };
    vector.map(|(_, nic)| word(nic)).collect()
}

/// A path as part of a word: commas and colons separate parts, spaces words.
fn word(path: &Path) -> Result<String> {
    let text = path.display().to_string();
    ensure!(
        !text.contains([',', ':', '"']) && !text.contains(char::is_whitespace),
        "path {text:?}: User Mode Linux takes none with commas, colons, quotes or spaces; set XDG_RUNTIME_DIR and \
         XDG_CACHE_HOME to other places"
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LabSpec;

    #[test]
    fn its_own_card_is_named_with_its_tap_and_its_address() {
        let spec =
            LabSpec::new("t").device("virtio-net").and_then(|spec| spec.device("b:uml-vector")).unwrap();
        let words = spec.guests().iter().map(|guest| vector_cards("t", guest)).collect::<Vec<_>>();
        assert_eq!(words[0], [""; 0]);
        let tap = net::tap_name("t", 2, 1);
        let word = format!("vec1:transport=tap,ifname={tap},depth=64,gro=1,mac=52:54:00:77:01:02");
        assert_eq!(words[1], [word]);
    }

    #[test]
    fn paths_are_one_word() {
        assert_eq!(word(Path::new("/run/vmlane-lab-0/t")).unwrap(), "/run/vmlane-lab-0/t");
        for bad in ["/a b", "/a,b", "/a:b", "/a\tb"] {
            assert!(word(Path::new(bad)).unwrap_err().to_string().contains("XDG_RUNTIME_DIR"), "{bad}");
        }
    }
}
