//! Programs that end with the test that started them.

use std::io::{Write as _, read_to_string};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// A process that does not outlive its test: it is killed when this is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Its end, which must come by itself: by the end of its input, if not before.
    pub fn wait(&mut self) -> ExitStatus {
        drop(self.0.stdin.take());
        eventually("a process ends", || self.0.try_wait().unwrap())
    }

    /// The same, with its output where a pipe was made for that.
    pub fn finish(mut self) -> Ran {
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let (out, err) = std::thread::scope(|scope| {
            let out = scope.spawn(|| stdout.map(|pipe| read_to_string(pipe).unwrap()));
            let err = stderr.map(|pipe| read_to_string(pipe).unwrap());
            (out.join().unwrap(), err)
        });
        let (out, err) = (out.unwrap_or_default(), err.unwrap_or_default());
        Ran { code: self.wait().code().unwrap_or(-1), out, err }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    /// -1 for one that a signal ended.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn succeeded(&self) -> bool {
        self.code == 0
    }

    /// What it printed; it must have succeeded.
    #[track_caller]
    pub fn good(self) -> String {
        assert!(self.succeeded(), "{self:?}");
        self.out
    }

    /// It has failed with this code, and these words are in its error.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        contains_all(&self.err, words);
    }

    /// All that it printed.
    pub fn printed(&self) -> String {
        [&*self.out, &*self.err].concat()
    }
}

#[track_caller]
pub fn contains_all(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is missing in\n{text}"));
}

/// Runs a command to its end, without input.
pub fn run(mut command: Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// Writes a program that can be run at once. Another process writes it: a child that a test beside this one
/// forks holds what this process has open until it has become its own program, and a file open for writing
/// cannot be run.
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut install = install.spawn().expect("install");
    install.stdin.take().expect("a pipe").write_all(text.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success(), "{} is not written", path.display());
}
