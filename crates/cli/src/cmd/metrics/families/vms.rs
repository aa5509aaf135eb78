//! VMs: their devices, their connections, what they may use.

use std::fmt;

use prometheus_client::metrics::MetricType;
use vmlane_api::{CounterList, VmStats, VmStatus};

use super::{Families, Scrape, Shown, family, shown, shown_bytes};

/// Of a VM's VMCI or virtio-vsock device.
const VSOCK: [Shown; 17] = [
    shown_bytes("stream_bytes_sent", "vm_stream_sent", "Bytes taken from the guest's streams"),
    shown_bytes("stream_bytes_received", "vm_stream_received", "Bytes given to the guest's streams"),
    shown("connects", "vm_connects", "Stream connections that the guest asked for"),
    shown("established", "vm_connections_established", "Stream connections established, by either end"),
    shown("resets_sent", "vm_connections_refused", "Connections of the guest refused with a reset"),
    shown(
        "datagrams_sent",
        "vm_datagrams_sent",
        "Datagrams that the guest sent, calls of the hypervisor included",
    ),
    shown(
        "datagrams_received",
        "vm_datagrams_received",
        "Datagrams given to the guest, notices and events included",
    ),
    shown("hypercalls", "vm_hypercalls", "Calls of the hypervisor among the datagrams sent"),
    shown("wrote_sent", "vm_wrote_notices_sent", "Notices of the guest that it has written to a stream"),
    shown("read_sent", "vm_read_notices_sent", "Notices of the guest that it has read from a stream"),
    shown("wrote_received", "vm_wrote_notices_received", "Notices to the guest that a stream has bytes"),
    shown("read_received", "vm_read_notices_received", "Notices to the guest that a stream has room"),
    shown("interrupts", "vm_interrupts", "Interrupts of the VM's VMCI device"),
    shown("queue_pairs", "vm_queue_pairs_attached", "Queue pairs created or attached"),
    shown("doorbells_rung", "vm_doorbells_rung", "Doorbells that the guest rang"),
    shown("doorbells_received", "vm_doorbells_received", "Doorbells rung for the guest"),
    shown("resets", "vm_device_resets", "Resets of the VM's VMCI device: reboots, reloads of its driver"),
];

/// Of a VM's virtio-vsock device, beside its bytes.
const VIRTIO: [Shown; 7] = [
    shown("packets_sent", "vm_packets_sent", "Packets that a virtio-vsock guest sent"),
    shown("packets_received", "vm_packets_received", "Packets given to a virtio-vsock guest"),
    shown("refused", "vm_packets_refused", "Packets of a virtio-vsock guest answered with RST"),
    shown(
        "forged",
        "vm_packets_forged",
        "Packets of a virtio-vsock guest with another one's address as their source",
    ),
    shown(
        "malformed",
        "vm_packets_malformed",
        "Descriptor chains of a virtio-vsock guest that are no packets",
    ),
    shown(
        "stalled",
        "vm_connections_stalled",
        "Connections reset because a virtio-vsock guest had no buffers for too long",
    ),
    shown(
        "deferred",
        "vm_turns_deferred",
        "Turns put off because a virtio-vsock guest had had its share of the worker",
    ),
];

/// Of a VM with a hybrid socket, beside its bytes, connects and connections.
const HYBRID: [Shown; 8] = [
    shown(
        "connects_refused",
        "vm_connects_refused",
        "Connections that a guest with a hybrid socket asked for, and that were refused",
    ),
    shown(
        "over_connections",
        "vm_connections_over_limit",
        "Connections of a VM with a hybrid socket for which there was no place",
    ),
    shown("asked", "vm_vmm_asked", "Connections to its guest that a VMM with a hybrid socket was asked for"),
    shown("refused_by_vmm", "vm_vmm_refused", "Of those, ended by the VMM instead of an answer"),
    shown("absent", "vm_vmm_absent", "Of those, for which no VMM was there"),
    shown("late", "vm_vmm_late", "Of those, for which the VMM did not accept or answer in time"),
    shown("malformed", "vm_vmm_malformed", "Of those, answered with something else than OK"),
    shown("not_owner", "vm_peers_not_owner", "Processes at a VM's hybrid sockets that are not its owner's"),
];

/// Counters of the VM's device for sockets: it has one of either kind at most. Bytes have the names of
/// VMCI's.
fn sockets(vm: &VmStats) -> CounterList {
    if vm.vsock.iter().next().is_none() {
        return vm.vmci.clone();
    }
    let renamed = vm.vsock.iter().map(|(name, value)| match name {
        "bytes_sent" => ("stream_bytes_sent", value),
        "bytes_received" => ("stream_bytes_received", value),
        other => (other, value),
    });
    renamed.collect()
}

