//! The runs of a plan in their order, and the labs that they need.
//!
//! Combinations that need the same lab share it and take turns: a run of each, then the next round, every
//! second one backwards. Devices that differ in nothing else are neighbours in a round. What changes slowly
//! on the host (its clock, its other work) then meets all of them alike and cannot be mistaken for a
//! difference between them.

use crate::factors::{Factors, Peer};
use crate::plan::Plan;
use vmlane_lab::device::DeviceFor;
use vmlane_lab::{Device, LabSpec};

/// Cards that one guest gets at most when devices share a lab.
const SHARED_CARDS: usize = 6;

/// Factors whose values one lab serves, those in the device's name included. The others need a lab for each
/// value.
pub const IN_ONE_LAB: [&str; 11] = [
    "device",
    "profile",
    "queues",
    "test",
    "tool",
    "message",
    "buffer",
    "sessions",
    "nodelay",
    "ip",
    "moderation",
];

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Steps of one combination differ in device and run only.
    pub combination: usize,
    /// From 1.
    pub run: u32,
    pub factors: Factors,
}

/// Runs that one lab serves.
#[derive(Clone, Debug)]
pub struct Boot {
    /// What all of them have in common.
    pub like: Factors,
    pub devices: Vec<Device>,
    /// What takes turns.
    pub groups: Vec<Group>,
    /// The runs that the plan asks for in any case.
    pub steps: Vec<Step>,
}

/// Combinations that differ in their device only: neighbours in every round.
#[derive(Clone, Debug)]
pub struct Group {
    /// The number of its steps' combination.
    pub combination: usize,
    pub members: Vec<Factors>,
}

impl Group {
    /// A run of each, every second time backwards.
    pub fn round(&self, run: u32) -> Vec<Step> {
        let one = |factors: &Factors| Step { combination: self.combination, run, factors: factors.clone() };
        let mut steps: Vec<Step> = self.members.iter().map(one).collect();
        if run.is_multiple_of(2) {
            steps.reverse();
        }
        steps
    }
}

impl Plan {
    /// Every run, by the lab that it needs.
    pub fn boots(&self) -> Vec<Boot> {
        let mut boots: Vec<(Boot, Vec<Factors>)> = Vec::new();
        for factors in &self.combinations {
            let place = boots.iter_mut().find(|(boot, _)| boot.fits(factors));
            let (boot, list) = match place {
                Some(place) => place,
                None => {
                    let boot = Boot {
                        like: factors.clone(),
                        devices: Vec::new(),
                        groups: Vec::new(),
                        steps: Vec::new(),
                    };
                    boots.push((boot, Vec::new()));
                    boots.last_mut().expect("it was just put there")
                }
            };
            if !boot.devices.contains(&factors.device) {
                boot.devices.push(factors.device.clone());
            }
            list.push(factors.clone());
        }
        let mut combination = 0;
        for (boot, list) in &mut boots {
            boot.groups = groups(list, &mut combination);
            boot.steps = (1..=self.runs).flat_map(|run| round_of_all(&boot.groups, run)).collect();
        }
        boots.into_iter().map(|(boot, _)| boot).collect()
    }
}

/// A run of everything, every second time backwards.
pub fn round_of_all(groups: &[Group], run: u32) -> Vec<Step> {
    let mut rounds: Vec<Vec<Step>> = groups.iter().map(|group| group.round(run)).collect();
    if run.is_multiple_of(2) {
        rounds.reverse();
    }
    rounds.concat()
}

/// What takes turns in one lab.
fn groups(list: &[Factors], combination: &mut usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for factors in list {
        let same = |other: &Factors| Factors { device: factors.device.clone(), ..other.clone() } == *factors;
        match groups.iter_mut().find(|group| group.members.first().is_some_and(same)) {
            Some(group) => group.members.push(factors.clone()),
            None => groups.push(Group { combination: 0, members: vec![factors.clone()] }),
        }
    }
    for group in &mut groups {
        // No combination is always first after a pause.
        let length = group.members.len().max(1);
        group.members.rotate_left(*combination % length);
        group.combination = *combination;
        *combination += 1;
    }
    groups
}

impl Boot {
    /// Whether the combination can be measured in this lab.
    fn fits(&self, factors: &Factors) -> bool {
        // What differs between runs of one lab.
        let movable = |f: &Factors| Factors {
            test: self.like.test,
            tool: self.like.tool,
            message: self.like.message,
            buffer: self.like.buffer,
            sessions: self.like.sessions,
            nodelay: self.like.nodelay,
            ip: self.like.ip,
            moderation: self.like.moderation,
            device: self.like.device.clone(),
            ..f.clone()
        };
        if movable(factors) != self.like {
            return false;
        }
        if self.devices.contains(&factors.device) {
            return true;
        }
        if factors.device.is_vsock() && self.devices.iter().any(Device::is_vsock) {
            return false;
        }
        // A small guest stays small.
        let cards = self.devices.iter().filter(|device| device.is_nic()).count();
        let (switch, host) = (factors.device.is_on_switch(), factors.to == Peer::Host);
        let ours = self.devices.iter().any(Device::is_on_switch);
        // Of the test host's networks one is an uplink's, the others are bridges.
        let together = !host || !ours && self.like.uplinks == 1 || !switch;
        together
            && !(host && self.like.rate.is_some())
            && (cards + 1) * factors.nics as usize <= SHARED_CARDS
            && factors.guests <= 4
    }

