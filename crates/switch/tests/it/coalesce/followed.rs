//! The short way into an open flow: who takes it gets no further than by all stages.

use super::*;

/// What arrives of these frames, whose TCP checksums are left out if `partial`, cut again; `merging` or not.
fn arrives(frames: &[Vec<u8>], v6: bool, partial: bool, merging: bool) -> (Vec<Vec<u8>>, u64) {
    let (mut bench, a, b) = pair();
    b.wire.set_capabilities(RxCapabilities { partial_sum: false, partial_frame: false, ..LRO });
    bench.switch.set_coalesce(merging);
    let start = if v6 { 54 } else { 34 };
    let offload = if partial { Offload::Checksum { start, field: start + 16 } } else { Offload::None };
    frames.iter().for_each(|frame| a.wire.send(frame, offload, None));
    bench.run();
    assert_eq!(a.wire.outstanding(), 0);
    let mut arrived = cut(&b.wire.received());
    // What is no segment of the flow any more may pass it.
    arrived.sort_unstable();
    (arrived, a.stats.tx_frames.get())
}

#[test]
fn a_segment_with_any_byte_of_its_headers_changed_arrives_as_without_merging() {
    for (v6, partial) in [(false, true), (true, true), (false, false), (true, false)] {
        let sent = train(v6, 5);
        let frames: Vec<_> =
            sent.iter().map(|packet| if partial { packet.partial(true) } else { packet.bytes() }).collect();
        // What is in a checksum's field that is to be filled in does not matter.
        let field = sent[0].header_len() - sent[0].tcp.header_len() + 16;
        let given = |at: &usize| !(partial && (field..field + 2).contains(at));
        for at in (0..sent[0].header_len()).filter(given) {
            for bits in [1, 8, 0x40] {
                let mut changed = frames.clone();
                changed[2][at] ^= bits;
                let merged = arrives(&changed, v6, partial, true);
                assert!(merged == arrives(&changed, v6, partial, false), "v6 {v6} {partial}: {at} ^ {bits}");
            }
        }
    }
}

#[test]
fn what_is_mirrored_is_copied_frame_by_frame() {
    let (mut bench, a, b) = pair();
    let c = bench.port(PortSpec { group: "elsewhere".into(), ..Bench::spec(3) });
    c.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&c);
    let name = |number| Bench::spec(number).name;
    let spec = MirrorSpec {
        name: "m".into(),
        to: name(3),
        direction: MirrorDirection::Both,
        vlan: None,
        snap: usize::MAX,
    };
    bench.switch.add_mirror(spec, vec![name(1)]).unwrap();
    bench.run();
    let sent = train(false, 6);
    send_all(&a, &sent);
    bench.run();
    assert!(cut(&b.wire.received()) == bytes(&sent));
    assert!(c.frames() == bytes(&sent));
    assert_eq!((a.stats.tx_frames.get(), a.wire.outstanding()), (6, 0));
}

#[test]
fn flows_in_turns_are_merged_beside_frames_of_others() {
    let (mut bench, a, b) = pair();
    let flows = [5000, 5001].map(|port| {
        let mut whole = packet(false, 6 * MSS);
        whole.tcp.source_port = port;
        whole.segments(MSS)
    });
    for (first, second) in flows[0].iter().zip(&flows[1]) {
        send(&a, first, false, None);
        a.send(&frame(mac(2), mac(1), 100, 7));
        send(&a, second, true, None);
    }
    bench.run();
    let received = b.wire.received();
    let mut counts = segments(&received);
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 1, 1, 1, 1, 6, 6]);
    let got = cut(&received);
    flows.iter().for_each(|flow| assert!(bytes(flow).iter().all(|frame| got.contains(frame))));
    assert_eq!((a.stats.tx_frames.get(), a.wire.outstanding()), (18, 0));
}
