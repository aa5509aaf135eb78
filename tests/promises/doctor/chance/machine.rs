//! Faults of programs and CPUs in a guest, of the switch, and of the VMs themselves.

use super::grammar::Layer::{Cpu, Memory, Program, Switch, Vmm as OfVmm};
use super::grammar::Who::{C, End, Impair, Shape, Vmm};
use super::grammar::{Line, Mechanism, mechanism};

/// The measuring program goes into a control group: the server at b at once, what runs in a when it starts.
const GROUP: Line = (
    End,
    "g=/sys/fs/cgroup; [ -e $g/cgroup.procs ] || mount -t cgroup2 cgroup2 $g; echo '+cpu +memory' >$g/cgroup.subtree_control && \
     mkdir -p $g/chance && echo $g/chance >/run/chance-group && python3 /chance.py enter 'bench server' $g/chance",
);
const NO_GROUP: &[Line] = &[(
    End,
    "g=/sys/fs/cgroup; rm /run/chance-group; for p in $(cat $g/chance/cgroup.procs); do echo $p >$g/cgroup.procs; done; \
     rmdir $g/chance",
)];

const NO_SPINNER: &[Line] = &[(End, "kill $(cat /run/chance-spin); rm /run/chance-spin")];

const fn spinner(name: &'static str, strengths: &'static [&'static str], put: &'static [Line]) -> Mechanism {
    mechanism(Cpu, name, strengths, put, NO_SPINNER, &["spin"], &["busy-cpu@"]).symptoms(OF_CPU)
}

/// What a lack of CPU does.
const OF_CPU: &[&str] = &["latency", "slow-answers", "machine-limit", "sender-limit", "zero-window", "steal"];
/// What is seen of a limit between the machines; which of them has it, no guest can know.
const OF_SWITCH: &[&str] = &["retransmits", "latency", "unexplained"];

/// No guest knows what its VM does not get; that the machine itself is slow, it can measure.
const OF_VM: &[&str] = &["steal", "slow-answers", "clock", "vmm-settings"];

const fn shaped(name: &'static str, put: &'static [Line]) -> Mechanism {
    let truth = &["policing", "bufferbloat", "switch-drops"];
    mechanism(Switch, name, &["10M", "50M"], put, &[(Shape, "")], &["shape"], truth).symptoms(OF_SWITCH)
}

const fn impaired(
    name: &'static str,
    strengths: &'static [&'static str],
    truth: &'static [&'static str],
) -> Mechanism {
    mechanism(Switch, name, strengths, &[(Impair, "{s}")], &[(Impair, "")], &["impair"], truth)
        .symptoms(OF_SWITCH)
}

