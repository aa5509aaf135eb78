//! How a worker waits: one policy, in four words.
//!
//! A worker that finds nothing to do *spins* (polls again at once, in the CPU's pause instruction), *yields*
//! (polls again, but offers its core first), *naps* (comes back by a timer, with nothing announced) or
//! *sleeps* (its ports are armed: until it is notified, or for some limit). An engine reports what its ports
//! can do by themselves ([`Ports`]), and [`Policy::decide`] decides. A port that is not polled in each round
//! has a [`Watch`]: an event fd, an armed ring, or a word of guest memory shows it.
//!
//! What is decided, from what, by which numbers:
//!
//! | what | for whom | from | numbers |
//! | --- | --- | --- | --- |
//! | how long after the last work to spin and yield (`gaps.rs`) | all | how long the last gaps were | of `spin_us`, its half, ... its 64th the longest window that would have taken a fiftieth of the time at most; if there is none, the one with which those gaps would have cost least, where a sleep costs as much as 100 us of spinning (300 us where streams are moved, since a notice of VMCI is four accesses over vfio-user); chosen after every 16 gaps, of which earlier ones count half as much each time |
//! | when to yield in place of spinning | all | rounds that found nothing | after 32 |
//! | whether others want the core (*contended*) (`window.rs`) | all | for how long the core was with others after yields, of those of 50 us and more (300 us where fewer than 4 KiB had moved at once) | a quarter of 8 ms; then for 50 ms: no yielding, and ports are polled for 5 us after their last work |
//! | long naps (`long_naps.rs`) | switch, virtio-vsock | contended; bytes since the last wait; which length moved more | 150 us after 4 KiB; 8 naps of a length are judged together, unless they took 50 ms; then 10 times as many of the better one |
//! | naps while rings fill (`ring_naps.rs`) | streams | contended; all streams that are polled moved 4 KiB one way and none the other; how full the last naps found their rings | 50 to 400 us, at first 100; by 7/8 where 7/8 full, by 5/4 where less than half |
//! | how long to sleep with all ports armed (`policy.rs`) | switch | time since the last work; whether all ports announce what they have | first 50 us, at least 1/16 of that time. If all announce: 8 times as long each time, at most 200 ms. Else doubled, at most 500 us for 1.5 s, then 5 ms |
//! | naps in place of these sleeps (`policy.rs`) | switch | contended; time since the last work | 50 us (or long ones), at least 1/16 of that time, at most 500 us; for 20 ms |
//! | how early a nap or a sleep ends at the latest (`policy.rs`) | switch | when a frame on a delayed wire is due | 50 us before, and spins from then on: timers are late by 20 us and more |
//! | which ports are polled (`watch.rs`) | switch, beyond 16 ports; virtio-vsock | time since the port's last work | 1 ms; then event fds are polled every 50 us (switch) or 20 us (virtio-vsock) while others are busy, and 64 words of guest memory with them |
//! | the same | streams | time since the stream's last byte | the window above; event fds every 20 us, or 4 us for each that was signalled; ends that announce nothing every 1 ms; all every 100 ms |
//!
//! How long a packet or a frame waits for its receiver's buffers is no wait of a worker: those are deadlines
//! of the engines'.
//!
//! | file | what |
//! | --- | --- |
//! | `policy.rs` | the decision |
//! | `gaps.rs`, `window.rs`, `long_naps.rs`, `ring_naps.rs` | what it has learned: windows, contention, lengths of naps |
//! | `watch.rs` | how a port that is not polled is found when it has something to do |
//! | `parking.rs`, `event_fd.rs` | sleeping and being notified, without losing a notification |

mod event_fd;
mod gaps;
mod long_naps;
mod parking;
mod policy;
mod ring_naps;
mod watch;
mod window;

pub use gaps::SLEEP;
pub use parking::Parking;
pub use policy::{Decision, Inputs, Policy, Polling, Ports};
pub use watch::{Interval, QUIET, Source, Watch};
