//! A terminal of a user in the container: a program that runs there, what is typed, and what it shows.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

use vmlane_tests::Process;

use crate::package::container::Container;

/// A guest boots, and a program in it begins, while the machine has other work.
const TIMEOUT: Duration = Duration::from_secs(300);

pub struct Terminal {
    process: Process,
    keyboard: ChildStdin,
    screen: PathBuf,
    /// Of the screen that has been read.
    seen: usize,
}

impl Terminal {
    /// Runs a line of the shell, and keeps what it shows in a file of `folder`.
    pub fn open(
        container: &Container,
        user: &str,
        line: &str,
        folder: &std::path::Path,
        name: &str,
    ) -> Terminal {
        let screen = folder.join(name);
        let file = File::create(&screen).expect("a file");
        let errors = file.try_clone().expect("a file");
        let mut command = container.command(&as_user(user, line));
        command.stdin(Stdio::piped()).stdout(file).stderr(errors);
        let mut process = Process(command.spawn().expect("nsenter"));
        let keyboard = process.0.stdin.take().expect("its stdin");
        Terminal { process, keyboard, screen, seen: 0 }
    }

    pub fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {}", self.shown()));
    }

    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.screen).unwrap_or_default()).into_owned()
    }

    /// Whether this is shown, and was not before.
    pub fn shows(&mut self, text: &str) -> bool {
        let shown = self.shown();
        let found = shown.get(self.seen..).and_then(|new| new.find(text));
        self.seen += found.map_or(0, |at| at + text.len());
        found.is_some()
    }

    /// Waits until that is so.
    pub fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.shows(text) {
            let ended = self.process.0.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?} before {text:?}: {}", self.shown());
            assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {text:?}\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A line as a user who is logged in runs it, in the home directory.
pub fn as_user(user: &str, line: &str) -> String {
    let quoted = line.replace('\'', "'\\''");
    format!(
        "exec runuser -u {user} -- env HOME=/home/{user} XDG_RUNTIME_DIR=/run/user/$(id -u {user}) \
         sh -c 'cd ~ && {quoted}'"
    )
}
