//! Which runs a sweep makes, and in which order.
//!
//! The devices take turns within every combination of the other factors, and every second round goes
//! backwards: what changes slowly on the host (its clock, its other work) then meets all of them alike
//! and cannot be mistaken for a difference between them.

use vmlane_bench::Test;

use crate::Device;
use crate::device::{Backend, NicModel, Vmxnet3};

const KIB: u64 = 1 << 10;

/// The factors of a sweep.
#[derive(Clone, Debug)]
pub struct Sweep {
    pub name: &'static str,
    pub devices: Vec<Device>,
    pub messages: Vec<u64>,
    pub buffers: Vec<u64>,
    pub sessions: Vec<u32>,
    /// Whether round trips of one byte are measured, too.
    pub round_trips: bool,
    /// How often each combination is measured with each device.
    pub runs: u32,
    pub seconds: f64,
    pub warmup: f64,
}

/// What one run measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub device: Device,
    pub test: Test,
    pub message_bytes: u64,
    /// None leaves the kernel's default.
    pub send_buffer: Option<u64>,
    pub sessions: u32,
}

/// One run of the sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Steps of one combination follow each other and differ in device and run only.
    pub combination: usize,
    /// From 1.
    pub run: u32,
    pub case: Case,
}

impl Sweep {
    /// Some minutes: short runs, to see the shape.
    pub fn quick() -> Sweep {
        let nic = |model| Device::QemuNic { model, backend: Backend::Stream };
        Sweep {
            name: "quick",
            devices: vec![
                Device::Vmci,
                Device::Vmxnet3(Vmxnet3::default()),
                nic(NicModel::VirtioNet),
                nic(NicModel::Vmxnet3),
                nic(NicModel::E1000),
            ],
            messages: vec![512, 4 * KIB, 64 * KIB],
            buffers: vec![64 * KIB, 256 * KIB],
            sessions: vec![1, 5],
            round_trips: true,
            runs: 2,
            seconds: 1.5,
            warmup: 0.3,
        }
    }

    /// Numbers to quote: more sizes, three runs of ten seconds.
    pub fn full() -> Sweep {
        Sweep {
            name: "full",
            messages: (0..10).map(|shift| 512 << shift).collect(),
            runs: 3,
            seconds: 10.0,
            warmup: 1.0,
            ..Sweep::quick()
        }
    }

    /// Every run, in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (combination, (test, sessions, send_buffer, message_bytes)) in
            self.combinations().into_iter().enumerate()
        {
            // Nobody is always first after a pause.
            let mut devices = self.devices.clone();
            devices.rotate_left(combination % self.devices.len().max(1));
            for run in 1..=self.runs {
                for device in devices.iter().cloned() {
                    let case = Case { device, test, message_bytes, send_buffer, sessions };
                    steps.push(Step { combination, run, case });
                }
                devices.reverse();
            }
        }
        steps
    }

    fn combinations(&self) -> Vec<(Test, u32, Option<u64>, u64)> {
        let mut list = Vec::new();
        for &sessions in &self.sessions {
            for &buffer in &self.buffers {
                list.extend(self.messages.iter().map(|&size| (Test::Stream, sessions, Some(buffer), size)));
            }
        }
        if self.round_trips {
            list.push((Test::Rr, 1, None, 1));
        }
        list
    }
}

impl Case {
    /// The command of the client in guest a; `to` is the address of the server in guest b.
    pub fn client(&self, to: &str, sweep: &Sweep) -> Vec<String> {
        let mut argv: Vec<String> =
            ["vmlane", "bench", self.test.name(), "--json", "--to", to].map(str::to_owned).to_vec();
        let mut add = |option: &str, value: String| argv.extend([option.to_owned(), value]);
        add("-l", sweep.seconds.to_string());
        add("--warmup", sweep.warmup.to_string());
        add("-n", self.sessions.to_string());
        if self.test.is_transactional() {
            add("-r", format!("{0},{0}", self.message_bytes));
        } else {
            add("-m", self.message_bytes.to_string());
        }
        if let Some(bytes) = self.send_buffer {
            add("-s", bytes.to_string());
            add("-S", bytes.to_string());
        }
        argv
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn devices_take_turns_within_a_combination() {
        let sweep = Sweep::quick();
        let steps = sweep.steps();
        assert_eq!(steps.len(), (3 * 2 * 2 + 1) * 5 * 2);
        for (number, round) in steps.chunks(5).enumerate() {
            assert!(round.iter().all(|s| s.combination == number / 2 && s.run as usize == number % 2 + 1));
            let mut devices: Vec<String> = round.iter().map(|s| s.case.device.to_string()).collect();
            devices.sort();
            assert_eq!(devices, ["qemu-e1000", "qemu-virtio-net", "qemu-vmxnet3", "vmci", "vmxnet3"]);
        }
        let order = |steps: &[Step]| steps.iter().map(|s| s.case.device.clone()).collect::<Vec<_>>();
        for combination in steps.chunks(10) {
            let mut back = order(&combination[5..]);
            back.reverse();
            assert_eq!(order(&combination[..5]), back);
        }
    }

    #[test]
    fn every_device_is_first_equally_often() {
        let sweep =
            Sweep { round_trips: false, messages: vec![512, 1024, 4096, 16384, 65536], ..Sweep::quick() };
        let mut first: BTreeMap<String, u32> = BTreeMap::new();
        for combination in sweep.steps().chunks(10) {
            *first.entry(combination[0].case.device.to_string()).or_default() += 1;
        }
        assert_eq!(first.into_values().collect::<Vec<_>>(), [4, 4, 4, 4, 4]);
    }

    #[test]
    fn the_full_sweep_has_the_sizes_between() {
        let full = Sweep::full();
        assert_eq!((full.messages.len(), full.messages[9]), (10, 256 * KIB));
        assert!(Sweep::quick().messages.iter().all(|size| full.messages.contains(size)));
    }

    #[test]
    fn clients_get_both_buffers() {
        let sweep = Sweep::quick();
        let steps = sweep.steps();
        assert_eq!(
            steps[0].case.client("vsock:4", &sweep).join(" "),
            "vmlane bench stream --json --to vsock:4 -l 1.5 --warmup 0.3 -n 1 -m 512 -s 65536 -S 65536"
        );
        assert_eq!(
            steps.last().unwrap().case.client("tcp:x", &sweep).join(" "),
            "vmlane bench rr --json --to tcp:x -l 1.5 --warmup 0.3 -n 1 -r 1,1"
        );
    }
}
