//! Captures made by code are judged: each shows one fault, which must be found first, or none.

use etherparse::IpNumber;
use vmlane_doctor::Diagnosis;
use vmlane_doctor::capture::{Capture, read_bytes};
use vmlane_doctor::evidence::Evidence;
use vmlane_doctor::finding::{Finding, Severity};

use crate::scene::{A, B, Scene, Side};

/// Window scales of both ends, and their segments on an Ethernet without jumbo frames.
const SCALED: [Option<u8>; 2] = [Some(7), Some(7)];
const USUAL: [u16; 2] = [1460, 1460];

fn judged(captures: Vec<Capture>) -> Diagnosis {
    Diagnosis::new(Evidence { captures, ..Evidence::default() }, 0.0)
}

fn read(scene: &Scene) -> Diagnosis {
    judged(vec![read_bytes("test.pcap", &scene.pcap()).unwrap()])
}

/// The sentences of all findings.
fn findings(scene: &Scene) -> Vec<Finding> {
    let diagnosis = read(scene);
    // Another form of the same file gives the same.
    let other = judged(vec![read_bytes("test.pcapng", &scene.pcapng()).unwrap()]);
    let sentences = |diagnosis: &Diagnosis| -> Vec<String> {
        diagnosis.findings.iter().map(|finding| finding.what.clone()).collect()
    };
    assert_eq!(sentences(&diagnosis), sentences(&other));
    assert!(diagnosis.own.is_empty() && !diagnosis.text().is_empty() && diagnosis.json().starts_with('{'));
    assert_eq!(diagnosis.exit_code(), u8::from(!diagnosis.findings.is_empty()));
    diagnosis.findings
}

/// One finding, of this check.
#[track_caller]
fn only(scene: &Scene, check: &str, phrase: &str) -> Finding {
    let mut found = findings(scene);
    assert!(
        found.len() == 1 && found[0].check == check && found[0].what.contains(phrase),
        "{check}, {phrase}: {found:#?}\n{}",
        read(scene).text()
    );
    assert!(!found[0].evidence.is_empty(), "a finding has evidence");
    found.remove(0)
}

#[track_caller]
fn none(scene: &Scene) {
    let found = findings(scene);
    assert!(found.is_empty(), "{found:#?}\n{}", read(scene).text());
}

/// Opens a connection with a round trip of 200 us; data may begin at 1000.
fn opened() -> Scene {
    let mut scene = Scene::new();
    scene.open(0, 200, USUAL, SCALED);
    scene
}

#[test]
fn healthy_transfers_have_no_finding() {
    let mut fast = opened();
    fast.bulk(1000, 4000, 1460, 1.5, 200);
    none(&fast);

    let mut at_a_cards_pace = opened();
    at_a_cards_pace.bulk(1000, 4000, 1460, 12.3, 200);
    none(&at_a_cards_pace);

    let mut an_application_with_a_rate_of_its_own = opened();
    an_application_with_a_rate_of_its_own.bulk(1000, 1000, 1460, 2000.0, 200);
    none(&an_application_with_a_rate_of_its_own);

    let mut with_offload = opened();
    with_offload.bulk(1000, 1000, 43_800, 40.0, 300);
    none(&with_offload);
    assert!(read(&with_offload).text().contains("that is no fault"), "{}", read(&with_offload).text());

    let mut one_loss = opened();
    one_loss.bulk(1000, 2000, 1460, 1.5, 200);
    one_loss.data(9000, A, 0, 1460);
    none(&one_loss);

    // The acknowledgement of the last small message is late, and nothing waits for it.
    let mut messages = opened();
    for number in 0..100 {
        let at = 1000 + number * 100_000;
        messages.data(at, A, number * 100, 100);
        messages.ack(at + 40_000, B, (number + 1) * 100);
    }
    none(&messages);
}

