//! Ports that wrap ports ask the one inside, whatever they are asked.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use vmlane_faults::{FaultyFrames, FaultyStreams, Impairment};
use vmlane_mem::{MapRequest, MemoryMap, Pages, Spans, memfd};
use vmlane_port::wrap::{CapturedFrames, CapturedStream, FrameTap, PacketPayload, StreamEvent, StreamTap};
use vmlane_port::{
    Budget, Bytes, ChecksumStatus, DropReason, End, Filter, FramePort, FramePortInfo, Frames, Layers, Needs,
    Notifications, Offload, PortFault, PortId, PortStats, Refused, Resumed, RingSlice, RxCapabilities,
    RxFrame, Shutdown, Side, Sign, StreamAddress, StreamEnd, StreamId, StreamInfo, StreamPort, Streams,
    Survival, Ticked, Token, TxFrame, WakeUp,
};
use vmlane_wire::virtio_vsock::Header;

/// What a port was asked, in this order.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<&'static str>>>);

impl Asked {
    fn note<T>(&self, method: &'static str, answer: T) -> T {
        self.0.lock().unwrap().push(method);
        answer
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A port of either kind that notes what it is asked.
struct Inside {
    asked: Asked,
    file: std::os::fd::OwnedFd,
    spans: Spans,
    pages: Pages,
    filter: Filter,
}

const SIZE: usize = 4096;

impl Inside {
    fn new(asked: &Asked) -> Box<Inside> {
        let len = SIZE as u64;
        let file = memfd("inside", len).expect("a memory file");
        let fd = file.try_clone().expect("a copy");
        let map = MemoryMap::default().map(MapRequest { guest: 0, len, offset: 0, fd, writable: true });
        let map = map.expect("a mapping");
        let pages = map.pages([0].into_iter(), 12).expect("a page");
        let (asked, filter) = (asked.clone(), Filter::open());
        Box::new(Inside { asked, file, spans: Spans::new(map, true), pages, filter })
    }

    fn slice(&self) -> RingSlice<'_> {
        RingSlice { pages: &self.pages, base: 0, size: SIZE, at: 0 }
    }
}

const CAPABILITIES: RxCapabilities = RxCapabilities {
    frame: 1514,
    aggregate: 1514,
    tso4: false,
    tso6: false,
    uso4: false,
    uso6: false,
    partial_sum: false,
    partial_frame: false,
    verdicts: false,
};

impl FramePort for Inside {
    fn fetch(&mut self, _: &mut [Token]) -> usize {
        self.asked.note("fetch", 0)
    }

    fn frame(&self, _: Token) -> TxFrame<'_> {
        let frame =
            TxFrame { head: &[], spans: &self.spans, offload: Offload::None, tag: None, verified: false };
        self.asked.note("frame", frame)
    }

    fn finish(&mut self, _: &[Token]) {
        self.asked.note("finish", ());
    }

    fn capabilities(&self) -> RxCapabilities {
        self.asked.note("capabilities", CAPABILITIES)
    }

    fn filter(&self) -> &Filter {
        self.asked.note("filter", &self.filter)
    }

    fn deliver(&mut self, _: &[RxFrame<'_>]) -> Result<(), Refused> {
        self.asked.note("deliver", Ok(()))
    }

    fn has_room(&mut self) -> bool {
        self.asked.note("has_room", true)
    }

    fn flush(&mut self, _: Instant) {
        self.asked.note("flush", ());
    }

    fn tick(&mut self, _: Instant) -> Ticked {
        self.asked.note("tick", Ticked { soon: true, changed: true, due: None })
    }

    fn refresh(&mut self) {
        self.asked.note("refresh", ());
    }

    fn fail(&mut self) {
        self.asked.note("fail", ());
    }

    fn info(&self) -> FramePortInfo {
        self.asked.note("info", FramePortInfo { lookahead: 1, ..FramePortInfo::default() })
    }
}

impl WakeUp for Inside {
    fn arm(&mut self) -> bool {
        self.asked.note("arm", true)
    }

    fn disarm(&mut self) {
        self.asked.note("disarm", ());
    }

    fn needs(&self) -> Needs {
        self.asked.note("needs", Needs::Nothing)
    }

    fn signs(&self, _: &mut Vec<Sign>) -> bool {
        self.asked.note("signs", true)
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.asked.note("doorbell_fd", Some(self.file.as_fd()))
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.asked.note("readable_fd", Some(self.file.as_fd()))
    }
}

impl StreamPort for Inside {
    fn readable(&mut self) -> Result<usize, PortFault> {
        self.asked.note("readable", Ok(0))
    }

