//! Seccomp: which system calls a thread may make, by what it is for.
//!
//! Two filters for the whole process: everything that any part of the daemon needs, and sockets of no
//! family but `AF_UNIX` (others are refused with EPERM). Threads that serve guests put their own on top
//! with what their role needs. A call outside the list is never carried out: `violation` reports it and
//! ends the process.

use std::collections::BTreeMap;

use libc::c_long;
use parking_lot::Mutex;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use vmlane_port::role::Role;

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;

/// What any thread needs: memory, locks, time, its end, the signal of a shrunk memory file, the log.
const COMMON: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Serves a VMM: messages with descriptors, mappings of them, interrupts.
const SESSION: &[c_long] = &[
    libc::SYS_dup,
    // vhost-user: the kicks of all rings behind one file.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_getsockopt,
    libc::SYS_lseek,
    libc::SYS_memfd_create,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Lets another switch in. The helper goes to where one listens; a connection is served as a VMM's is.
const UPLINK: &[c_long] = &[libc::SYS_accept4];

/// Lets VMMs in, or goes to where they listen.
const ACCEPTOR: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_socket,
    libc::SYS_fcntl,
    libc::SYS_getsockopt,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Waits for the doorbells of host programs, too.
const WORKER: &[c_long] = &[
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_read,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// Raises the event fds of VMMs (`transport/event_fd.rs`).
const EVENTS: &[c_long] = &[libc::SYS_io_getevents, libc::SYS_io_submit];

/// Memory files: guests', rings of a connection, state that outlives the daemon; and the keeper's socket that
/// they are sent to.
const HOLDING: &[c_long] = &[
    libc::SYS_fallocate,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    // What kind of file it is, with each mapping (`mem/file.rs`).
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_memfd_create,
    libc::SYS_msync,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_copy_file_range,
    libc::SYS_lseek,
    libc::SYS_sendfile,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Uplinks' files and vhost-user's kicks, too.
const SWITCH: &[c_long] = &[
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Host programs' sockets and rings; and the sockets where they listen for a guest.
const HOST: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_dup,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_getsockopt,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_shutdown,
    libc::SYS_socket,
    libc::SYS_socketpair,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// The rest of the daemon: threads, sockets, the runtime directory, the configuration; and starting the
/// program again as its own helper (Landlock lets no other be started).
const DAEMON: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_chdir,
    libc::SYS_clock_getres,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_connect,
    libc::SYS_dup3,
    libc::SYS_execve,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_flock,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpeername,
    libc::SYS_getpgid,
    libc::SYS_getppid,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_getsockname,
    libc::SYS_getuid,
    libc::SYS_kill,
    // Access control lists of its sockets.
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    // Which of a VM's pages are there, before they become a huge one (`mem/huge.rs`).
    libc::SYS_mincore,
    libc::SYS_setxattr,
    libc::SYS_linkat,
    libc::SYS_listen,
    libc::SYS_mkdirat,
    libc::SYS_msync,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pipe2,
    libc::SYS_prlimit64,
    libc::SYS_pselect6,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    // A stricter filter for a thread.
    libc::SYS_seccomp,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_signalfd4,
    libc::SYS_statfs,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_setpgid,
    libc::SYS_setsid,
    libc::SYS_socketpair,
    libc::SYS_socket,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sysinfo,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_wait4,
    libc::SYS_waitid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getpgrp,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// What the C library (does its heap shrink?) and a panic's backtrace ask for on any thread, and can do
/// without: refused with EACCES on threads that serve guests.
const REFUSED: &[c_long] = &[
    libc::SYS_getcwd,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// prctl() that is harmless, and needed by threads that start or set their name.
const PRCTLS: [i32; 6] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_TIMERSLACK,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_SET_PDEATHSIG,
    libc::PR_SET_VMA,
];

/// Why a filter could not be put in force.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CallsError(#[from] seccompiler::Error);

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, CallsError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    Ok(condition.map_err(seccompiler::Error::from)?)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, CallsError> {
    Ok(SeccompRule::new(conditions).map_err(seccompiler::Error::from)?)
}

fn when(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, CallsError> {
    rule(vec![condition(argument, op, value)?])
}

fn program(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, CallsError> {
    let filter = SeccompFilter::new(rules, otherwise, matched, ARCH).map_err(seccompiler::Error::from)?;
    Ok(BpfProgram::try_from(filter).map_err(seccompiler::Error::from)?)
}

/// A filter that lets `calls` through, mappings that are not executable, and the rest of what is common.
fn allow_list(calls: &[&[c_long]]) -> Result<BpfProgram, CallsError> {
    let calls = calls.iter().copied().chain([COMMON, HOLDING]).flatten();
    let mut rules: Rules = calls.map(|&call| (call, Vec::new())).collect();
    let executable = libc::PROT_EXEC as u64;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![when(2, SeccompCmpOp::MaskedEq(executable), 0)?]);
    }
    // Of an open file, what the kernel knows already: what kind of file holds a guest's memory.
    let known = (libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC) as u64;
    rules.entry(libc::SYS_statx).or_insert(vec![when(2, SeccompCmpOp::Eq, known)?]);
    // Blocking or not: the only ioctl that is not an uplink's.
    rules.insert(libc::SYS_ioctl, vec![when(1, SeccompCmpOp::Eq, libc::FIONBIO)?]);
    let prctls: Result<Vec<_>, _> =
        PRCTLS.iter().map(|&option| when(0, SeccompCmpOp::Eq, option as u64)).collect();
    let mut prctls = prctls?;
    // Of a helper, which is dumpable again when it has started.
    prctls.push(rule(vec![
        condition(0, SeccompCmpOp::Eq, libc::PR_SET_DUMPABLE as u64)?,
        condition(1, SeccompCmpOp::Eq, 0)?,
    ])?);
    rules.insert(libc::SYS_prctl, prctls);
    // abort() of a thread that must not continue: signals to threads of this process only.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![when(0, SeccompCmpOp::Eq, own)?]);
    program(rules, SeccompAction::Trap, SeccompAction::Allow)
}

/// No sockets but local ones: a request for another one fails, without ending the process.
fn local_sockets() -> Result<BpfProgram, CallsError> {
    let others = when(0, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?;
    let rules = Rules::from([(libc::SYS_socket, vec![others])]);
    program(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// Filters for the whole process; to be called before other threads exist.
pub fn confine_process() -> Result<(), CallsError> {
    let all = allow_list(&[SESSION, UPLINK, ACCEPTOR, WORKER, SWITCH, HOST, EVENTS, DAEMON])?;
    seccompiler::apply_filter(&local_sockets()?)?;
    seccompiler::apply_filter(&all)?;
    Ok(())
}

/// Filters for the calling thread, beside those of the process.
///
/// Each role's are compiled once: many threads have the same, and what is left of a compilation stays in its
/// thread's own list of free memory.
pub fn confine_thread(role: Role) -> Result<(), CallsError> {
    static COMPILED: Mutex<Vec<(Role, [BpfProgram; 2])>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock();
    if !compiled.iter().any(|(of, _)| *of == role) {
        compiled.push((role, filters(role)?));
    }
    let mut own = compiled.iter().filter(|(of, _)| *of == role).flat_map(|(_, filters)| filters);
    Ok(own.try_for_each(|filter| seccompiler::apply_filter(filter))?)
}

/// What refuses some calls, and what allows some; both are in force.
fn filters(role: Role) -> Result<[BpfProgram; 2], CallsError> {
    let [own, more, events] = match role {
        Role::Session => [SESSION, &[], EVENTS],
        Role::Acceptor => [ACCEPTOR, &[], &[]],
        Role::Uplink => [SESSION, UPLINK, EVENTS],
        Role::Worker => [WORKER, &[], EVENTS],
        Role::Switch | Role::Vsock => [SWITCH, &[], EVENTS],
        Role::Host => [HOST, &[], EVENTS],
    };
    let refused = REFUSED.iter().map(|&call| (call, Vec::new())).collect();
    let refuse = program(refused, SeccompAction::Allow, SeccompAction::Errno(libc::EACCES as u32))?;
    // The calls that the second one refuses must pass the first one.
    Ok([refuse, allow_list(&[own, more, events, REFUSED])?])
}
