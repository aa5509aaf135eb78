//! How much of VMs' memory the daemon may map.

use toml::Spanned;

use crate::limits::SHARED_OUT;
use crate::notes::Notes;
use crate::raw::RawVm;
use crate::vm::VmConfig;

/// Bytes of memory that a device must be able to map.
const SMALLEST_SHARE: u64 = 1 << 30;

/// Bytes of the host's memory. A VM's memory file can be sparse and of any size; pages that the daemon is the
/// first to touch are charged to the daemon, so it maps no more than a VM can have.
pub fn host_memory() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(system.mem_unit.max(1).into())
}

/// Bytes of address space for each device of a VM among `all`: its limit, or an equal share of what is left.
pub fn address_space(all: &[VmConfig], vm: &VmConfig) -> u64 {
    let settled = all.iter().filter_map(|vm| Some(vm.memory?.saturating_mul(vm.devices())));
    let rest = settled.fold(SHARED_OUT, u64::saturating_sub);
    let others: u64 = all.iter().filter(|vm| vm.memory.is_none()).map(VmConfig::devices).sum();
    vm.memory.unwrap_or(rest / others.max(1))
}

/// What VMs may map is one address space.
pub fn judge(vms: &[VmConfig], raws: &[Spanned<RawVm>], notes: &mut Notes<'_>) {
    let Some(last) = raws.last() else { return };
    let too_small =
        |vm: &&VmConfig| vm.memory.is_none() && vm.devices() > 0 && address_space(vms, vm) < SMALLEST_SHARE;
    let sum = vms.iter().map(|vm| vm.memory.unwrap_or(0).saturating_mul(vm.devices()));
    let sum = sum.fold(0, u64::saturating_add);
    if sum > SHARED_OUT {
        let (most, sum) = (SHARED_OUT >> 30, sum >> 30);
        let text = format!(
            "limits: memory: the devices of all VMs together may map {most}G, not {sum}G; lower the key memory"
        );
        notes.problem(last.span(), text);
    } else if let Some(vm) = vms.iter().find(too_small) {
        let text = format!(
            "vm {:?}: limits: memory: the keys of other VMs leave it less than 1G; lower them, or give it one",
            vm.name
        );
        notes.problem(last.span(), text);
    }
}