/// The article's rung B4: packets above an MTU of 9000 are lost outside of the VM, and sent again in pieces
/// after a time-out.
#[test]
fn broken_segmentation_is_found() {
    let mut scene = Scene::new();
    scene.open(0, 300, [8960, 8960], SCALED);
    let mut at = 1000;
    for round in 0..10_u64 {
        let start = round * 16_000;
        scene.data(at, A, start, 16_000);
        at += 210_000;
        scene.data(at, A, start, 8960);
        scene.ack(at + 300, B, start + 8960);
        scene.data(at + 310, A, start + 8960, 7040);
        scene.ack(at + 610, B, start + 16_000);
        at += 700;
    }
    let finding = only(&scene, "super-frames-lost", "10.0.0.1");
    assert!(finding.evidence[0].starts_with("10 of 10 frames"), "{:?}", finding.evidence);
    assert!(finding.remedies[0].temporary[0].join(" ").contains("tso off"));

    // With offload off (B5), nothing is lost.
    let mut cured = Scene::new();
    cured.open(0, 300, [8960, 8960], SCALED);
    cured.bulk(1000, 4000, 8960, 5.9 / 2.0, 300);
    none(&cured);
}

/// Now and then a segment of a super-frame is lost: the card cuts well, and the network loses.
#[test]
fn a_loss_within_a_super_frame_is_no_broken_segmentation() {
    let mut scene = opened();
    let mut at = 1000;
    for round in 0..200_u64 {
        let start = round * 14_600;
        scene.data(at, A, start, 14_600);
        if round % 2 == 0 {
            for _ in 0..3 {
                scene.sack(at + 200, B, start, (start + 1460, start + 14_600));
            }
            scene.data(at + 210, A, start, 1460);
        }
        scene.ack(at + 420, B, start + 14_600);
        at += 500;
    }
    let finding = only(&scene, "retransmits", "are lost");
    assert!(finding.evidence[0].contains("100 were sent again after duplicate"), "{:?}", finding.evidence);
}

/// Comment 17 of the article: segments of 8948 bytes every 7 to 10 us, and nothing else that is wrong.
#[test]
fn a_slow_sender_is_no_fault_of_the_network() {
    let mut scene = Scene::new();
    scene.windows = [29_200, 21_900];
    scene.open(0, 165, [8960, 8960], SCALED);
    scene.data(200, A, 0, 24);
    scene.ack(360, B, 24);
    let (mut at, mut sequence) = (400, 24);
    for number in 0..3000_u64 {
        let bytes = if number % 97 == 96 { 4412 } else { 8948 };
        scene.data(at, A, sequence, bytes);
        sequence += u64::from(bytes);
        if number % 2 == 1 {
            scene.ack(at + 160, B, sequence);
        }
        at += 7 + number % 4;
    }
    let finding = only(&scene, "sender-limit", "No network cause");
    assert!(finding.evidence[0].contains("window of at least 2803200 bytes"), "{:?}", finding.evidence);
}

#[test]
fn losses_are_reported_by_cause() {
    let mut scene = opened();
    scene.bulk(1000, 2000, 1460, 1.5, 200);
    let mut fast = opened();
    let mut timeouts = opened();
    let mut at = 1000;
    for round in 0..60_u64 {
        let start = round * 14_600;
        for number in 0..10 {
            fast.data(at + number * 2, A, start + number * 1460, 1460);
            timeouts.data(at + number * 2, A, start + number * 1460, 1460);
        }
        // The third one is lost, those behind it are acknowledged selectively.
        for number in 4..8 {
            fast.sack(at + 220, B, start + 2 * 1460, (start + 3 * 1460, start + number * 1460));
        }
        fast.data(at + 230, A, start + 2 * 1460, 1460);
        fast.ack(at + 440, B, start + 14_600);
        // All but the first are lost.
        timeouts.ack(at + 210, B, start + 1460);
        for number in 1..10 {
            timeouts.data(at + 210_000 + number * 2, A, start + number * 1460, 1460);
        }
        timeouts.ack(at + 210_300, B, start + 14_600);
        at += 300_000;
    }
    let finding = only(&fast, "retransmits", "of the segments from 10.0.0.1 to 10.0.0.2 are lost");
    assert!(finding.evidence[0].contains("60 were sent again after duplicate"), "{:?}", finding.evidence);
    let finding = only(&timeouts, "retransmits", "it waits for time-outs");
    assert!(finding.evidence[0].contains("540 after a time-out"), "{:?}", finding.evidence);

    // Acknowledged already, or twice by the receiver's report.
    let mut spurious = opened();
    spurious.bulk(1000, 2000, 1460, 2.0, 200);
    for number in 0..40 {
        spurious.data(1900 + number * 50, A, number * 1460, 1460);
    }
    only(&spurious, "retransmits", "have arrived");
}

