//! libblkio's virtio driver (rings, and the transport below them) against our NIC behind vhost-user: both
//! formats, frames in both directions.

use std::sync::Arc;
use std::time::Instant;

use virtio_driver::virtqueue::{Virtqueue, VirtqueueLayout};
use virtio_driver::{Le64, QueueNotifier, VhostUser, VirtioFeatureFlags, VirtioTransport, iovec};
use vmlane_device::virtio::net::{NetConfig, NetDevice, VirtioNetStats};
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::Placement;
use vmlane_guestsim::Ram;
use vmlane_guestsim::nic::InlineFrames;
use vmlane_mem::Spans;
use vmlane_port::{ChecksumStatus, Layers, PortId, RxFrame};
use vmlane_testkit::wait_until;
use vmlane_transport::{Listener, RingLines, Server, SessionStats, VhostEnd};
use vmlane_wire::ethernet::Mac;

const SIZE: u16 = 16;
const HEADER: usize = 12;
const PAIR: usize = 2;
/// More laps than one, in both formats.
const FRAMES: usize = 5 * SIZE as usize + 3;

/// A frame's buffer beside its ring. The two lengths make both rings together whole pages, as our server
/// wants regions to be.
type Split = [u8; 1637];
type Packed = [u8; 1647];

struct Nic {
    frames: Arc<InlineFrames>,
    server: Server,
    directory: tempfile::TempDir,
}

fn nic() -> Nic {
    let directory = tempfile::tempdir().expect("a directory");
    let frames = Arc::new(InlineFrames::default());
    let config =
        NetConfig { mac: Mac([0x52, 0, 0, 0, 0, 1]), mtu: 1500, queues: 1, lro: false, packed: true };
    let lines = Arc::new(RingLines::new(3).expect("event fds"));
    let stats = Arc::new(VirtioNetStats::default());
    let device = NetDevice::new(config, frames.clone(), PortId(7), lines.clone(), stats);
    let listener = Listener::bind(directory.path().join("nic.sock")).expect("a socket");
    let stats = Arc::new(SessionStats::default());
    let server = VhostEnd::Listens(listener).serve("nic", Box::new(device), lines, stats).expect("a server");
    Nic { frames, server, directory }
}

fn frame(number: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..60 + number * 7).map(|at| (at + number) as u8).collect();
    frame[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0, 0, 0, 0, 1]);
    frame
}

impl Nic {
    /// The next frame that the driver sent. It is finished, and the driver notified.
    fn sent(&self) -> Option<Vec<u8>> {
        let sent = self.frames.with(|port| {
            let sent = port.fetch_one().map(|token| {
                let frame = port.frame(token);
                let mut bytes = vec![0; frame.len()];
                frame.spans.read(0, &mut bytes);
                port.finish(&[token]);
                bytes
            });
            port.flush(Instant::now());
            sent
        });
        sent.expect("the rings run")
    }

    fn deliver(&self, bytes: &[u8]) {
        let sender = Ram::new(1 << 16);
        let page = sender.alloc(1, Placement::Contiguous)[0];
        sender.write(page, bytes);
        let mut spans = Spans::new(sender.device_map(), false);
        spans.push(page, bytes.len()).expect("a page of this memory");
        let head = &bytes[..bytes.len().min(64)];
        let frame = RxFrame {
            head,
            body: &spans,
            body_at: head.len(),
            body_len: bytes.len() - head.len(),
            tag: None,
            layers: Layers::default(),
            checksum: ChecksumStatus::Unknown,
            aggregate: None,
            partial_checksum: None,
        };
        let delivered = self.frames.with(|port| {
            let delivered = port.deliver_one(&frame);
            port.flush(Instant::now());
            delivered
        });
        delivered.expect("the rings run").expect("a buffer that was posted");
    }
}