    fn source(&self) -> Bytes<'_> {
        self.asked.note("source", Bytes::Ring(self.slice()))
    }

    fn consume(&mut self, _: usize) -> Result<(), PortFault> {
        self.asked.note("consume", Ok(()))
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        self.asked.note("arm_readable", Ok(true))
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        self.asked.note("writable", Ok(0))
    }

    fn keep_free(&self) -> usize {
        self.asked.note("keep_free", 1)
    }

    fn fill(&mut self, _: Bytes<'_>, _: usize) -> Result<(), PortFault> {
        self.asked.note("fill", Ok(()))
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        self.asked.note("arm_writable", Ok(true))
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        self.asked.note("renotify_reader", Ok(()))
    }

    fn end(&mut self, _: End) {
        self.asked.note("end", ());
    }

    fn info(&self) -> StreamInfo<'_> {
        let doorbell = Some(self.file.as_fd());
        self.asked.note("info", StreamInfo { announces: false, address: None, doorbell })
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        self.asked.note("notifications", ());
        Some(self)
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        self.asked.note("survival", ());
        Some(self)
    }
}

impl Notifications for Inside {
    fn flush_deferred(&mut self) -> bool {
        self.asked.note("flush_deferred", true)
    }

    fn notify_late(&mut self) -> Result<(), PortFault> {
        self.asked.note("notify_late", Ok(()))
    }

    fn notify_both(&mut self) {
        self.asked.note("notify_both", ());
    }

    fn answer_doorbell(&mut self) -> bool {
        self.asked.note("answer_doorbell", true)
    }

    fn requests(&self) -> Option<u64> {
        self.asked.note("requests", Some(7))
    }
}

impl Survival for Inside {
    fn keep(&mut self, _: &[u8]) {
        self.asked.note("keep", ());
    }
}

/// A tap that does nothing.
struct Idle;

