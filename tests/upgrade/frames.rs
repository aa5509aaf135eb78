//! Numbered frames from one virtio-net card to another, whose VMMs are this process.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::nic::{Nic, PATIENCE, SIZE};

/// Frames that show that they go on.
const SOME: u64 = 2000;

pub struct Frames {
    from: (Nic, PathBuf),
    to: (Nic, PathBuf),
    next: u64,
    last: Option<u64>,
    total: u64,
    twice: u64,
    lost: u64,
}

impl Frames {
    pub fn start(from: &Path, to: &Path) -> Frames {
        let nic = |socket: &Path| (Nic::new(false), socket.to_owned());
        let mut frames =
            Frames { from: nic(from), to: nic(to), next: 0, last: None, total: 0, twice: 0, lost: 0 };
        frames.attach();
        frames.pass();
        frames
    }

    /// To the daemon that is there now.
    pub fn attach(&mut self) {
        for (nic, socket) in [&mut self.to, &mut self.from] {
            nic.attach(socket);
        }
    }

    /// Waits until some have passed.
    pub fn pass(&mut self) {
        let (enough, deadline) = (self.total + SOME, Instant::now() + PATIENCE);
        while self.total < enough {
            self.turn();
            assert!(Instant::now() < deadline, "frames do not move: {} of {enough}", self.total);
        }
    }

    fn turn(&mut self) {
        while self.from.0.send(self.next) {
            self.next += 1;
        }
        self.from.0.settle();
        for number in self.to.0.receive() {
            self.total += 1;
            match self.last {
                Some(last) if number <= last => self.twice += 1,
                last => {
                    self.lost += number - last.map_or(0, |last| last + 1);
                    self.last = Some(number);
                }
            }
        }
    }

    /// Everything that was sent comes back. What had been copied and not completed when a daemon ended is sent again, or
    /// dropped: at most two rings of it each time.
    pub fn finish(mut self, daemons: u32) -> String {
        let deadline = Instant::now() + PATIENCE;
        while !self.from.0.sent.is_empty() {
            self.from.0.settle();
            self.to.0.receive();
            assert!(Instant::now() < deadline, "{} frames do not come back", self.from.0.sent.len());
        }
        let Frames { total, twice, lost, .. } = self;
        let most = u64::from(daemons) * 2 * u64::from(SIZE);
        assert!(twice <= most && lost <= most, "{twice} frames came twice, {lost} got lost");
        format!("of {total} frames {twice} came twice, {lost} were dropped")
    }
}