/// Each acknowledgement of a receiver that lacks 80 segments brings one of them, 5 ms later: slow, and no
/// time-out.
#[test]
fn a_recovery_in_which_nothing_stands_still_is_no_time_out() {
    let mut scene = Scene::new();
    scene.open(0, 10_000, USUAL, SCALED);
    let (mut at, mut sequence) = (20_000, 0);
    for _ in 0..40 {
        scene.data(at, A, sequence, 1460);
        sequence += 1460;
        scene.ack(at + 20, B, sequence);
        at += 1000;
    }
    let (mut hole, end) = (sequence, sequence + 80 * 1460);
    let beyond = (end, end + 1460);
    scene.data(at, A, end, 1460);
    scene.sack(at + 10, B, hole, beyond);
    at += 5000;
    while hole < end {
        scene.data(at, A, hole, 1460);
        hole += 1460;
        if hole < end {
            scene.sack(at + 10, B, hole, beyond)
        } else {
            scene.ack(at + 10, B, beyond.1)
        }
        at += 5000;
    }
    for number in 1..=2000 {
        scene.data(at, A, end + number * 1460, 1460);
        scene.ack(at + 20, B, end + (number + 1) * 1460);
        at += 1000;
    }
    let finding = only(&scene, "retransmits", "3.8 % of the segments from 10.0.0.1 to 10.0.0.2 are lost.");
    assert!(
        finding.evidence[0]
            .contains("80 were sent again after duplicate or selective acknowledgements, 0 after a time-out"),
        "{:?}",
        finding.evidence
    );
    assert_eq!(finding.severity, Severity::Slow);
}

/// On a way as long as a time-out, what is sent again after a round trip was asked for; seen from both ends.
#[test]
fn a_long_round_trip_is_no_time_out() {
    let long = || {
        let mut scene = Scene::new();
        scene.open(0, 300_000, USUAL, SCALED);
        scene
    };
    let (mut sender, mut receiver) = (long(), long());
    let mut at = 1_000_000;
    for round in 0..60_u64 {
        let start = round * 14_600;
        for number in 0..10 {
            sender.data(at + number, A, start + number * 1460, 1460);
            // The first one is lost.
            if number > 0 {
                let block = (start + 1460, start + (number + 1) * 1460);
                receiver.data(at + number, A, start + number * 1460, 1460);
                receiver.sack(at + number, B, start, block);
                sender.sack(at + 300_000 + number, B, start, block);
            }
        }
        sender.data(at + 300_020, A, start, 1460);
        receiver.data(at + 300_020, A, start, 1460);
        receiver.ack(at + 300_030, B, start + 14_600);
        sender.ack(at + 600_030, B, start + 14_600);
        at += 610_000;
    }
    for scene in [sender, receiver] {
        let finding = only(&scene, "retransmits", "are lost.");
        assert!(finding.evidence[0].contains("60 were sent again after duplicate"), "{:?}", finding.evidence);
    }
}

