//! Faults on request, for tests: parts of the daemon that serve a VM go wrong, and lines to NICs lose frames.
//!
//! Each part is wrapped when it is made, and found again by its name. What wraps it belongs to the device, so
//! a name that leads to nothing any more is that of a device that is gone.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use vmlane_api::{Done, ErrorCode, Failure};
use vmlane_daemon::extras::{self, Faults, Provoked, Target};
use vmlane_device::pci::PciDevice;
use vmlane_faults::{FaultyDevice, FaultyFrames, FaultyStreams, Impairment, Trigger};
use vmlane_port::wrap::Fault;
use vmlane_port::{Frames, Streams};

/// The longest stall on request.
const LONGEST_STALL: Duration = Duration::from_secs(60);
/// The longest delay of frames on request.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// What can go wrong in one daemon.
#[derive(Default)]
pub struct OnRequest {
    streams: OnceLock<Arc<FaultyStreams>>,
    nics: Mutex<HashMap<String, Weak<FaultyFrames>>>,
    functions: Mutex<HashMap<String, Weak<Trigger>>>,
}

impl Faults for OnRequest {
    fn streams(&self, workers: Arc<dyn Streams>) -> Arc<dyn Streams> {
        self.streams.get_or_init(|| Arc::new(FaultyStreams::new(workers))).clone()
    }

    fn frames(&self, name: &str, switch: Arc<dyn Frames>) -> Arc<dyn Frames> {
        let frames = Arc::new(FaultyFrames::new(switch));
        keep(&self.nics, name, &frames);
        frames
    }

    fn function(&self, name: &str, function: Box<dyn PciDevice>) -> Box<dyn PciDevice> {
        let trigger = Arc::<Trigger>::default();
        keep(&self.functions, name, &trigger);
        Box::new(FaultyDevice::new(function, trigger))
    }

    fn provoke(&self, vm: &Target<'_>, at: &str, what: Provoked) -> Result<Done, Failure> {
        match what {
            Provoked::Fault(fault) => self.fail(vm, at, fault),
            Provoked::Impairment(impairment) => self.impair(vm, at, impairment),
        }
    }
}

/// Forgets those that are gone.
fn keep<T>(known: &Mutex<HashMap<String, Weak<T>>>, name: &str, one: &Arc<T>) {
    let mut known = known.lock();
    known.retain(|_, one| one.strong_count() > 0);
    known.insert(name.to_owned(), Arc::downgrade(one));
}

fn find<T>(known: &Mutex<HashMap<String, Weak<T>>>, vm: &str, device: &str) -> Option<Arc<T>> {
    known.lock().get(&format!("{vm}/{device}"))?.upgrade()
}

impl OnRequest {
    /// Makes a part of the daemon that serves a VM go wrong.
    fn fail(&self, vm: &Target<'_>, at: &str, fault: Fault) -> Result<Done, Failure> {
        if matches!(fault, Fault::Stall(time) if time > LONGEST_STALL) {
            return Err(bad(format!("a stall may last {} s", LONGEST_STALL.as_secs())));
        }
        let is_there = match (at, at.strip_suffix("-port")) {
            ("control", _) if fault == Fault::Trespass => {
                return Err(Failure::internal("the control plane reads files".into()));
            }
            ("control", _) => {
                fault.happen();
                true
            }
            ("virtio", _) => {
                vm.virtio.is_some_and(|(home, cid)| home.with(|worker| worker.inject(cid, fault)))
            }
            ("stream", _) => {
                let faulty = self.streams.get().zip(vm.streams.as_ref());
                faulty.inspect(|(streams, owner)| streams.arm(owner, fault)).is_some()
            }
            (_, Some(nic)) => find(&self.nics, vm.name, nic).is_some_and(|nic| nic.arm(fault)),
            (function, None) => {
                let trigger = find(&self.functions, vm.name, function);
                trigger.inspect(|trigger| trigger.arm(fault)).is_some()
            }
        };
        if is_there {
            return Ok(Done {});
        }
        let known =
            "vmci, virtio (once its driver is loaded), stream, nicN, nicN-port (active NICs only), control";
        Err(bad(format!("vm {:?} has no {at:?} now; known are {known}", vm.name)))
    }

    /// Loses, delays or reorders frames on their way to a VM's NIC.
    fn impair(&self, vm: &Target<'_>, at: &str, wanted: extras::Impairment) -> Result<Done, Failure> {
        let extras::Impairment { loss, reorder, delay, longest, seed } = wanted;
        if loss > 1000 || reorder > 1000 {
            return Err(bad("loss and reorder are numbers of frames in 1000".into()));
        }
        if delay > LONGEST_DELAY {
            return Err(bad(format!("frames may be delayed by {} s", LONGEST_DELAY.as_secs())));
        }
        let nic = at.strip_suffix("-port").and_then(|nic| find(&self.nics, vm.name, nic));
        let nic = nic.ok_or_else(|| bad(format!("vm {:?} has no {at:?}; known are nicN-port", vm.name)))?;
        let impaired = nic.impair(Impairment { loss, reorder, delay, longest, seed });
        impaired.map_err(|error| Failure::internal(format!("memory for held frames: {error}")))?;
        Ok(Done {})
    }
}

fn bad(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}
