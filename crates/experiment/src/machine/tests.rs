//! Machines made of files, and what is said of them.

use super::*;

fn good() -> Machine {
    Machine {
        cpu_model: "Some CPU".into(),
        sockets: 2,
        nodes: 2,
        cores: 32,
        cpus: 64,
        governor: "performance".into(),
        kvm: true,
        root: true,
        memory_bytes: 64 << 30,
        memory_available_bytes: 60 << 30,
        huge_pages: "madvise".into(),
        ..Machine::default()
    }
}

#[test]
fn a_good_machine_has_no_findings_and_a_name() {
    assert_eq!(good().judge(), []);
    assert_eq!(good().name(), "2 x Some CPU, 32 cores, 64 GiB");
}

#[test]
fn each_fault_is_found_alone_and_has_a_remedy() {
    type Fault = (&'static str, bool, fn(&mut Machine));
    let faults: [Fault; 13] = [
        ("kvm", true, |m| m.kvm = false),
        ("root", true, |m| m.root = false),
        ("virtual", true, |m| m.is_virtual = true),
        ("governor", true, |m| m.governor = "performance, powersave".into()),
        ("steal", true, |m| m.steal = 0.7),
        ("load", true, |m| m.busy = 0.3),
        ("vms", true, |m| m.other_vms = 1),
        ("memory", true, |m| m.memory_available_bytes = 4 << 30),
        ("smt", false, |m| m.smt = Some(true)),
        ("turbo", false, |m| m.turbo = Some(true)),
        ("huge pages", false, |m| m.huge_pages = "never".into()),
        ("ksm", false, |m| m.merges_pages = true),
        ("numa", false, |m| m.moves_pages_between_nodes = true),
    ];
    for (name, serious, fault) in faults {
        let mut machine = good();
        fault(&mut machine);
        let found = machine.judge();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].name.as_str(), found[0].serious), (name, serious));
        assert!(!found[0].remedy.is_empty() && !found[0].seen.is_empty());
    }
    let all = Machine { smt: Some(true), ..Machine::default() }.judge();
    assert!(all[0].serious && !all[all.len() - 1].serious);
}

#[test]
fn a_machine_is_read_from_its_files() {
    let dir = crate::topology::tests::machine(1, 4, 2);
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("proc/cpuinfo", "model name\t: Fast CPU\nmicrocode\t: 0x42\nflags\t\t: fpu hypervisor sse\n");
    write("proc/meminfo", "MemTotal:  1048576 kB\nMemFree: 1 kB\nMemAvailable:  524288 kB\n");
    write("proc/sys/kernel/osrelease", "6.12.1\n");
    write("proc/sys/kernel/numa_balancing", "1\n");
    write("etc/os-release", "NAME=x\nPRETTY_NAME=\"Some Linux 13\"\n");
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n");
    write("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n");
    write("sys/devices/system/cpu/smt/active", "1\n");
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [never] madvise\n");
    write("sys/kernel/mm/ksm/run", "1\n");
    for (pid, name, words) in
        [(1, "init", "init"), (7, "qemu-system-x86", "qemu"), (8, "kvm-pit/7", ""), (9, "kvm", "kvm")]
    {
        write(&format!("proc/{pid}/comm"), name);
        write(&format!("proc/{pid}/cmdline"), words);
        write(&format!("proc/{pid}/exe"), "");
    }
    let topology = Topology::read_below(dir.path(), &|_| true);
    let machine = Machine::read_below(dir.path(), &topology);
    let wanted = Machine {
        cpu_model: "Fast CPU".into(),
        microcode: "0x42".into(),
        sockets: 1,
        nodes: 1,
        cores: 4,
        cpus: 8,
        kernel: "6.12.1".into(),
        system: "Some Linux 13".into(),
        memory_bytes: 1 << 30,
        memory_available_bytes: 512 << 20,
        governor: "performance, powersave".into(),
        turbo: Some(true),
        smt: Some(true),
        huge_pages: "never".into(),
        merges_pages: true,
        moves_pages_between_nodes: true,
        is_virtual: true,
        other_vms: 2,
        ..Machine::default()
    };
    assert_eq!(machine, wanted);
    // A machine that tells nothing is described all the same.
    let empty = tempfile::tempdir().unwrap();
    let nothing = Machine::read_below(empty.path(), &Topology::default());
    assert_eq!((nothing.governor.as_str(), nothing.turbo, nothing.other_vms), ("", None, 0));
}

#[test]
fn this_machine_is_described() {
    let machine = Machine::read(Duration::from_millis(100));
    assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty(), "{machine:?}");
}
