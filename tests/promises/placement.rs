//! How many workers a host gets, and where they run: a daemon in a guest with sixteen processors that share a
//! cache.

use std::collections::BTreeMap;

use vmlane_lab::LabSpec;
use vmlane_tests::{Bed, TIMEOUT, kept, lab};

vmlane_tests::tests! {
    guests { each_worker_has_a_core_of_its_own_where_there_are_many }
}

const START: &str = "
    mkdir -p /t/run
    printf '[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\n' > /t/vmlane.toml
    exec vmlane daemon --config /t/vmlane.toml --runtime-dir /t/run";

const THREADS: &str = r"
    pid=$(vmlane status --runtime-dir /t/run | sed -n '1s/.*pid \([0-9]*\),.*/\1/p')
    for task in /proc/$pid/task/*; do cat $task/comm; grep Cpus_allowed_list $task/status; done";

fn each_worker_has_a_core_of_its_own_where_there_are_many() {
    let bed = Bed::up(&LabSpec { guests: 1, cpus: 16, ..lab("placement", &["virtio-net"]) });
    let guest = bed.guest("a");
    let running = guest.spawn(["sh", "-c", START]).unwrap();
    running.wait_for("ready pid=", TIMEOUT).unwrap();
    let reason = "auto: 1 cache of 16 cores, CPUs 5-7,13-15";
    let status = guest.sh("vmlane status --runtime-dir /t/run").unwrap();
    assert!(status.contains(&format!("2 workers (adaptive; {reason})")), "{status}");

    let threads = guest.sh(THREADS).unwrap();
    let lines: Vec<&str> = threads.lines().collect();
    let cpus: BTreeMap<&str, &str> = lines
        .chunks_exact(2)
        .map(|lines| (lines[0], lines[1].split_whitespace().last().unwrap_or_default()))
        .collect();
    for (thread, cpu) in [
        ("worker-0", "5"),
        ("switch-0", "6"),
        ("vsock-0", "7"),
        ("worker-1", "13"),
        ("switch-1", "14"),
        ("vsock-1", "15"),
        ("control", "0-15"),
    ] {
        assert_eq!(cpus.get(thread), Some(&cpu), "{thread}: {threads}");
    }
    kept("placement", &format!("a daemon in a guest with 16 processors: 2 workers ({reason}), each thread there"));
    drop(running);
    bed.finish();
}
