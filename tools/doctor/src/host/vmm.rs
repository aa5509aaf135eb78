//! A VM's virtual machine monitor: memory, CPUs and vmlane's devices by its command line.
//!
//! Which process that is, the daemon knows from the connection that it serves. It is never searched for: any
//! user may start a process whose command line names any socket.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;

use serde::Serialize;
use serde_json::Value;

use crate::cgroup::{MOST_THREADS, Quota};
use crate::text::text_of;

const LONGEST: u64 = 1 << 20;

/// A QEMU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Vmm {
    pub pid: u32,
    /// Unix sockets in its command line.
    pub sockets: Vec<String>,
    /// `kvm`, `tcg` ...; none if it is not given.
    pub accelerator: Option<String>,
    pub vcpus: usize,
    /// Whether its memory can be mapped by the daemon; none if it has no memory back end.
    pub shared_memory: Option<bool>,
    pub huge_pages: bool,
    pub devices: Vec<Device>,
    /// Threads of virtual CPUs and where they may run.
    pub vcpu_threads: Vec<(String, String)>,
    /// Of CPU time.
    pub quotas: Vec<Quota>,
}

impl Vmm {
    /// The CPUs of the host of which a thread of a virtual CPU may only run on that one.
    pub fn pinned(&self) -> BTreeSet<&String> {
        self.vcpu_threads.iter().map(|(_, cpus)| cpus).filter(|cpus| cpus.parse::<u32>().is_ok()).collect()
    }
}

/// A device of vfio-user.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Device {
    pub socket: String,
    pub no_posted_writes: bool,
    /// Milliseconds that it waits for an answer; none: QEMU's default.
    pub message_timeout: Option<u64>,
}

/// The QEMU that is this process.
pub fn of_process(pid: u32) -> Result<Vmm, String> {
    let path = format!("/proc/{pid}/cmdline");
    let mut line = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(LONGEST).read_to_end(&mut line));
    read.map_err(|error| format!("{path}: {error}"))?;
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let mut vmm = of_words(&words).ok_or_else(|| format!("process {pid} is no QEMU"))?;
    let threads = threads(pid);
    vmm.pid = pid;
    // Each virtual CPU is a thread, whatever the command line contains.
    vmm.vcpus = vmm.vcpus.min(threads.len().max(1));
    vmm.vcpu_threads = threads.into_iter().filter(|(name, _)| name.starts_with("CPU ")).collect();
    Ok(vmm)
}

/// The name of each thread, and the CPUs where it may run.
pub fn threads(pid: u32) -> Vec<(String, String)> {
    let entries =
        fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(MOST_THREADS);
    entries
        .filter_map(|entry| {
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            let field = |name: &str| {
                status.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned())
            };
            Some((field("Name:")?, field("Cpus_allowed_list:")?))
        })
        .collect()
}

/// None if it is no QEMU.
fn of_words(words: &[String]) -> Option<Vmm> {
    let name = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    // A loader may come before the program.
    let loader = if name(words.first()?).starts_with("ld-linux") { 8 } else { 1 };
    words.iter().take(loader).map(name).find(|program| {
        program.starts_with("qemu-system") || program.starts_with("qemu-kvm") || program == "kvm"
    })?;
    let mut vmm = Vmm { vcpus: 1, ..Vmm::default() };
    let mut options = words.iter().skip(1);
    while let Some(option) = options.next() {
        let option = option.trim_start_matches('-');
        if option == "enable-kvm" {
            vmm.accelerator = Some("kvm".to_owned());
            continue;
        }
        if !matches!(option, "accel" | "machine" | "M" | "smp" | "object" | "device" | "netdev" | "chardev") {
            continue;
        }
        let Some(value) = options.next() else { break };
        match option {
            "accel" => vmm.accelerator = value.split(',').next().map(str::to_owned),
            "machine" | "M" => {
                if let Some(accelerators) = key(value, "accel") {
                    vmm.accelerator = accelerators.split(':').next().map(str::to_owned);
                }
            }
            "smp" => vmm.vcpus = vcpus(value),
            "object" => vmm.object(value),
            _ => vmm.device(value),
        }
    }
    Some(vmm)
}

impl Vmm {
    fn object(&mut self, value: &str) {
        let text = |name: &str| option(value, name).unwrap_or_default();
        let kind = kind(value, "qom-type");
        if !kind.starts_with("memory-backend-") {
            return;
        }
        let is_shared = is_on(&text("share")) && kind != "memory-backend-ram";
        self.shared_memory = Some(self.shared_memory.unwrap_or(true) && is_shared);
        self.huge_pages |= is_on(&text("hugetlb")) || text("mem-path").contains("huge");
    }