/// Of the connection between a device and its VMM.
const SESSIONS: [Shown; 9] = [
    shown("sessions", "device_sessions", "Connections of a VMM to the device, the present one included"),
    shown("refused", "device_sessions_refused", "VMMs turned away because another one was being served"),
    shown(
        "refused_peers",
        "device_peers_refused",
        "VMMs turned away because their user may not open the socket",
    ),
    shown(
        "protocol_errors",
        "device_protocol_errors",
        "Connections of VMMs that could not be understood any further",
    ),
    shown("errors", "device_request_errors", "Requests of VMMs answered with an error"),
    shown("messages", "device_messages", "Messages from VMMs"),
    shown("reads", "device_register_reads", "Register reads that left the guest"),
    shown("writes", "device_register_writes", "Register writes that left the guest"),
    shown("irqs_raised", "device_interrupts", "Interrupts delivered to a connected vector"),
];

pub fn write(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let vms = || scrape.vms();
    let about = family("vm", "A VM, with its isolation group and its CID");
    families.write(&about, MetricType::Info, |samples| {
        vms().iter().try_for_each(|vm| {
            let cid = vm.cid.map(|cid| cid.to_string()).unwrap_or_default();
            samples.add(&[("vm", &vm.name), ("group", &vm.group), ("cid", &cid)], true)
        })
    })?;
    fn named(vm: &VmStatus) -> [(&'static str, &str); 1] {
        [("vm", vm.name.as_str())]
    }
    families.each(&family("vm_attached", "1 if a VMM is connected to the VM's devices"), vms(), |vm| {
        (named(vm), vm.attached)
    })?;
    let ready = family("vm_ready", "1 if the guest's driver has set up the VM's VMCI or virtio-vsock device");
    families.each(&ready, vms(), |vm| (named(vm), vm.ready))?;
    let state = family("vm_state", "1 with the state of the VM's device for sockets, as in `vmlane status`");
    let devices = || vms().iter().filter(|vm| !["", "none"].contains(&vm.state.as_str()));
    families
        .each(&state, devices(), |vm| ([("vm", vm.name.as_str()), ("state", vm.state.as_str())], true))?;
    let since = family(
        "vm_counted_since",
        "When the counters of the VM and its NICs were 0, since 1970: they continue with the next daemon, but for refusals of \
         its bounds memory and log_lines",
    );
    let counted = vms().iter().filter_map(|vm| Some((vm, vm.since?)));
    families.each(&since.in_seconds(), counted, |(vm, since)| (named(vm), since))?;
    let quarantined =
        family("vm_quarantined", "1 if the VM's devices are out of service because they failed too often");
    families.each(&quarantined, vms(), |vm| (named(vm), vm.quarantined))?;
    families.each(&family("vm_connections", "Stream connections of the VM"), vms(), |vm| {
        (named(vm), vm.connections)
    })?;
    families
        .each(&family("vm_queue_pairs", "Queue pairs of the VM"), vms(), |vm| (named(vm), vm.queue_pairs))?;
    let memory = family("vm_queue_pair", "Memory of the VM's queue pairs").in_bytes();
    families.each(&memory, vms(), |vm| (named(vm), vm.queue_pair_bytes))?;
    let inbox = family("vm_inbox", "Datagrams and notices that wait for the guest").in_bytes();
    families.each(&inbox, vms(), |vm| (named(vm), vm.inbox_bytes))?;
    families.counter(
        &family("vm_faults", "Faults of ours contained while the VM's devices were served"),
        |samples| vms().iter().try_for_each(|vm| samples.add(&named(vm), vm.faults)),
    )?;
    let sockets: Vec<(&str, CounterList)> =
        scrape.vm_stats().iter().map(|vm| (vm.name.as_str(), sockets(vm))).collect();
    let lists = sockets.iter().map(|(vm, list)| ([("vm", *vm)], list));
    families.counters(&VSOCK, lists.clone())?;
    families.counters(&VIRTIO, lists.clone())?;
    families.counters(&HYBRID, lists)?;
    sessions(scrape, families)?;
    bounds(scrape, families)
}

/// Connections of VMMs, by VM and device.
fn sessions(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let lists = scrape.vm_stats().iter().flat_map(|vm| {
        let labels = |device| [("vm", vm.name.as_str()), ("device", device)];
        let vsock: ([(&'static str, &str); 2], &CounterList) = (labels("vsock"), &vm.session);
        std::iter::once(vsock).chain(vm.nics.iter().map(move |nic| (labels(nic.name.as_str()), &nic.session)))
    });
    families.counters(&SESSIONS, lists)
}

/// What each VM uses of what it may use.
fn bounds(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let all = || scrape.vm_stats().iter().flat_map(|vm| vm.bounds.iter().map(move |bound| (vm, bound)));
    let used = family("vm_bound_used", "How much of a bound the VM uses");
    families.each(&used, all(), |(vm, bound)| {
        ([("vm", vm.name.as_str()), ("bound", bound.name.as_str())], bound.used)
    })?;
    let limit = family("vm_bound_limit", "A bound of the VM, as in `vmlane stats`");
    families.each(&limit, all(), |(vm, bound)| {
        ([("vm", vm.name.as_str()), ("bound", bound.name.as_str())], bound.limit)
    })?;
    families.counter(&family("vm_bound_refused", "Times the VM asked for more than its bound"), |samples| {
        all().try_for_each(|(vm, bound)| {
            samples.add(&[("vm", &vm.name), ("bound", &bound.name)], bound.refused)
        })
    })
}
