//! Memory files that are cut short, in a process that gets no anonymous memory any more and may not change
//! what signals do: as a confined daemon is on a host that overcommits nothing.
#![allow(unsafe_code)] // a process of its own for each case

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use vmlane_mem::{MapRequest, MemoryMap};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;

fn file() -> OwnedFd {
    let file = memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, PAGES * PAGE).unwrap();
    file
}

fn map(file: &OwnedFd) -> MemoryMap {
    let fd = file.try_clone().unwrap();
    let request = MapRequest { guest: 0, len: PAGES * PAGE, offset: 0, fd, writable: true };
    MemoryMap::default().map(request).unwrap()
}

/// Anonymous memory is refused as a host without any left refuses it; changing what a signal does ends the
/// process.
fn filters() -> [BpfProgram; 2] {
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let anonymous = libc::MAP_ANONYMOUS as u64;
    let flags = SeccompCmpOp::MaskedEq(anonymous);
    let flags = SeccompCondition::new(3, SeccompCmpArgLen::Dword, flags, anonymous).unwrap();
    let refused = [(libc::SYS_mmap, vec![SeccompRule::new(vec![flags]).unwrap()])].into();
    let refused = (refused, SeccompAction::Errno(libc::ENOMEM as u32));
    let forbidden = ([(libc::SYS_rt_sigaction, Vec::new())].into(), SeccompAction::KillProcess);
    [refused, forbidden].map(|(rules, action)| {
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
        BpfProgram::try_from(filter).unwrap()
    })
}

/// The wait status of a process like this one, with the filters, that does this.
fn confined(act: impl FnOnce() -> bool) -> i32 {
    let filters = filters();
    // SAFETY: the child uses nothing that another thread may have held, but the heap, which the C library
    // sees to; and ends at once.
    unsafe {
        match libc::fork() {
            0 => {
                let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &limit);
                let done = filters.iter().all(|filter| seccompiler::apply_filter(filter).is_ok()) && act();
                libc::_exit(i32::from(!done))
            }
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            }
        }
    }
}

fn anonymous_memory_is_refused() -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
    // SAFETY: a new mapping, anywhere.
    unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0) == libc::MAP_FAILED }
}

#[test]
fn a_cut_file_is_survived_without_anonymous_memory_and_without_forbidden_calls() {
    let files = [file(), file()];
    let [a, b] = [map(&files[0]), map(&files[1])];
    a.write(0, &[1; 16]).unwrap();
    files.iter().for_each(|file| ftruncate(file, 0).unwrap());
    let zeros = |map: &MemoryMap, at| {
        let mut out = [9; 16];
        map.read(at, &mut out).is_ok() && out == [0; 16]
    };
    let status = confined(|| {
        let far = (PAGES - 1) * PAGE;
        let survived = anonymous_memory_is_refused() && zeros(&a, 0) && zeros(&a, far) && a.poisoned();
        let own = a.write(far, &[7; 16]).is_ok() && zeros(&b, far) && b.poisoned();
        let mut out = [0; 16];
        survived && own && a.read(far, &mut out).is_ok() && out == [7; 16]
    });
    assert_eq!(status, 0);
    assert!(!a.poisoned() && zeros(&a, 0), "this process has memory, and another table");
}

#[test]
fn what_was_written_to_a_replacement_is_not_found_by_the_next_one_there() {
    let files = [file(), file()];
    let first = map(&files[0]);
    ftruncate(&files[0], 0).unwrap();
    let status = confined(move || {
        let written = first.write(0, &[7; 16]).is_ok() && first.poisoned();
        drop(first);
        // The kernel gives the range that was left last.
        let second = map(&files[1]);
        let cut = ftruncate(&files[1], 0).is_ok();
        let mut out = [9; 16];
        written && cut && second.read(0, &mut out).is_ok() && second.poisoned() && out == [0; 16]
    });
    assert_eq!(status, 0);
}

#[test]
fn a_fault_in_memory_that_is_no_vms_ends_the_process_by_an_allowed_call() {
    vmlane_mem::prepare();
    let other = file();
    // SAFETY: a new mapping, anywhere.
    let at = unsafe {
        use std::os::fd::AsRawFd;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, other.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    ftruncate(&other, 0).unwrap();
    let status = confined(|| {
        // SAFETY: a mapping of this test's; the file has no page there.
        unsafe { at.cast::<u8>().read_volatile() == 0 }
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status:#x}");
}
