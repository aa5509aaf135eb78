//! What a VM's NICs are called, and what is made of these names.

/// The one name of a VM's NIC, counted from 0, and of its port.
pub fn nic_name(vm: &str, number: usize) -> String {
    format!("{vm}/nic{number}")
}

/// A number made of a NIC's name, the same in every run: FNV-1a.
pub fn hash(vm: &str, number: usize) -> u64 {
    vm.bytes().chain([0, number as u8]).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
