//! A file system that this process serves, and stops serving. The protocol: linux/fuse.h, as far as opening
//! one file goes.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmlane_testkit::skipped;
use zerocopy::IntoBytes;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
/// Nodes: the root, which is a directory, and a file of `SIZE` bytes.
const ROOT: u64 = 1;
const FILE: u64 = 2;
pub const SIZE: u64 = 16 << 20;

/// What is answered once the file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// That it is closed, so that the process that closes it goes on.
    Closing,
    Nothing,
}

/// An open file whose server stalls. From the moment it is dropped on, everything is answered, and nothing
/// waits any more.
pub struct StallingFile {
    pub file: File,
    over: Arc<AtomicBool>,
}

impl StallingFile {
    /// None: this process can mount no such file system.
    pub fn open(answers: Answers) -> Option<StallingFile> {
        let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
            skipped("no /dev/fuse");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0", "stalling"]);
        mount.arg(folder.path()).stdin(Stdio::from(device.try_clone().unwrap())).stderr(Stdio::null());
        if !mount.status().is_ok_and(|status| status.success()) {
            skipped("no file system of this process can be mounted");
            return None;
        }
        let (over, stalled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        {
            let (over, stalled) = (over.clone(), stalled.clone());
            // It ends with the last file of the file system.
            std::thread::spawn(move || serve(&device.into(), answers, &over, &stalled));
        }
        let file = File::options().read(true).write(true).open(folder.path().join("memory"));
        // The open file keeps the file system.
        let unmounted = Command::new("umount").arg("-l").arg(folder.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
        // Only now: that process, too, closes the file when it begins.
        stalled.store(true, Ordering::Release);
        Some(StallingFile { file: file.unwrap(), over })
    }
}

impl Drop for StallingFile {
    fn drop(&mut self) {
        // The server is not merely closed: a process that is just being started has both files until it
        // begins its program, and waits for an answer as it closes the first.
        self.over.store(true, Ordering::Release);
    }
}

fn serve(device: &OwnedFd, answers: Answers, over: &AtomicBool, stalled: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    let interval = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // Requests that wait for an answer, and what each is answered in the end.
    let mut waiting: Vec<(u64, i32)> = Vec::new();
    let reply = |unique: u64, error: i32, answer: &[u8]| {
        let head = [16 + answer.len() as u32, error as u32];
        let _ = rustix::io::write(device, &[head.as_bytes(), unique.as_bytes(), answer].concat());
    };
    loop {
        if over.load(Ordering::Acquire) {
            waiting.drain(..).for_each(|(unique, error)| reply(unique, error, &[]));
        }
        let mut files = [PollFd::new(device, PollFlags::IN)];
        if !matches!(poll(&mut files, Some(&interval)), Ok(1)) {
            continue;
        }
        match rustix::io::read(device, &mut request) {
            Ok(40..) => {}
            Err(rustix::io::Errno::NODEV) => return,
            _ => continue,
        }
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap());
        let (opcode, unique, node) = (word(4), long(8), long(16));
        let closing = [FLUSH, RELEASE].contains(&opcode);
        if stalled.load(Ordering::Acquire) && !(closing && answers == Answers::Closing) {
            waiting.push((unique, if closing { 0 } else { -rustix::io::Errno::IO.raw_os_error() }));
            continue;
        }
        let answer = match opcode {
            // Version 7.31, writes of 64 KiB.
            INIT => [7u32, 31, 0, 0, 0, 1 << 16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].as_bytes().to_vec(),
            LOOKUP => [[FILE, 0, 3600, 3600, 0].as_bytes(), &attributes(FILE)].concat(),
            GETATTR => [[3600u64, 0].as_bytes(), &attributes(node)].concat(),
            OPEN => vec![0; 16],
            _ => Vec::new(),
        };
        reply(unique, 0, &answer);
    }
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == ROOT { (0o040_777, 0) } else { (0o100_666, SIZE) };
    let words = [0u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    [[node, size, size / 512, 0, 0, 0].as_bytes(), words.as_bytes()].concat()
}
