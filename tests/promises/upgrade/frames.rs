//! Numbered frames from one virtio-net card to another, whose VMMs are this process; and what becomes of such
//! frames.

use std::path::{Path, PathBuf};

use vmlane_guestsim::virtio_nic::{Nic, SIZE};
use vmlane_tests::wait_until;

/// Frames that show that they go on.
pub const SOME: u64 = 2000;

/// What became of numbered frames.
#[derive(Default)]
pub struct Counted {
    pub came: u64,
    pub twice: u64,
    pub lost: u64,
    last: Option<u64>,
}

impl Counted {
    pub fn count(&mut self, number: u64) {
        self.came += 1;
        match self.last {
            Some(last) if number <= last => self.twice += 1,
            last => {
                self.lost += number - last.map_or(0, |last| last + 1);
                self.last = Some(number);
            }
        }
    }
}

pub struct Frames {
    from: (Nic, PathBuf),
    to: (Nic, PathBuf),
    next: u64,
    counted: Counted,
}

impl Frames {
    pub fn start(from: &Path, to: &Path) -> Frames {
        let nic = |socket: &Path| (Nic::new(false), socket.to_owned());
        let mut frames = Frames { from: nic(from), to: nic(to), next: 0, counted: Counted::default() };
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
        let enough = self.counted.came + SOME;
        wait_until("frames of virtio-net cards pass", || {
            // A ring is soon full, and soon empty.
            (0..1000).for_each(|_| self.turn());
            self.counted.came >= enough
        });
    }

    fn turn(&mut self) {
        while self.from.0.send(self.next) {
            self.next += 1;
        }
        self.from.0.settle();
        self.to.0.receive().into_iter().for_each(|number| self.counted.count(number));
    }

    /// Everything that was sent comes back. What had been copied and not completed when a daemon ended is
    /// sent again, or dropped: at most two rings of it each time.
    pub fn finish(mut self, daemons: u32) -> String {
        wait_until("all frames come back", || {
            self.from.0.settle();
            self.to.0.receive();
            self.from.0.sent.is_empty()
        });
        let Counted { came, twice, lost, .. } = self.counted;
        let most = u64::from(daemons) * 2 * u64::from(SIZE);
        assert!(twice <= most && lost <= most, "{twice} frames came twice, {lost} got lost");
        format!("of {came} frames {twice} came twice, {lost} were dropped")
    }
}
