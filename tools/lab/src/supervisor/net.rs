//! What joins the VMMs' own network cards: a socket between two guests, a hub for more, or a bridge.

use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::device::{Backend, Device};
use crate::plan::Plan;
use crate::spec::GuestSpec;
use crate::supervisor::host;
use crate::supervisor::spawn::ip;
use crate::test_host::tag;

/// The frames a slow guest may have waiting in the hub; more are dropped, as by a switch.
const HUB_QUEUE: usize = 1024;
const LONGEST_FRAME: usize = 128 * 1024;

/// Whether two guests' cards are joined with nothing between.
pub fn is_direct(plan: &Plan) -> bool {
    plan.spec.guests == 2
}

pub fn direct_socket(plan: &Plan, net: usize) -> PathBuf {
    plan.dir.join(format!("net{net}.sock"))
}

pub fn hub_socket(plan: &Plan, net: usize, guest: &GuestSpec) -> PathBuf {
    plan.guest_dir(&guest.name).join(format!("net{net}.sock"))
}

/// Interface names hold 15 characters, so labs are distinguished by a digest.
pub fn tap_name(lab: &str, guest: u32, net: usize) -> String {
    format!("vl{}g{guest}n{net}", tag(lab))
}

fn bridge_name(lab: &str, net: usize) -> String {
    format!("vl{}n{net}", tag(lab))
}

/// The networks of the VMMs' own cards.
fn networks(plan: &Plan) -> Vec<(usize, Backend)> {
    let backend = |(net, cards): (usize, Vec<Device>)| Some((net, cards.first()?.joined_by()?));
    plan.spec.networks().into_iter().enumerate().filter_map(backend).collect()
}

/// Makes what must be there before the guests start.
pub fn prepare(plan: &Plan) -> Result<()> {
    remove(&plan.spec.name);
    for (net, backend) in networks(plan) {
        match backend {
            // The test host has it then.
            Backend::Tap if plan.spec.uplinks == 1 => {}
            Backend::Tap => {
                let bridge = bridge_name(&plan.spec.name, net);
                ip(&["link", "add", &bridge, "type", "bridge"]).context(
                    "devices ...:tap and uml-vector need a host bridge, and so root; without :tap, QEMU's cards need no root",
                )?;
                ip(&["link", "set", &bridge, "up"])?;
                make_taps(plan, net, &bridge)?;
            }
            Backend::Stream if is_direct(plan) => {}
            Backend::Stream => hub(plan, net)?,
        }
    }
    Ok(())
}

/// Makes the TAP interfaces of User Mode Linux's own cards. They stay while no guest has them open, since it
/// opens one when its card is set up and closes it when the card is set down.
fn make_taps(plan: &Plan, net: usize, bridge: &str) -> Result<()> {
    for guest in plan.spec.guests() {
        if guest.devices.iter().filter(|device| device.is_nic()).nth(net) == Some(&Device::UmlVector) {
            let tap = tap_name(&plan.spec.name, guest.number, net);
            ip(&["tuntap", "add", "dev", &tap, "mode", "tap", "vnet_hdr"]).context(
                "device uml-vector needs a TAP interface, and so root and /dev/net/tun (modprobe tun)",
            )?;
            ip(&["link", "set", &tap, "master", bridge, "up"])?;
        }
    }
    Ok(())
}

/// Puts a guest's TAP interfaces, which its QEMU has just made, on their bridges.
pub fn join_taps(plan: &Plan, guest: &GuestSpec) -> Result<()> {
    if !guest.machine.is_qemu() {
        return Ok(());
    }
    let cards = guest.devices.iter().filter(|device| device.is_nic()).count();
    for (net, backend) in networks(plan) {
        if backend == Backend::Tap && net < cards {
            let tap = tap_name(&plan.spec.name, guest.number, net);
            let path = PathBuf::from("/sys/class/net").join(&tap);
            for _ in 0..100 {
                if path.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            if plan.spec.uplinks == 1 {
                host::join(&plan.spec.name, net as u32, &tap)?;
                continue;
            }
            ip(&["link", "set", &tap, "master", &bridge_name(&plan.spec.name, net), "up"])?;
        }
    }
    Ok(())
}

/// Removes the lab's bridges and TAP interfaces, also those of a supervisor that was killed. What a QEMU has
/// made ends with it.
pub fn remove(lab: &str) {
    let prefixes = ["n", "g"].map(|kind| format!("vl{}{kind}", tag(lab)));
    for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            let _ = ip(&["link", "delete", &name]);
        }
    }
}