pub const TABLE: &[Mechanism] = &[
    mechanism(
        Program,
        "a CPU quota",
        &["5000 100000", "20000 100000"],
        &[GROUP, (End, "echo '{s}' >/sys/fs/cgroup/chance/cpu.max")],
        NO_GROUP,
        &["group"],
        &["cpu-quota@"],
    )
    .symptoms(OF_CPU),
    mechanism(
        Memory,
        "little memory for the program",
        &["500k", "2M"],
        &[GROUP, (End, "echo {s} >/sys/fs/cgroup/chance/memory.high")],
        NO_GROUP,
        &["group"],
        &["memory-pressure@"],
    )
    .symptoms(OF_CPU),
    mechanism(
        Program,
        "a server that is stopped for moments",
        &["80 40", "400 100"],
        &[(End, "python3 /chance.py pulse 'bench server' {s} >/dev/null 2>&1 </dev/null & echo $! >/run/chance-pulse")],
        &[(End, "kill $(cat /run/chance-pulse)")],
        &["server"],
        &["slow-answers"],
    )
    .symptoms(&["latency", "zero-window", "sender-limit"])
    .only_at_b(),
    mechanism(
        Program,
        "a server under strace",
        &[],
        &[(
            End,
            "strace -f -o /dev/null -p $(pgrep -of 'vmlane bench server') >/dev/null 2>&1 </dev/null & echo $! >/run/chance-strace",
        )],
        &[(End, "kill $(cat /run/chance-strace)")],
        &["server"],
        &["busy-cpu@"],
    )
    .symptoms(OF_CPU)
    .only_at_b(),
    mechanism(
        Program,
        "tcpdump at the card",
        &["", "-s 64 tcp"],
        &[(End, "tcpdump -i {if} -w /dev/null {s} >/dev/null 2>&1 </dev/null & echo $! >/run/chance-dump")],
        &[(End, "kill $(cat /run/chance-dump)")],
        &["tcpdump"],
        &["busy-cpu@"],
    )
    .symptoms(OF_CPU)
    .over_ip(),
    mechanism(
        Program,
        "a server at low priority beside a program",
        &["1", "3"],
        &[(
            End,
            "python3 /chance.py renice 'bench server' 19; python3 /chance.py spin {s} >/dev/null 2>&1 </dev/null & echo $! >/run/chance-spin",
        )],
        &[(End, "kill $(cat /run/chance-spin); python3 /chance.py renice 'bench server' 0")],
        &["spin", "server"],
        &["busy-cpu@"],
    )
    .symptoms(OF_CPU)
    .only_at_b(),
    mechanism(
        Program,
        "a server and a program on one CPU",
        &["1"],
        &[(
            End,
            "python3 /chance.py pin 'bench server' {s}; python3 /chance.py spin 2 0 {s} >/dev/null 2>&1 </dev/null & echo $! >/run/chance-spin",
        )],
        &[(End, "kill $(cat /run/chance-spin); python3 /chance.py pin 'bench server' 0,1")],
        &["spin", "server"],
        &["busy-cpu@"],
    )
    .symptoms(OF_CPU)
    .only_at_b(),
    spinner(
        "programs that spin",
        &["1", "2", "4"],
        &[(End, "python3 /chance.py spin {s} >/dev/null 2>&1 </dev/null & echo $! >/run/chance-spin")],
    ),
    spinner(
        "programs that spin at high priority",
        &["1", "2"],
        &[(End, "python3 /chance.py spin {s} -15 >/dev/null 2>&1 </dev/null & echo $! >/run/chance-spin")],
    ),
    spinner(
        "programs that spin at real-time priority",
        &["1", "2"],
        &[(End, "python3 /chance.py spin {s} 0 '' 10 >/dev/null 2>&1 </dev/null & echo $! >/run/chance-spin")],
    ),
    mechanism(
        Cpu,
        "a CPU offline",
        &[],
        &[(End, "write /sys/devices/system/cpu/cpu1/online 0")],
        &[(End, "restore /sys/devices/system/cpu/cpu1/online")],
        &["cpu1"],
        &["interrupts@", "kernel-setting@"],
    )
    .symptoms(OF_CPU),
    mechanism(
        Cpu,
        "a slow clock",
        &["acpi_pm", "hpet"],
        &[(End, "write /sys/devices/system/clocksource/clocksource0/current_clocksource {s}")],
        &[(End, "restore /sys/devices/system/clocksource/clocksource0/current_clocksource")],
        &["clock"],
        &["clock@"],
    )
    .symptoms(OF_CPU),
    mechanism(
        Cpu,
        "a third machine's datagrams",
        &["64", "1400"],
        &[(C, "python3 /chance.py flood {me} {s} >/dev/null 2>&1 </dev/null & echo $! >/run/chance-flood")],
        &[(C, "kill $(cat /run/chance-flood)")],
        &["c"],
        &["busy-cpu@", "backlog@", "other-traffic@"],
    )
    .symptoms(OF_CPU)
    .over_ip(),
    shaped("a shape of what is sent", &[(Shape, "in {s}")]),
    shaped("a shape of what arrives", &[(Shape, "out {s}")]),
    impaired("loss on the line", &["loss=10", "loss=50"], &["loss", "switch-drops"]),
    impaired("reordering on the line", &["reorder=100", "reorder=300"], &["frame-order", "loss"]),
    impaired("a delay on the line", &["delay_us=2000", "delay_us=20000"], &["latency"]),
    impaired("super-frames lost on the line", &["longest=1600"], &["super-frames-lost"]),
    impaired("long frames lost on the line", &["longest=1000"], &["path-mtu", "black-hole", "super-frames-lost"]),
    mechanism(OfVmm, "a VM that is stopped for moments", &["30 30", "150 50"], &[(Vmm, "stop {s}")], &[(Vmm, "")], &["qemu"], OF_VM)
        .symptoms(&["latency", "machine-limit", "sender-limit", "unexplained"]),
    mechanism(OfVmm, "both VMs on one CPU", &["0"], &[(Vmm, "cpu {s}")], &[(Vmm, "")], &["qemu"], OF_VM)
        .symptoms(&["latency", "machine-limit", "sender-limit", "unexplained"]),
];
