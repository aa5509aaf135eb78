//! Captures: which points there are, how many captures there may be, what they recorded and lost, and what
//! ends with the client's connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use vmlane_api::{CapturePoint, CaptureRequest, Captured, CounterList, ErrorCode, Failure};
use vmlane_capture::{Filter, MAX_POINTS, MAX_RECORD, Program, Ring, Streams, Tap};
use vmlane_device::virtio::vsock::VsockWorkers;
use vmlane_port::wrap::{FrameTap, StreamTap};
use vmlane_stream::Workers;
use vmlane_switch::Switch;
use vmlane_vsock::Router;

use crate::control::Lasting;

/// Captures at once, and bytes that each may have waiting for its client.
const MAX_CAPTURES: usize = 8;
const MAX_BUFFER: u64 = 64 << 20;

/// Makes captures.
#[derive(Default)]
pub struct Captures {
    running: Arc<AtomicUsize>,
    totals: Arc<Mutex<Totals>>,
}

/// What captures did. Locked when one begins or ends, and when somebody asks.
#[derive(Default)]
struct Totals {
    /// Under way, each with the number of its points.
    live: Vec<(Arc<Ring>, usize)>,
    begun: u64,
    /// By captures that have ended.
    recorded: u64,
    lost: u64,
}

/// Records that a ring took at all points, and those that it had no room for.
fn counts(ring: &Ring, points: usize) -> (u64, u64) {
    let each = (0..).take(points).map(|point| ring.counts(point));
    each.fold((0, 0), |(recorded, lost), counts| (recorded + counts.recorded, lost + counts.lost))
}

/// A capture under way. Dropping it ends it: no worker uses anything of it afterwards.
struct Capture {
    sources: Sources,
    ring: Arc<Ring>,
    taps: Vec<Arc<dyn FrameTap>>,
    streams: Vec<Arc<dyn StreamTap>>,
    totals: Arc<Mutex<Totals>>,
    _place: Place,
}

/// One of the captures that there may be.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(running: &Arc<AtomicUsize>) -> Result<Place, Failure> {
        let one_more = |count: usize| (count < MAX_CAPTURES).then_some(count + 1);
        match running.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Place(running.clone())),
            Err(_) => Err(Failure {
                code: ErrorCode::Busy,
                message: format!("{MAX_CAPTURES} captures run already; end one of them"),
            }),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn refuse(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}

impl Captures {
    /// Counters of all captures; `running` is how many there are now.
    pub fn stats(&self) -> CounterList {
        let totals = self.totals.lock();
        let live = totals.live.iter().map(|(ring, points)| counts(ring, *points));
        let (recorded, lost) =
            live.fold((totals.recorded, totals.lost), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let running = totals.live.len() as u64;
        [("running", running), ("begun", totals.begun), ("recorded", recorded), ("lost", lost)]
            .into_iter()
            .collect()
    }

    /// Begins a capture, which lasts as long as the client's connection.
    /// `vms`: names and CIDs of the VMs that have one.
    pub fn begin(
        &self,
        request: &CaptureRequest,
        sources: Sources,
        vms: &[(String, u32)],
    ) -> Result<(Captured, Lasting), Failure> {
        let points = choose(request, &sources.points(vms))?;
        let filter = filter(request)?;
        if request.buffer > MAX_BUFFER {
            return Err(refuse(format!(
                "buffer: {} bytes are too many; a capture may have {MAX_BUFFER} bytes waiting",
                request.buffer
            )));
        }
        let place = Place::take(&self.running)?;
        let host = |error: &dyn std::fmt::Display| Failure::internal(error.to_string());
        let ring = Ring::new(request.buffer as usize, points.len()).map_err(|error| host(&error))?;
        let file = ring.file().try_clone_to_owned().map_err(|error| host(&error))?;
        let ring = Arc::new(ring);
        let mut capture = Capture {
            sources,
            ring: ring.clone(),
            taps: Vec::new(),
            streams: Vec::new(),
            totals: self.totals.clone(),
            _place: place,
        };
        let mut totals = self.totals.lock();
        totals.live.push((ring.clone(), points.len()));
        totals.begun += 1;
        drop(totals);
        let snap = (request.snap as usize).min(MAX_RECORD);
        for (point, (name, cid)) in (0..).zip(&points) {
            let (ring, filter) = (ring.clone(), filter.clone());
            match *cid {
                None => {
                    let tap: Arc<dyn FrameTap> = Arc::new(Tap::new(ring, point, snap, filter));
                    capture.sources.switch.add_tap(name, tap.clone());
                    capture.taps.push(tap);
                }
                Some(cid) => {
                    let tap: Arc<dyn StreamTap> = Arc::new(Streams::new(ring, point, cid, snap, filter));
                    capture.sources.add_stream_tap(&tap);
                    capture.streams.push(tap);
                }
            }
        }
        tracing::info!(points = names(&points), bytes = ring.bytes(), "a capture begins");
        let points = points.into_iter().map(|(name, cid)| {
            let kind = if cid.is_some() { "streams" } else { "frames" };
            CapturePoint { name, kind: kind.into() }
        });
        Ok((Captured { points: points.collect() }, Lasting { file, holds: Box::new(capture) }))
    }
}

impl Capture {
    /// Ends it. The client finds exact counts in the ring.
    fn end(&mut self) {
        for tap in self.taps.drain(..) {
            self.sources.switch.remove_tap(&tap);
        }
        for tap in self.streams.drain(..) {
            self.sources.remove_stream_tap(&tap);
        }
        self.ring.end();
        let mut totals = self.totals.lock();
        if let Some(at) = totals.live.iter().position(|(ring, _)| Arc::ptr_eq(ring, &self.ring)) {
            let (ring, points) = totals.live.swap_remove(at);
            let (recorded, lost) = counts(&ring, points);
            totals.recorded += recorded;
            totals.lost += lost;
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
        tracing::info!("a capture ended");
    }
}

/// Where there is something to capture.
pub struct Sources {
    /// Frames.
    pub switch: Arc<Switch>,
    /// Streams with a VMCI guest or a host program at one end at least.
    pub workers: Arc<Workers>,
    /// Connections between two virtio-vsock guests.
    pub vsock_workers: Arc<VsockWorkers>,
    /// Datagrams.
    pub router: Arc<Router>,
}

/// A point: its name, and the CID whose streams and datagrams it is, if it is no port of the switch.
type Point = (String, Option<u32>);

impl Sources {
    /// All points that there are.
    fn points(&self, vms: &[(String, u32)]) -> Vec<Point> {
        let ports = self.switch.ports().into_iter().map(|port| (port.spec.name, None));
        let streams = vms.iter().map(|(vm, cid)| (format!("vsock:{vm}"), Some(*cid)));
        ports.chain(streams).collect()
    }