/// Without identifications (IPv6), a segment that comes later than half of a round trip was asked for.
#[test]
fn what_is_sent_again_on_a_short_way_was_not_overtaken() {
    let mut scene = Scene::new();
    scene.open(0, 40, USUAL, SCALED);
    let mut at = 1000;
    for round in 0..100_u64 {
        let start = round * 14_600;
        for number in (0..10).filter(|number| *number != 2) {
            scene.data_with(at + number, A, start + number * 1460, 1460, Some(0));
        }
        scene.sack(at + 10, B, start + 2920, (start + 4380, start + 14_600));
        scene.data_with(at + 62, A, start + 2920, 1460, Some(0));
        scene.ack(at + 70, B, start + 14_600);
        at += 200;
    }
    only(&scene, "retransmits", "are lost.");
}

/// The ports of a connection in which only the answering end has sent anything, again.
#[test]
fn a_connection_that_follows_another_one_of_the_same_ports_is_a_new_one() {
    let mut scene = Scene::new();
    for connection in 0..2 {
        let at = connection * 1_000_000;
        scene.open(at, 200, USUAL, SCALED);
        for number in 0..100 {
            scene.data(at + 1000 + number * 10, B, number * 1460, 1460);
            scene.ack(at + 1200 + number * 10, A, (number + 1) * 1460);
        }
    }
    none(&scene);
    assert_eq!(read_bytes("two", &scene.pcap()).unwrap().connections, 2);
}

/// One capture goes on for longer: what only it has was not lost.
#[test]
fn captures_of_different_length_do_not_show_where_frames_are_lost() {
    let (mut long, mut short) = (opened(), opened());
    for number in 0..2000_u64 {
        let (start, at) = (number * 1460, 1000 + number * 1000);
        for scene in [&mut long, &mut short].into_iter().take(if number < 1000 { 2 } else { 1 }) {
            scene.data(at, A, start, 1460);
            if number % 50 == 7 {
                scene.data(at + 600, A, start, 1460);
            }
            scene.ack(at + 800, B, start + 1460);
        }
    }
    let both: Vec<Capture> = [("a.pcap", &long), ("b.pcap", &short)]
        .into_iter()
        .map(|(name, scene)| read_bytes(name, &scene.pcap()).unwrap())
        .collect();
    let diagnosis = judged(both);
    let evidence = diagnosis.findings.iter().flat_map(|finding| &finding.evidence);
    let evidence: Vec<&String> = evidence.collect();
    assert!(evidence.iter().any(|line| line.contains("not of the same part")), "{evidence:?}");
    assert!(!evidence.iter().any(|line| line.contains("did not come to")), "{evidence:?}");
}

/// The frames that a capture of the receiver's end does not have are lost before it; both captures together
/// show where.
#[test]
fn two_captures_show_where_frames_are_lost() {
    let mut sender = opened();
    let mut receiver = opened();
    let mut at = 1000;
    for number in 0..2000_u64 {
        let start = number * 1460;
        sender.data(at, A, start, 1460);
        if number % 50 == 7 {
            sender.data(at + 600, A, start, 1460);
            receiver.data(at + 600, A, start, 1460);
            sender.ack(at + 800, B, start + 1460);
            receiver.ack(at + 800, B, start + 1460);
            at += 1000;
        } else {
            receiver.data(at, A, start, 1460);
        }
        at += 2;
    }
    let both: Vec<Capture> = [("a.pcap", &sender), ("b.pcap", &receiver)]
        .into_iter()
        .map(|(name, scene)| read_bytes(name, &scene.pcap()).unwrap())
        .collect();
    let diagnosis = judged(both);
    assert_eq!(diagnosis.findings.len(), 1, "{}", diagnosis.text());
    let finding = &diagnosis.findings[0];
    assert_eq!(finding.check, "retransmits");
    assert!(
        finding
            .evidence
            .iter()
            .any(|line| line.contains("58400 did not come to b.pcap: lost between the two")),
        "{:?}",
        finding.evidence
    );
}

