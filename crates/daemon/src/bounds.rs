//! What each VM may use, as `vmlane stats` shows it.

use vmlane_api::Bound;
use vmlane_config::nic_name;
use vmlane_device::vmci;
use vmlane_mem::MAX_REGIONS;
use vmlane_transport::SessionStats;

use crate::log;
use crate::serve::device_name;
use crate::vm::ServedVm;
use crate::vsock::VsockView;

/// All bounds of a VM: those of its VMCI or virtio-vsock device, then memory and log lines of each device.
pub fn of(vm: &ServedVm, view: &VsockView<'_>) -> Vec<Bound> {
    let connections = |used: usize, limit: usize, refused| Bound {
        name: "connections".into(),
        used: used as u64,
        limit: limit as u64,
        refused,
    };
    let mut bounds: Vec<Bound> = match view {
        VsockView::Vmci(device) => {
            let own = |bound: &vmci::Bound| Bound {
                name: bound.name.into(),
                used: bound.used,
                limit: bound.limit,
                refused: bound.refused,
            };
            device.bounds.iter().map(own).collect()
        }
        VsockView::Virtio(device) => {
            vec![connections(device.counted, device.limit, device.stats.over_connections.get())]
        }
        VsockView::Hybrid(hybrid) => {
            vec![connections(hybrid.connections, hybrid.limit, hybrid.stats.over_connections.get())]
        }
        VsockView::None => Vec::new(),
    };
    let mut device = |prefix: &str, session: &SessionStats, thread: String| {
        let (used, refused) = session.regions();
        let name = format!("{prefix}memory_regions");
        bounds.push(Bound { name, used, limit: MAX_REGIONS as u64, refused });
        let (used, limit, refused) = session.memory.usage();
        bounds.push(Bound { name: format!("{prefix}memory_bytes"), used, limit, refused });
        let (used, limit, refused) = log::lines(&thread);
        bounds.push(Bound { name: format!("{prefix}log_lines"), used, limit, refused });
    };
    if let Some(stats) = vm.stats() {
        let thread = match view {
            VsockView::Virtio(_) => format!("vhu-{}", device_name(vm.name(), "vsock")),
            _ => format!("{}-{}", session_kind(vm.uml_pci), device_name(vm.name(), "vmci")),
        };
        device("", stats, thread);
    }
    for (number, nic) in vm.nics.iter().enumerate() {
        let kind = session_kind(nic.is_virtio() || vm.uml_pci);
        device(&format!("nic{number}."), nic.session(), format!("{kind}-{}", nic_name(vm.name(), number)));
    }
    bounds
}

/// What the thread of a session is named after.
fn session_kind(is_vhost: bool) -> &'static str {
    if is_vhost { "vhu" } else { "vfu" }
}