    /// A byte, a packet or a datagram passes one of these only.
    fn add_stream_tap(&self, tap: &Arc<dyn StreamTap>) {
        self.workers.add_tap(tap.clone());
        self.vsock_workers.add_tap(tap);
        self.router.add_tap(tap.clone());
    }

    fn remove_stream_tap(&self, tap: &Arc<dyn StreamTap>) {
        self.workers.remove_tap(tap);
        self.vsock_workers.remove_tap(tap);
        self.router.remove_tap(tap);
    }
}

fn names(points: &[Point]) -> String {
    points.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The points that are asked for, each once.
fn choose(request: &CaptureRequest, known: &[Point]) -> Result<Vec<Point>, Failure> {
    let mut chosen: Vec<&Point> = Vec::new();
    for name in &request.points {
        let Some(point) = known.iter().find(|point| point.0 == *name) else {
            let there_are = if known.is_empty() { "none".into() } else { names(known) };
            return Err(refuse(format!("there is no point {name:?} to capture; there are: {there_are}")));
        };
        chosen.push(point);
    }
    for vm in &request.vms {
        let before = chosen.len();
        chosen.extend(known.iter().filter(|(name, _)| vm_of(name) == Some(vm)));
        if chosen.len() == before {
            return Err(refuse(format!(
                "vm: there is no VM {vm:?} with anything to capture; points are: {}",
                names(known)
            )));
        }
    }
    if request.points.is_empty() && request.vms.is_empty() {
        chosen = known.iter().collect();
    }
    let mut once: Vec<Point> = Vec::new();
    for point in chosen {
        if !once.contains(point) {
            once.push(point.clone());
        }
    }
    match once.len() {
        0 => Err(refuse("there is nothing to capture: the configuration has no VM and no uplink".into())),
        1..=MAX_POINTS => Ok(once),
        count => Err(refuse(format!(
            "{count} points are too many for one capture; name {MAX_POINTS} of them at most"
        ))),
    }
}

/// The VM that a point belongs to.
fn vm_of(point: &str) -> Option<&str> {
    point.strip_prefix("vsock:").or_else(|| point.split_once('/').map(|(vm, _)| vm))
}

fn filter(request: &CaptureRequest) -> Result<Filter, Failure> {
    let program = request.program.as_deref().map(str::parse::<Program>).transpose();
    let program = program.map_err(|error| refuse(format!("packet filter: {error}")))?;
    let mac = request.mac.as_deref().map(str::parse).transpose();
    let mac = mac.map_err(|_| {
        let given = request.mac.as_deref().unwrap_or_default();
        refuse(format!("mac: {given:?} is no address; give one as 52:54:00:00:00:03"))
    })?;
    Ok(Filter { vlan: request.vlan, mac, cid: request.cid, port: request.port, program })
}