#[test]
fn frames_that_come_late_or_twice_are_no_losses() {
    let mut late = opened();
    let mut twice = opened();
    for number in 0..2000_u64 {
        let at = 1000 + number * 2;
        let id = 100 + number as u16;
        // One in twenty comes after the next two.
        let delay = if number % 20 == 5 { 5 } else { 0 };
        late.data_with(at + delay, A, number * 1460, 1460, Some(id));
        twice.data_with(at, A, number * 1460, 1460, Some(id));
        if number % 20 == 5 {
            twice.data_with(at + 1, A, number * 1460, 1460, Some(id));
        }
        for scene in [&mut late, &mut twice] {
            scene.ack(at + 200, B, (number + 1) * 1460);
        }
    }
    only(&late, "frame-order", "overtaken by later ones");
    only(&twice, "frame-order", "doubled");

    let mut two_interfaces = opened();
    for number in 0..500_u64 {
        for again in 0..2 {
            let at = 1000 + number * 2;
            two_interfaces.data_with(at + again, A, number * 1460, 1460, Some(number as u16 + 1));
            two_interfaces.ack(at + again + 200, B, (number + 1) * 1460);
        }
    }
    none(&two_interfaces);
    assert!(read(&two_interfaces).text().contains("several interfaces at once"));
}

#[test]
fn windows_are_checked() {
    let mut zero = opened();
    zero.windows = [29_200, 100];
    let mut at = 1000;
    for round in 0..20_u64 {
        for number in 0..8 {
            zero.data(at + number, A, (round * 8 + number) * 1460, 1460);
        }
        zero.window(at + 300, B, (round + 1) * 8 * 1460, 0);
        zero.ack(at + 50_300, B, (round + 1) * 8 * 1460);
        at += 51_000;
    }
    let finding = only(&zero, "zero-window", "does not read as fast");
    assert!(finding.evidence[0].contains("20 windows of zero"), "{:?}", finding.evidence);

    only(&windows(SCALED, A), "small-window", "The receive window of 10.0.0.2 is too small");

    // A firewall that answers for a server has no room until that has answered.
    let mut proxied = Scene::new();
    proxied.windows = [29_200, 0];
    proxied.open(0, 200, USUAL, SCALED);
    proxied.windows = [29_200; 2];
    proxied.data(1000, A, 0, 100);
    proxied.ack(301_000, B, 100);
    none(&proxied);
}

/// 10.0.0.1 opens the connection: it decides whether there is a scale at all.
#[test]
fn the_end_whose_first_segment_lacks_the_window_scale_is_named() {
    let answers = "10.0.0.2 answers connections without window scaling";
    let opens = "10.0.0.1 opens connections without window scaling";
    for (scale, from, phrase) in [
        ([Some(7), None], A, answers),
        ([Some(7), None], B, answers),
        ([None, Some(7)], A, opens),
        ([None, None], A, opens),
        ([None, None], B, opens),
    ] {
        only(&windows(scale, from), "small-window", phrase);
    }
}

/// A window of 64 KiB, and 10 ms to go: 52 Mbit/s.
fn windows(scale: [Option<u8>; 2], from: Side) -> Scene {
    let mut scene = Scene::new();
    scene.windows = [if scale == SCALED { 512 } else { 65_535 }; 2];
    scene.open(0, 10_000, USUAL, scale);
    for round in 0..60_u64 {
        for number in 0..44 {
            let sequence = (round * 44 + number) * 1460;
            let at = 20_000 + round * 10_200 + number * 4;
            scene.data(at, from, sequence, 1460);
            // Each acknowledgement lets the next one go: the window is full all the time.
            scene.ack(at + 10_000, from.other(), sequence + 1460);
        }
    }
    scene
}

#[test]
fn segments_that_are_small_or_differ_are_found() {
    let of = |mss| {
        let mut scene = Scene::new();
        scene.open(0, 200, mss, SCALED);
        scene.bulk(1000, 2000, u32::from(mss[0].min(mss[1])), 1.5, 200);
        scene
    };
    only(&of([1460, 536]), "small-segments", "10.0.0.2 asks for segments of only 536 bytes");
    only(
        &of([8960, 1460]),
        "small-segments",
        "10.0.0.1 asks for segments of 8960 bytes and 10.0.0.2 for 1460",
    );
    only(&of([536, 536]), "small-segments", "10.0.0.1 and 10.0.0.2 both ask for segments of only 536");
    none(&of([1460, 1400]));
}