    fn device(&mut self, value: &str) {
        let Some(socket) = option(value, "socket.path").or_else(|| option(value, "path")) else { return };
        self.sockets.push(socket.clone());
        if kind(value, "driver").starts_with("vfio-user") {
            self.devices.push(Device {
                socket,
                no_posted_writes: option(value, "x-no-posted-writes").is_some_and(|text| is_on(&text)),
                message_timeout: option(value, "x-msg-timeout").and_then(|text| text.parse().ok()),
            });
        }
    }
}

fn is_on(text: &str) -> bool {
    matches!(text, "on" | "true" | "yes")
}

/// An option of an object or a device. QEMU takes them as JSON, or as "first,key=value,...", where dots lead
/// into what JSON nests.
fn option(value: &str, name: &str) -> Option<String> {
    match serde_json::from_str::<Value>(value) {
        Ok(json) => json.pointer(&format!("/{}", name.replace('.', "/"))).map(text_of),
        Err(_) => key(value, name).map(str::to_owned),
    }
}

/// The option that comes first, whose name may be omitted.
fn kind(value: &str, name: &str) -> String {
    option(value, name).unwrap_or_else(|| value.split(',').next().unwrap_or_default().to_owned())
}

/// The value of a key in "first,key=value,...".
fn key<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// "2", "2,maxcpus=4", "cpus=2,...", or sockets, cores and threads to multiply.
fn vcpus(value: &str) -> usize {
    let first = value.split(',').next().and_then(|first| first.parse().ok());
    let count = first.or_else(|| key(value, "cpus")?.parse().ok());
    count
        .unwrap_or_else(|| {
            let of = |name| {
                key(value, name).and_then(|text| text.parse::<usize>().ok()).unwrap_or(1).clamp(1, 1024)
            };
            of("sockets") * of("cores") * of("threads")
        })
        .clamp(1, 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Vmm {
        of_words(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_command_line_is_understood() {
        let vmm = of(
            "/usr/bin/qemu-system-x86_64 -accel kvm -smp 4,maxcpus=8 -object memory-backend-memfd,id=m,size=1G,share=on,hugetlb=on \
             -machine q35,memory-backend=m -device {\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/run/v/a.vmci\"},\
             \"x-msg-timeout\":60000,\"x-no-posted-writes\":true} -chardev socket,id=c,path=/run/v/a.nic0",
        );
        assert_eq!((vmm.accelerator.as_deref(), vmm.vcpus), (Some("kvm"), 4));
        assert_eq!((vmm.shared_memory, vmm.huge_pages), (Some(true), true));
        assert_eq!(vmm.sockets, ["/run/v/a.vmci", "/run/v/a.nic0"]);
        assert!(vmm.devices[0].no_posted_writes && vmm.devices[0].message_timeout == Some(60_000));
    }

    /// The name and the arguments are the process's own choice; its threads are not.
    #[test]
    fn a_process_is_read_by_its_number_and_has_no_more_cpus_than_threads() {
        let named = |name: &str| {
            let mut command = std::process::Command::new("sh");
            std::os::unix::process::CommandExt::arg0(&mut command, name);
            command.args(["-c", "read line", "-smp", "4096"]).stdin(std::process::Stdio::piped());
            vmlane_testkit::Process(command.spawn().unwrap())
        };
        let (qemu, other) = (named("qemu-system-x86_64"), named("firecracker"));
        // For a moment after it was started, a process has no arguments.
        let vmm = vmlane_testkit::eventually("it has its arguments", || of_process(qemu.id()).ok());
        assert_eq!((vmm.pid, vmm.vcpus), (qemu.id(), 1));
        assert!(of_process(other.id()).unwrap_err().contains("is no QEMU"));
        assert!(of_process(u32::MAX).unwrap_err().contains("/proc/4294967295/cmdline"));
    }

    #[test]
    fn what_is_missing_is_seen() {
        let vmm = of(
            "qemu-system-x86_64 -machine q35,accel=tcg:kvm -smp sockets=2,cores=3 -object memory-backend-memfd,id=m,size=1G \
             -device {\"driver\":\"vfio-user-pci\",\"socket\":{\"path\":\"/x\"}} -smp",
        );
        assert_eq!((vmm.accelerator.as_deref(), vmm.vcpus, vmm.shared_memory), (Some("tcg"), 6, Some(false)));
        assert!(!vmm.devices[0].no_posted_writes && vmm.devices[0].message_timeout.is_none());
        let loaded = of("/lib64/ld-linux-x86-64.so.2 --library-path /l /usr/bin/qemu-system-x86_64 -smp 3");
        assert_eq!(loaded.vcpus, 3);
        assert_eq!(of_words(&["bash".to_owned(), "qemu-system-x86_64".to_owned()]), None);
        assert_eq!(of_words(&[]), None);
    }
}