impl FrameTap for Idle {
    fn sent(&self, _: &TxFrame<'_>, _: u64) {}

    fn settle(&self, _: Option<DropReason>) {}

    fn received(&self, _: &RxFrame<'_>, _: u64, _: Option<DropReason>) {}

    fn refused(&self, _: &TxFrame<'_>, _: u64, _: DropReason) {}

    fn placed(&self, _: Option<u16>) {}
}

impl StreamTap for Idle {
    fn sent(&self, _: StreamAddress, _: Bytes<'_>, _: usize, _: u64) {}

    fn event(&self, _: StreamAddress, _: StreamEvent, _: u64) {}

    fn packet(&self, _: &Header, _: Option<PacketPayload<'_>>, _: u64) {}

    fn datagram(&self, _: StreamAddress, _: &[u8], _: u64) {}
}

/// What is attached or joined is kept for the test.
#[derive(Default)]
struct Kept {
    frames: Mutex<Option<Box<dyn FramePort>>>,
    stream: Mutex<Option<Box<dyn StreamPort>>>,
}

impl Frames for Kept {
    fn attach(&self, _: PortId, end: Box<dyn FramePort>) {
        *self.frames.lock().unwrap() = Some(end);
    }

    fn detach(&self, _: PortId) {}

    fn refresh(&self, _: PortId) {}

    fn kick(&self, _: PortId) {}

    fn announce(&self, _: PortId) {}

    fn stats(&self, _: PortId) -> Arc<PortStats> {
        Arc::default()
    }
}

impl Streams for Kept {
    fn join(&self, [end, _]: [StreamEnd; 2]) -> StreamId {
        *self.stream.lock().unwrap() = Some(end.port);
        StreamId { worker: 0, number: 0 }
    }

    fn resume(&self, _: Resumed) -> StreamId {
        unreachable!("nothing is resumed")
    }

    fn kick(&self, _: StreamId) {}

    fn shutdown(&self, _: StreamId, _: Side, _: Shutdown) {}

    fn reset(&self, _: StreamId, _: Side) {}

    fn leave(&self, _: &[(StreamId, Side)]) {}
}

const ADDRESS: StreamAddress = StreamAddress { cid: 3, port: 1, peer_cid: 4, peer_port: 2 };

/// Asks everything that can be asked of a frame port, and returns which calls reached the one inside.
fn ask_frames(port: &mut dyn FramePort, asked: &Asked) -> String {
    let now = Instant::now();
    asked.take();
    port.fetch(&mut [Token(0)]);
    port.frame(Token(0));
    port.finish(&[Token(0)]);
    port.capabilities();
    port.filter();
    port.deliver(&[]).expect("delivered");
    assert!(port.has_room());
    port.flush(now);
    assert_eq!(port.tick(now), Ticked { soon: true, changed: true, due: None });
    port.refresh();
    port.fail();
    assert_eq!(port.info().lookahead, 1);
    assert!(port.arm());
    port.disarm();
    assert_eq!(port.needs(), Needs::Nothing);
    assert!(port.signs(&mut Vec::new()));
    assert!(port.doorbell_fd().is_some() && port.readable_fd().is_some());
    asked.take().join(" ")
}

const OF_FRAMES: &str = "fetch frame finish capabilities filter deliver has_room flush tick refresh fail info arm disarm needs signs doorbell_fd readable_fd";

#[test]
fn a_frame_port_that_is_captured_or_fails_on_request_answers_as_the_one_inside() {
    let asked = Asked::default();
    let mut captured = CapturedFrames::wrap(Inside::new(&asked), &[Arc::new(Idle)]);
    assert_eq!(ask_frames(&mut *captured, &asked), OF_FRAMES);
    let kept = Arc::new(Kept::default());
    FaultyFrames::new(kept.clone()).attach(PortId(1), Inside::new(&asked));
    let mut faulty = kept.frames.lock().unwrap().take().expect("attached");
    assert_eq!(ask_frames(&mut *faulty, &asked), OF_FRAMES);
}

#[test]
fn a_line_that_delays_nothing_delivers_at_once() {
    let (asked, kept) = (Asked::default(), Arc::new(Kept::default()));
    let frames = FaultyFrames::new(kept.clone());
    frames.impair(Impairment { longest: 9000, ..Impairment::default() }).expect("memory for held frames");
    frames.attach(PortId(1), Inside::new(&asked));
    let mut port = kept.frames.lock().unwrap().take().expect("attached");
    asked.take();
    let body = Inside::new(&Asked::default()).spans;
    let frame = RxFrame {
        head: &[0; 60],
        body: &body,
        body_at: 0,
        body_len: 0,
        tag: None,
        layers: Layers::default(),
        checksum: ChecksumStatus::Unknown,
        aggregate: None,
        partial_checksum: None,
    };
    port.deliver(&[frame]).expect("delivered");
    assert_eq!(asked.take(), ["deliver"]);
}

/// The same of a stream port.
fn ask_stream(port: &mut dyn StreamPort, asked: &Asked) -> String {
    let other = Inside::new(&Asked::default());
    asked.take();
    port.readable().unwrap();
    port.source();
    port.consume(0).unwrap();
    assert!(port.arm_readable().unwrap());
    port.writable().unwrap();
    assert_eq!(port.keep_free(), 1);
    port.fill(Bytes::Ring(other.slice()), 0).unwrap();
    assert!(port.arm_writable().unwrap());
    port.renotify_reader().unwrap();
    port.end(End::Finished);
    assert!(!port.info().announces && port.info().doorbell.is_some());
    let notifications = port.notifications().expect("it has some");
    notifications.notify_late().unwrap();
    notifications.notify_both();
    assert!(notifications.flush_deferred() && notifications.answer_doorbell());
    assert_eq!(notifications.requests(), Some(7));
    port.survival().expect("it survives").keep(&[]);
    asked.take().join(" ")
}

const OF_STREAMS: &str = "readable source consume arm_readable writable keep_free fill arm_writable renotify_reader \
    end info info notifications notify_late notify_both flush_deferred answer_doorbell requests survival keep";

#[test]
fn a_stream_port_that_is_captured_or_fails_on_request_answers_as_the_one_inside() {
    let asked = Asked::default();
    let mut captured = CapturedStream::wrap(Inside::new(&asked), &[Arc::new(Idle)], Some(ADDRESS));
    assert_eq!(captured.info().address, Some(ADDRESS), "its own");
    assert_eq!(ask_stream(&mut *captured, &asked), OF_STREAMS);
    let kept = Arc::new(Kept::default());
    let end = || StreamEnd {
        port: Inside::new(&asked),
        budget: Arc::new(Budget::new(0)),
        slow: false,
        worker: None,
    };
    FaultyStreams::new(kept.clone()).join([end(), end()]);
    let mut faulty = kept.stream.lock().unwrap().take().expect("joined");
    assert_eq!(ask_stream(&mut *faulty, &asked), OF_STREAMS);
}