#[test]
fn small_writes_that_wait_are_found() {
    let mut scene = opened();
    let mut at = 1000;
    for message in 0..50_u64 {
        scene.data(at, A, message * 300, 100);
        scene.ack(at + 40_000, B, message * 300 + 100);
        scene.data(at + 40_020, A, message * 300 + 100, 200);
        scene.ack(at + 40_200, B, message * 300 + 300);
        at += 41_000;
    }
    let finding = only(&scene, "delayed-ack", "10.0.0.1:40000 writes in small pieces");
    assert!(
        finding.evidence[0].contains("50 times data was held back, for 40 ms each"),
        "{:?}",
        finding.evidence
    );
}

/// Pieces that wait for each other on a long way wait for the way.
#[test]
fn an_acknowledgement_that_takes_a_round_trip_is_not_delayed() {
    let mut scene = Scene::new();
    scene.open(0, 50_000, USUAL, SCALED);
    let mut at = 100_000;
    for message in 0..50_u64 {
        scene.data(at, A, message * 300, 100);
        scene.ack(at + 50_000, B, message * 300 + 100);
        scene.data(at + 50_020, A, message * 300 + 100, 200);
        scene.ack(at + 100_020, B, message * 300 + 300);
        at += 101_000;
    }
    none(&scene);
}

#[test]
fn addresses_that_two_machines_have_are_found() {
    let mut ip = opened();
    for turn in 0..6 {
        ip.arp(turn * 1000, [2, 0, 0, 0, 0, 7 + (turn % 2) as u8], Scene::ip(B));
    }
    only(&ip, "duplicate-address", "10.0.0.2: 02:00:00:00:00:0");

    let mut mac = Scene::new();
    mac.macs = [[2, 0, 0, 0, 0, 9]; 2];
    mac.open(0, 200, USUAL, SCALED);
    mac.bulk(1000, 100, 1460, 1.5, 200);
    only(&mac, "duplicate-address", "02:00:00:00:00:09");

    // Each VLAN has addresses of its own.
    let mut trunk = opened();
    for turn in 0..6 {
        trunk.arp(turn * 1000, [2, 0, 0, 0, 0, 7 + (turn % 2) as u8], Scene::ip(B));
        trunk.tag(10 + (turn % 2) as u16);
    }
    none(&trunk);

    let mut moved = opened();
    moved.arp(1, [2, 0, 0, 0, 0, 7], Scene::ip(B));
    moved.arp(2, [2, 0, 0, 0, 0, 8], Scene::ip(B));
    moved.arp(3, [2, 0, 0, 0, 0, 8], Scene::ip(B));
    none(&moved);
}

