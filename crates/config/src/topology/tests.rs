//! What each host gets, by trees as the kernel has them at `/sys`.

use std::fs;
use std::path::Path;

use super::*;

/// Writes the tree of a host. Parts of the description, of which a later one replaces what an earlier one
/// wrote: `cpus LIST`; `threads N`, each CPU and the one N behind it are a core; `cache LIST`, these CPUs
/// share one of the third level; `node NUMBER LIST`; `distance NUMBER WORDS`; `package NUMBER LIST`;
/// `garbage FILE`.
#[expect(clippy::disallowed_methods, reason = "below a directory of the test's own")]
fn write_tree(sys: &Path, description: &str) {
    let write = |path: &str, text: &str| {
        let path = sys.join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    let list = |text: &str| text.parse::<CpuList>().unwrap();
    let cache = |cpus: &str, level: u8, kind: &str, shared: &str| {
        for cpu in list(cpus).iter() {
            let of = format!("cpu/cpu{cpu}/cache/index{}", if kind == "Instruction" { 1 } else { level });
            write(&format!("{of}/level"), &level.to_string());
            write(&format!("{of}/type"), kind);
            write(&format!("{of}/shared_cpu_list"), shared);
        }
    };
    let mut all = list("0");
    for part in description.split(';').map(str::trim) {
        match *part.split(' ').collect::<Vec<_>>() {
            ["cpus", cpus] => {
                write("cpu/online", cpus);
                all = list(cpus);
                for cpu in all.iter() {
                    write(&format!("cpu/cpu{cpu}/topology/core_cpus_list"), &cpu.to_string());
                    write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), "0");
                    cache(&cpu.to_string(), 2, "Unified", &cpu.to_string());
                }
                // Not the last level of anything but instructions, with a list that makes no sense.
                cache("0", 9, "Instruction", "");
            }
            ["threads", behind] => {
                let behind: usize = behind.parse().unwrap();
                for cpu in all.iter() {
                    let first = if cpu < behind { cpu } else { cpu - behind };
                    let core = format!("{first},{}", first + behind);
                    write(&format!("cpu/cpu{cpu}/topology/core_cpus_list"), &core);
                    cache(&cpu.to_string(), 2, "Unified", &core);
                }
            }
            ["cache", cpus] => cache(cpus, 3, "Unified", cpus),
            ["node", number, cpus] => write(&format!("node/node{number}/cpulist"), cpus),
            ["distance", number, ref words @ ..] => {
                write(&format!("node/node{number}/distance"), &words.join(" "));
            }
            ["package", number, cpus] => list(cpus)
                .iter()
                .for_each(|cpu| write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), number)),
            ["garbage", file] => write(file, "7-3,x"),
            ref other => panic!("{other:?}"),
        }
    }
}

/// What `[daemon]` with `keys` gets on that host, if the process may use the CPUs `allowed`.
fn placed(description: &str, allowed: &str, keys: &str) -> Placement {
    let sys = tempfile::tempdir().unwrap();
    write_tree(sys.path(), description);
    let config = crate::Config::parse(Path::new("t.toml"), &format!("[daemon]\n{keys}\n")).unwrap();
    Placement::on(sys.path(), allowed.parse().ok(), &config.daemon)
}

const TWO: &str = "cpus 0-1; cache 0-1; node 0 0-1; distance 0 10";
const EIGHT: &str = "cpus 0-7; cache 0-7; node 0 0-7";
/// 64 cores, the second threads of which are CPUs 64 to 127.
const MANY: &str = "cpus 0-127; threads 64; node 0 0-127; cache 0-7,64-71; cache 8-15,72-79; cache 16-23,80-87; \
    cache 24-31,88-95; cache 32-39,96-103; cache 40-47,104-111; cache 48-55,112-119; cache 56-63,120-127";
const TWO_SOCKETS: &str = "cpus 0-31; cache 0-15; cache 16-31; package 1 16-31; node 0 0-15; node 1 16-31; \
    distance 0 10 21; distance 1 21 10";
const OF_MANY: &str = "CPUs 5-7,13-15,21-23,29-31,37-39,45-47,53-55,61-63";

