//! The list of targets: what each does with an input.

mod bench_control;
mod config;
mod doctor_capture;
mod doctor_facts;
mod forged_state;
mod frame_heads;
mod host_library;
mod import;
mod libvirt_domain;
mod ovsdb;
mod route_frames;
mod switch_model;
mod varlink;
mod vfio_user;
mod vfio_user_states;
mod vhost_user;
mod vhost_user_uplink;
mod virtio_net;
mod virtqueue;
mod vmci_datagram;
mod vmci_model;
mod vmci_registers;
mod vmci_stream;
mod vmxnet3_device;
mod vmxnet3_registers;
mod vmxnet3_rx;
mod vmxnet3_tx;
mod vsock_packets;
mod vsock_sessions;
mod wire;

macro_rules! named {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name::run)),*] };
}

/// What a target does with one input.
pub type Run = fn(&[u8]);

/// Every target, by its name: that of its module, and of its folders of inputs.
pub const TARGETS: &[(&str, Run)] = named![
    bench_control,
    config,
    doctor_capture,
    doctor_facts,
    forged_state,
    frame_heads,
    host_library,
    import,
    libvirt_domain,
    ovsdb,
    route_frames,
    switch_model,
    varlink,
    vfio_user,
    vfio_user_states,
    vhost_user,
    vhost_user_uplink,
    virtio_net,
    virtqueue,
    vmci_datagram,
    vmci_model,
    vmci_registers,
    vmci_stream,
    vmxnet3_device,
    vmxnet3_registers,
    vmxnet3_rx,
    vmxnet3_tx,
    vsock_packets,
    vsock_sessions,
    wire,
];

/// The target of this name. It is known when a program is compiled that asks for one, so that the program has
/// the code of that one alone.
pub const fn target(name: &str) -> Run {
    let mut at = 0;
    while at < TARGETS.len() {
        if is_same(TARGETS[at].0.as_bytes(), name.as_bytes()) {
            return TARGETS[at].1;
        }
        at += 1;
    }
    panic!("there is no target of this name")
}

/// `==` is not for constants yet.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}