#[test]
fn black_holes_are_found() {
    let mut silent = opened();
    silent.data(1000, A, 0, 100);
    silent.ack(1200, B, 100);
    let mut at = 2000;
    silent.data(at, A, 100, 1460);
    for doubling in 0..5 {
        at += 210_000 << doubling;
        silent.data(at, A, 100, 1460);
    }
    let finding = only(&silent, "black-hole", "Segments of 1460 bytes from 10.0.0.1 never arrive");
    assert!(finding.evidence[0].contains("5 times"), "{:?}", finding.evidence);

    let mut ignored = opened();
    let mut at = 2000;
    ignored.data(at, A, 0, 1460);
    for doubling in 0..3 {
        ignored.too_big(at + 300, 1400);
        at += 210_000 << doubling;
        ignored.data(at, A, 0, 1460);
    }
    only(&ignored, "black-hole", "was notified of an MTU of 1400");
    // A router's message belongs to the interface that the capture names for it.
    let cooked = judged(vec![read_bytes("any.pcap", &ignored.cooked()).unwrap()]);
    assert!(cooked.findings[0].what.contains("was notified of an MTU of 1400"), "{}", cooked.text());

    // Perhaps the other end has gone away: smaller ones are reported to arrive only if some did.
    let mut first = opened();
    let mut at = 2000;
    first.data(at, A, 0, 1460);
    for doubling in 0..5 {
        at += 210_000 << doubling;
        first.data(at, A, 0, 1460);
    }
    only(&first, "black-hole", "its answer to the opening did come");

    // It listens: smaller ones, which arrive.
    let mut obeyed = opened();
    obeyed.data(1000, A, 0, 1460);
    obeyed.too_big(1100, 1400);
    obeyed.data(1150, A, 0, 1360);
    obeyed.data(1151, A, 1360, 1360);
    obeyed.ack(1400, B, 2720);
    none(&obeyed);

    // The other end has gone away: nothing arrives, of whatever size.
    let mut gone = opened();
    gone.bulk(1000, 200, 1460, 1.5, 200);
    let mut at = 5000;
    gone.data(at, A, 200 * 1460, 1460);
    for doubling in 0..5 {
        at += 210_000 << doubling;
        gone.data(at, A, 200 * 1460, 1460);
    }
    assert!(findings(&gone).iter().all(|finding| finding.check != "black-hole"));
}

#[test]
fn a_policer_is_found() {
    // 20 Mbit/s for three seconds: the end of each burst is dropped and sent again.
    only(&bursts(3), "policing", "A rate limit of about 19");
    only(&bursts(1), "retransmits", "are lost");
}

/// Bursts of 17 segments, of which some in a row are lost.
fn bursts(lost: u64) -> Scene {
    let mut scene = opened();
    let mut sequence = 0;
    for burst in 0..300_u64 {
        let at = 2000 + burst * 10_000;
        let begun = sequence;
        for number in 0..17 {
            scene.data(at + number * 10, A, sequence, 1460);
            sequence += 1460;
        }
        let first = begun + 12 * 1460;
        for _ in 0..3 {
            scene.sack(at + 400, B, first, (first + lost * 1460, sequence));
        }
        for number in 0..lost {
            scene.data(at + 420 + number, A, first + number * 1460, 1460);
        }
        scene.ack(at + 700, B, sequence);
    }
    scene
}

/// Headers of tunnels, of so many bytes of a frame.
type Header = Box<dyn Fn(usize) -> Vec<u8>>;

fn udp(port: u16, header: &'static [u8]) -> Header {
    Box::new(move |length| {
        let length = (8 + header.len() + length) as u16;
        [&[200, 1][..], &port.to_be_bytes(), &length.to_be_bytes(), &[0, 0], header].concat()
    })
}

fn plain(header: &'static [u8]) -> Header {
    Box::new(move |_| header.to_vec())
}

#[test]
fn tcp_in_tunnels_is_judged_as_outside() {
    let whats = |diagnosis: &Diagnosis| -> Vec<String> {
        diagnosis.findings.iter().map(|finding| finding.what.clone()).collect()
    };
    let scene = bursts(1);
    for (name, protocol, cut, header) in [
        ("VXLAN", IpNumber::UDP, 0, udp(4789, &[8, 0, 0, 0, 0, 0, 42, 0])),
        ("VXLAN of Linux", IpNumber::UDP, 0, udp(8472, &[8, 0, 0, 0, 0, 0, 42, 0])),
        ("Geneve", IpNumber::UDP, 0, udp(6081, &[1, 0, 0x65, 0x58, 0, 0, 42, 0, 0, 0, 0, 0])),
        ("Geneve, IP inside", IpNumber::UDP, 14, udp(6081, &[0, 0, 8, 0, 0, 0, 42, 0])),
        ("GRE", IpNumber::GRE, 14, plain(&[0, 0, 8, 0])),
        ("GRE with a key", IpNumber::GRE, 0, plain(&[0x30, 0, 0x65, 0x58, 0, 0, 42, 0, 0, 0, 0, 1])),
        ("IP in IP", IpNumber::IPV4, 14, plain(&[])),
    ] {
        let capture = read_bytes("tunnel.pcap", &scene.tunnelled(protocol, cut, &header).pcap()).unwrap();
        assert_eq!((capture.examined, capture.not_examined.len()), (capture.packets, 0), "{name}");
        assert!(capture.ways[0].point.contains("in tunnels"), "{name}: {}", capture.ways[0].point);
        assert_eq!(whats(&judged(vec![capture])), whats(&read(&scene)), "{name}");
    }
}