/// Where frames for one guest go.
type Port = SyncSender<Arc<[u8]>>;

/// A learning hub over QEMU's stream sockets: four bytes of length, then the frame.
struct Hub {
    ports: Mutex<Vec<Option<Port>>>,
    places: Mutex<HashMap<[u8; 6], usize>>,
}

fn hub(plan: &Plan, net: usize) -> Result<()> {
    let guests = plan.spec.guests();
    let hub = Arc::new(Hub { ports: Mutex::new(vec![None; guests.len()]), places: Mutex::default() });
    for (index, guest) in guests.iter().enumerate() {
        let path = hub_socket(plan, net, guest);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let hub = hub.clone();
        std::thread::spawn(move || {
            // One connection at a time: a guest that starts again connects again.
            for stream in listener.incoming().flatten() {
                hub.serve(index, stream);
            }
        });
    }
    Ok(())
}

impl Hub {
    fn serve(&self, index: usize, stream: UnixStream) {
        let Ok(writer) = stream.try_clone() else { return };
        let (sender, frames) = mpsc::sync_channel(HUB_QUEUE);
        self.set_port(index, Some(sender));
        std::thread::spawn(move || write_frames(writer, &frames));
        let mut reader = BufReader::with_capacity(256 * 1024, stream);
        while let Ok(frame) = read_frame(&mut reader) {
            self.forward(index, &frame);
        }
        self.set_port(index, None);
    }

    fn set_port(&self, index: usize, sender: Option<Port>) {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)[index] = sender;
    }

    fn forward(&self, from: usize, frame: &Arc<[u8]>) {
        let address = |at: usize| -> Option<[u8; 6]> { frame.get(at..at + 6)?.try_into().ok() };
        let (Some(target), Some(source)) = (address(0), address(6)) else { return };
        let place = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            if places.len() < 4096 {
                places.insert(source, from);
            }
            places.get(&target).copied()
        };
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, port) in ports.iter().enumerate() {
            if index != from
                && place.is_none_or(|p| p == index)
                && let Some(port) = port
            {
                let _ = port.try_send(frame.clone()); // full: dropped
            }
        }
    }
}

fn read_frame(from: &mut impl Read) -> std::io::Result<Arc<[u8]>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_FRAME {
        return Err(std::io::Error::other("a frame beyond any size"));
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(frame.into())
}

fn write_frames(mut to: UnixStream, frames: &Receiver<Arc<[u8]>>) {
    for frame in frames {
        let mut bytes = Vec::with_capacity(4 + frame.len());
        bytes.extend((frame.len() as u32).to_be_bytes());
        bytes.extend(&frame[..]);
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_fit() {
        assert!(tap_name("a-rather-long-name", 26, 9).len() <= 15);
        assert!(bridge_name("a-rather-long-name", 9).len() <= 15);
    }

    #[test]
    fn the_hub_learns_and_floods() {
        let hub = Hub { ports: Mutex::new(vec![None; 3]), places: Mutex::default() };
        let mut queues = Vec::new();
        for index in 0..3 {
            let (sender, queue) = mpsc::sync_channel(4);
            hub.set_port(index, Some(sender));
            queues.push(queue);
        }
        let frame = |to: u8, from: u8| -> Arc<[u8]> { [[to; 6], [from; 6]].concat().into() };
        hub.forward(0, &frame(0xff, 1));
        assert!(queues[0].try_recv().is_err());
        assert!(queues[1].try_recv().is_ok() && queues[2].try_recv().is_ok());
        hub.forward(2, &frame(1, 3));
        assert!(queues[0].try_recv().is_ok() && queues[1].try_recv().is_err());
    }
}