#[test]
fn each_host_gets_the_workers_that_the_table_lists() {
    let no_caches = "cpus 0-15; node 0 0-15; garbage cpu/cpu3/cache/index2/level";
    let no_threads = &format!("{MANY}; garbage cpu/cpu9/topology/core_cpus_list");
    let own_sockets = "cpus 0-7; package 1 1; package 2 2; package 3 3; node 0 0-7";
    let twelve = "cpus 0-11; cache 0-3; cache 4-7; cache 8-11; node 0 0-11";
    let small = "cpus 0-7; cache 0-1; cache 2-3; cache 4-5; cache 6-7; node 0 0-3; node 1 4-7";
    for (host, allowed, chosen) in [
        (TWO, "0-1", "1 (auto: 1 cache of 2 cores, not pinned)".to_owned()),
        (TWO, "1", "1 (auto: 1 cache of 1 core, not pinned)".to_owned()),
        ("cpus 0-5; cache 0-5", "0-5", "1 (auto: 1 cache of 6 cores, not pinned)".into()),
        (EIGHT, "0-7", "1 (auto: 1 cache of 8 cores, CPUs 5-7)".into()),
        ("cpus 0-18; cache 0-18", "0-18", "2 (auto: 1 cache of 19 cores, CPUs 7-9,16-18)".into()),
        (MANY, "0-127", format!("8 (auto: 8 caches of 8 cores, {OF_MANY})")),
        (TWO_SOCKETS, "0-31", "4 (auto: 2 caches of 16 cores, CPUs 5-7,13-15,21-23,29-31)".into()),
        (twelve, "0-11", "3 (auto: 3 caches of 4 cores, CPUs 0-11)".into()),
        (small, "0-7", "2 (auto: 4 caches of 2 cores, CPUs 0-7)".into()),
        // A cpuset cuts a cache in half, or leaves less of it than a worker needs, or only second threads.
        (MANY, "0-11,64-75", "2 (auto: 2 caches of 4 to 8 cores, CPUs 5-11)".into()),
        (MANY, "0-8", "1 (auto: 2 caches of 1 to 8 cores, CPUs 5-7)".into()),
        (MANY, "64-71", "1 (auto: 1 cache of 8 cores, CPUs 69-71)".into()),
        (TWO_SOCKETS, "0-7,16-17", "1 (auto: 2 caches of 2 to 8 cores, CPUs 5-7)".into()),
        // As virtual machines have it: no cache is shared, each CPU is in a socket of its own.
        (own_sockets, "0-7", "1 (auto: 1 node of 8 cores, CPUs 5-7)".into()),
        (no_caches, "0-15", "2 (auto: 1 node of 16 cores, caches not known, CPUs 5-7,13-15)".into()),
        (no_threads, "0-127", {
            "1 (auto: 8 caches of 8 cores, hardware threads not known, not pinned)".into()
        }),
        ("garbage cpu/online; garbage node/node0/cpulist; garbage node/node0/distance", "0-1", {
            "1 (auto: 1 node of 2 cores, caches and hardware threads and nodes not known, not pinned)".into()
        }),
        (TWO, "none", "1 (auto: the CPUs are not known, not pinned)".into()),
    ] {
        assert_eq!(placed(host, allowed, "").to_string(), chosen, "{allowed} of {host}");
    }
}

#[test]
fn the_configuration_comes_first() {
    for (keys, chosen) in [
        ("workers = 3", "3 (configured)"),
        ("workers = 3\ncpus = \"2-5\"", "3 (configured, CPUs 2-5)"),
        ("workers = \"auto\"\ncpus = \"8-23,64-71\"", {
            "3 (auto: 3 caches of 8 cores, CPUs 13-15,21-23,69-71)"
        }),
        ("cpus = \"2-5\"", "1 (auto: 1 cache of 4 cores, not pinned)"),
    ] {
        assert_eq!(placed(MANY, "0-127", keys).to_string(), chosen, "{keys}");
    }
}

/// The CPUs of each worker's threads for streams, frames and virtio-vsock.
fn cpus(placement: &Placement) -> [Vec<String>; 3] {
    [WorkerKind::Streams, WorkerKind::Frames, WorkerKind::Vsock]
        .map(|kind| placement.cpus(kind).map(ToString::to_string).collect())
}

#[test]
fn threads_have_cores_of_their_own_where_most_are_left() {
    let own = placed(TWO_SOCKETS, "0-31", "");
    assert_eq!(cpus(&own), [["5", "13", "21", "29"], ["6", "14", "22", "30"], ["7", "15", "23", "31"]]);
    let shared = placed(MANY, "0-3,8-11,64-127", "cpus = \"0-3,8-11\"");
    assert_eq!(cpus(&shared), [["0-3", "8-11"]; 3]);
    assert_eq!(cpus(&placed(TWO, "0-1", "")), [const { Vec::<String>::new() }; 3]);
}

#[test]
fn the_distance_is_the_kernels_and_caches_count() {
    let near_first = placed(TWO_SOCKETS, "0-31", "");
    let far = OTHER_CACHE * 2.1;
    let expected = [[1.0, 1.0, far, far], [1.0, 1.0, far, far], [far, far, 1.0, 1.0], [far, far, 1.0, 1.0]];
    assert_eq!(near_first.distances(), expected);
    let unknown = placed(&format!("{TWO_SOCKETS}; garbage node/node0/distance"), "0-7,16-23", "");
    assert_eq!(unknown.distances(), [[1.0, 2.0 * OTHER_CACHE], [far, 1.0]]);
    assert_eq!(placed(MANY, "0-15", "").distances(), [[1.0, OTHER_CACHE], [OTHER_CACHE, 1.0]]);
}

#[test]
fn no_more_workers_than_the_switch_can_have() {
    assert_eq!(placed("cpus 0-527; node 0 0-527", "0-527", "").workers, 64);
}

#[test]
fn this_host_is_understood() {
    let placement = Placement::of(&DaemonConfig::default());
    assert!(placement.workers >= 1 && placement.reason.starts_with("auto: "), "{placement}");
}
