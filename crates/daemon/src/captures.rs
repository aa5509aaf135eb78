//! Captures: which points there are, how many captures there may be, and what ends with the client's connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmlane_api::{CapturePoint, CaptureRequest, Captured, ErrorCode, Failure, Reply};
use vmlane_capture::{Filter, MAX_POINTS, MAX_RECORD, Program, Ring, Tap};
use vmlane_port::wrap::FrameTap;
use vmlane_switch::Switch;

use crate::control::Answer;

/// Captures at once, and bytes that each may have waiting for its client.
const MAX_CAPTURES: usize = 8;
const MAX_BUFFER: u64 = 64 << 20;

/// Makes captures.
#[derive(Default)]
pub struct Captures {
    running: Arc<AtomicUsize>,
}

/// A capture under way. Dropping it ends it: no worker uses anything of it afterwards.
struct Capture {
    switch: Arc<Switch>,
    ring: Arc<Ring>,
    taps: Vec<Arc<dyn FrameTap>>,
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
    /// Begins a capture, which lasts as long as the client's connection.
    pub fn begin(&self, request: &CaptureRequest, switch: &Arc<Switch>) -> Result<Answer, Failure> {
        let points = choose(request, switch)?;
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
        let mut capture =
            Capture { switch: switch.clone(), ring: ring.clone(), taps: Vec::new(), _place: place };
        let snap = (request.snap as usize).min(MAX_RECORD);
        for (point, name) in (0..).zip(&points) {
            let tap: Arc<dyn FrameTap> = Arc::new(Tap::new(ring.clone(), point, snap, filter.clone()));
            switch.add_tap(name, tap.clone());
            capture.taps.push(tap);
        }
        tracing::info!(points = points.join(" "), bytes = ring.bytes(), "a capture begins");
        let points = points.into_iter().map(|name| CapturePoint { name, kind: "frames".into() });
        let line = Reply::ok(Captured { points: points.collect() }).to_line();
        Ok(Answer::Lasting { line, file, holds: Box::new(capture) })
    }
}

impl Capture {
    /// Ends it. The client finds exact counts in the ring.
    fn end(&mut self) {
        for tap in self.taps.drain(..) {
            self.switch.remove_tap(&tap);
        }
        self.ring.end();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
        tracing::info!("a capture ended");
    }
}

/// The points that are asked for, each once.
fn choose(request: &CaptureRequest, switch: &Switch) -> Result<Vec<String>, Failure> {
    let known: Vec<String> = switch.ports().into_iter().map(|port| port.spec.name).collect();
    let mut chosen: Vec<String> = Vec::new();
    for name in &request.points {
        if !known.contains(name) {
            let there_are = if known.is_empty() { "none".into() } else { known.join(", ") };
            return Err(refuse(format!("there is no point {name:?} to capture; there are: {there_are}")));
        }
        chosen.push(name.clone());
    }
    for vm in &request.vms {
        let before = chosen.len();
        chosen.extend(known.iter().filter(|name| vm_of(name) == Some(vm)).cloned());
        if chosen.len() == before {
            return Err(refuse(format!(
                "vm: there is no VM {vm:?} with anything to capture; points are: {}",
                known.join(", ")
            )));
        }
    }
    if request.points.is_empty() && request.vms.is_empty() {
        chosen = known;
    }
    let mut once: Vec<String> = Vec::new();
    chosen.into_iter().for_each(|name| {
        if !once.contains(&name) {
            once.push(name);
        }
    });
    match once.len() {
        0 => Err(refuse("there is nothing to capture: the configuration has no NIC and no uplink".into())),
        1..=MAX_POINTS => Ok(once),
        count => Err(refuse(format!(
            "{count} points are too many for one capture; name {MAX_POINTS} of them at most"
        ))),
    }
}

/// The VM that a point belongs to.
fn vm_of(point: &str) -> Option<&str> {
    point.split_once('/').map(|(vm, _)| vm)
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