    /// The lab, under a name.
    pub fn spec(&self, name: &str) -> LabSpec {
        let cards = |device: &Device| {
            vec![device.clone().into(); if device.is_nic() { self.like.nics as usize } else { 1 }]
        };
        // An uplink leads to the network of the first card.
        let mut devices: Vec<_> = self.devices.iter().flat_map(cards).collect();
        devices.sort_by_key(|given: &DeviceFor| !given.device.is_on_switch());
        LabSpec {
            guests: self.like.guests as usize,
            kernels: vec![self.like.kernel.clone()],
            cpus: self.like.cpus,
            mem_mib: self.like.memory,
            machines: vec![self.like.machine],
            qemu: self.like.qemu.clone(),
            devices,
            uplinks: if self.like.to == Peer::Host { self.like.uplinks } else { 0 },
            coalesce: self.like.coalesce,
            workers: self.like.workers,
            // Emulated guests share few processors.
            boot_seconds: 180 + 20 * u64::from(self.like.guests),
            ..LabSpec::new(name)
        }
    }

    /// What a guest sets before the first run; empty for nothing.
    pub fn guest_script(&self) -> String {
        let cards = self.devices.iter().filter(|device| device.is_nic()).count() * self.like.nics as usize;
        let mut script = String::new();
        // Without this the kernel gives less than a plan asks for, and iperf3 refuses to start.
        if let Some(most) = self.steps.iter().filter_map(|step| step.factors.buffer).max() {
            script += &format!("sysctl -q -w net.core.rmem_max={most} net.core.wmem_max={most}\n");
        }
        for card in 0..cards {
            if let Some(ring) = self.like.ring {
                script += &format!("ethtool -G eth{card} rx {ring} tx {ring}\n");
            }
            if let Some(mtu) = self.like.mtu {
                script += &format!("ip link set eth{card} mtu {mtu}\n");
            }
            for (name, state) in &self.like.offloads {
                script += &format!("ethtool -K eth{card} {name} {state}\n");
            }
        }
        if let Some(rate) = self.like.rate {
            // Together the guests send what the uplinks carry.
            let all = rate * u64::from(self.like.uplinks);
            let each = all / u64::from(self.like.guests * self.like.nics);
            (0..cards)
                .for_each(|card| script += &format!("{}\n", shaper(&format!("eth{card}"), each.min(rate))));
        }
        if script.is_empty() { script } else { format!("set -e\n{script}") }
    }
}

/// The command that lets an interface send at a rate, in bits per second.
pub fn shaper(interface: &str, rate: u64) -> String {
    // A bucket of 2 ms of the rate, and never less than a few of the longest frames.
    let burst = (rate / 8 / 500).max(256 << 10);
    format!("tc qdisc replace dev {interface} root tbf rate {rate}bit burst {burst} latency 20ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factors::NAMES;

    #[test]
    fn what_one_lab_serves_is_known() {
        let values = [
            ("kernel", "6.1"),
            ("accelerator", "kvm"),
            ("machine", "microvm"),
            ("qemu", "7.2"),
            ("guests", "4"),
            ("cpus", "2"),
            ("memory", "256"),
            ("boot", "3"),
            ("workers", "2"),
            ("nics", "2"),
            ("to", "host"),
            ("uplinks", "4"),
            ("mtu", "9000"),
            ("offloads", "tso=off"),
            ("host_offloads", "tso=off"),
            ("coalesce", "false"),
            ("ring", "256"),
            ("moderation", "4000"),
            ("rate", "1G"),
            ("test", "rr"),
            ("tool", "netperf"),
            ("message", "1"),
            ("buffer", "256k"),
            ("sessions", "5"),
            ("nodelay", "true"),
            ("ip", "6"),
        ];
        // Devices are recognized by the order of their runs.
        let named: Vec<&str> =
            values.iter().map(|(name, _)| *name).chain(["device", "profile", "queues"]).collect();
        assert!(NAMES.iter().all(|name| named.contains(name)), "every factor is tried");
        let mut like = Factors::default();
        like.set("device", "vmxnet3").unwrap();
        let boot = Boot { devices: vec![like.device.clone()], like, groups: Vec::new(), steps: Vec::new() };
        for (name, value) in values {
            let mut factors = boot.like.clone();
            factors.set(name, value).unwrap();
            assert_ne!(factors, boot.like, "{name}");
            assert_eq!(boot.fits(&factors), IN_ONE_LAB.contains(&name), "{name}");
        }
    }
}