/// Adds a buffer of `len` bytes, filled with `bytes` as far as they go.
fn add<const N: usize>(queue: &mut Virtqueue<'_, [u8; N]>, bytes: &[u8], len: usize, from_device: bool) {
    let added = queue.add_request(|buffer, add| {
        buffer[..bytes.len()].copy_from_slice(bytes);
        // The header by itself, as drivers of older devices have it.
        let (header, frame) = buffer[..len].split_at_mut(HEADER);
        for piece in [header, frame] {
            add(iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() }, from_device)?;
        }
        Ok(())
    });
    added.expect("room in the ring");
}

fn exchange<const N: usize>(features: VirtioFeatureFlags) {
    let nic = nic();
    let path = nic.server.path().to_str().expect("a path in UTF-8").to_owned();
    let mut driver = VhostUser::<Le64, [u8; N]>::new(&path, features.bits()).expect("an agreement");
    assert_eq!(driver.get_features() & features.bits(), features.bits());
    let config = driver.get_config().expect("a configuration space");
    assert_eq!(config.to_native().to_le_bytes()[..6], [0x52, 0, 0, 0, 0, 1]);
    let layout = VirtqueueLayout::new::<[u8; N]>(PAIR, SIZE.into(), features).expect("a layout");
    let memory = driver.alloc_queue_mem(&layout).expect("memory that the server takes");
    #[expect(unsafe_code, reason = "the driver's own API needs its memory and itself at once")]
    // SAFETY: the memory belongs to `driver`, which outlives the queues and does not touch it.
    let memory = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len()) };
    let queue = |memory| Virtqueue::new(driver.iova_translator(), memory, SIZE, features).expect("a queue");
    let mut queues: Vec<Virtqueue<'_, [u8; N]>> = memory.chunks_mut(layout.end_offset).map(queue).collect();
    driver.setup_queues(&queues).expect("rings that can run");
    wait_until("the NIC is attached", || nic.frames.is_attached());
    let kicks: Vec<Box<dyn QueueNotifier>> = [0, 1].map(|at| driver.get_submission_notifier(at)).into();

    // Transmission, half a ring at a time.
    let (mut sent, mut completed) = (0, 0);
    while completed < FRAMES {
        while sent < FRAMES && sent - completed < usize::from(SIZE) / 4 {
            let bytes = [&[0; HEADER][..], &frame(sent)].concat();
            add(&mut queues[1], &bytes, bytes.len(), false);
            sent += 1;
        }
        if queues[1].avail_notif_needed() {
            kicks[1].notify().expect("a kick");
        }
        for number in completed..sent {
            assert_eq!(nic.sent().as_deref(), Some(&frame(number)[..]), "frame {number}");
        }
        assert_eq!(nic.sent(), None);
        completed += queues[1].completions().count();
        assert_eq!(completed, sent, "every chain comes back");
    }

    // Reception. Buffers of just the right size: this driver, made for disks, wants packed ones filled.
    for number in 0..FRAMES {
        add(&mut queues[0], &[], HEADER + frame(number).len(), true);
        if queues[0].avail_notif_needed() {
            kicks[0].notify().expect("a kick");
        }
        nic.deliver(&frame(number));
        let got: Vec<_> = queues[0].completions().map(|done| done.req).collect();
        let [got] = &got[..] else { panic!("{} completions of frame {number}", got.len()) };
        assert_eq!(got[HEADER..][..frame(number).len()], frame(number), "frame {number}");
    }
    let called = driver.get_completion_fd(0).read().expect("the driver was notified");
    assert!(called > 0);
    drop(queues);
    nic.server.stop();
    drop(nic.directory);
}

const MODERN: VirtioFeatureFlags = VirtioFeatureFlags::VERSION_1;

#[test]
fn split_rings_carry_its_frames() {
    exchange::<{ size_of::<Split>() }>(MODERN);
    exchange::<{ size_of::<Split>() }>(MODERN | VirtioFeatureFlags::RING_EVENT_IDX);
}

#[test]
fn packed_rings_carry_its_frames() {
    exchange::<{ size_of::<Packed>() }>(MODERN | VirtioFeatureFlags::RING_PACKED);
    let events = VirtioFeatureFlags::RING_PACKED | VirtioFeatureFlags::RING_EVENT_IDX;
    exchange::<{ size_of::<Packed>() }>(MODERN | events);
}