#[test]
fn what_was_not_examined_is_reported_and_is_no_result() {
    let scene = bursts(1);
    let of = |bytes: &[u8]| read_bytes("some.pcap", bytes).unwrap();
    let tunnel = |protocol, header: Header| of(&scene.tunnelled(IpNumber(protocol), 0, &header).pcap());
    for (kind, phrase, capture) in [
        ("vsock", "packets of vsock were not examined", of(&scene.pcap_of(271))),
        ("link layer 105", "of a link layer that is not known here (105)", of(&scene.pcap_of(105))),
        ("UDP", "packets of UDP were not examined: only TCP is", tunnel(17, udp(53, &[]))),
        ("ESP (encrypted)", "packets of ESP (encrypted) were not examined", tunnel(50, plain(&[0; 8]))),
        ("IP protocol 89", "packets of IP protocol 89", tunnel(89, plain(&[0; 8]))),
        ("GRE of an unknown form", "TCP inside was not seen", tunnel(47, plain(&[0x20, 1, 0x88, 0x0b]))),
        ("VXLAN of an unknown form", "TCP inside was not seen", tunnel(17, udp(4789, &[0; 8]))),
        ("Geneve of an unknown form", "TCP inside was not seen", tunnel(17, udp(6081, &[0x40; 8]))),
        (
            "tunnels in tunnels",
            "TCP inside was not seen",
            of(&(0..3)
                .fold(scene.tunnelled(IpNumber::IPV4, 14, &|_| Vec::new()), |inner, _| {
                    inner.tunnelled(IpNumber::IPV4, 14, &|_| Vec::new())
                })
                .pcap()),
        ),
    ] {
        assert_eq!(
            (capture.examined, capture.not_examined.get(kind)),
            (0, Some(&capture.packets)),
            "{kind}: {capture:?}"
        );
        let diagnosis = judged(vec![capture]);
        assert_eq!((diagnosis.exit_code(), diagnosis.findings.len()), (3, 0), "{kind}");
        let text = diagnosis.text().replace("\n  ", " ");
        assert!(text.contains(phrase) && !text.contains("Nothing found"), "{kind}: {text}");
    }
    // An empty one, too; and of two captures, one that could be examined does not speak for the other.
    let empty = || of(&Scene::new().pcap());
    assert_eq!(judged(vec![empty()]).exit_code(), 3);
    let mut healthy = opened();
    healthy.bulk(1000, 100, 1460, 1.5, 200);
    assert_eq!(judged(vec![of(&healthy.pcap())]).exit_code(), 0);
    assert_eq!(judged(vec![of(&healthy.pcap()), empty()]).exit_code(), 3);
}

#[test]
fn a_flood_of_connections_is_bounded() {
    let mut scene = Scene::new();
    for port in 0..20_000_u64 {
        scene.port = 1024 + port as u16;
        scene.data(port, A, 0, 100);
    }
    let capture = read_bytes("flood", &scene.pcap()).unwrap();
    assert_eq!((capture.packets, capture.connections), (20_000, 20_000));
    assert!(capture.forgotten > 10_000 && capture.ways.len() <= 512, "{}", capture.forgotten);
    assert!(capture.notes.iter().any(|note| note.contains("for want of room")), "{:?}", capture.notes);
}
