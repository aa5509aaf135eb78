use proptest::prelude::*;

use super::*;

/// What `tcpdump -y EN10MB -ddd 'tcp port 80 or arp'` prints.
const TCP_80_OR_ARP: &str = "\
21
40 0 0 12
21 0 6 34525
48 0 0 20
21 0 16 6
40 0 0 54
21 13 0 80
40 0 0 56
21 11 12 80
21 0 9 2048
48 0 0 23
21 0 9 6
40 0 0 20
69 7 0 8191
177 0 0 14
72 0 0 14
21 3 0 80
72 0 0 16
21 1 2 80
21 0 1 2054
6 0 0 262144
6 0 0 0
";

fn ipv4_tcp(from: u16, to: u16, options: usize) -> Vec<u8> {
    let mut frame = vec![0; 14];
    frame[12] = 8;
    frame.push(0x45 + (options / 4) as u8);
    frame.resize(14 + 9, 0);
    frame.push(6);
    frame.resize(14 + 20 + options, 0);
    frame.extend(from.to_be_bytes());
    frame.extend(to.to_be_bytes());
    frame.resize(frame.len() + 16, 0);
    frame
}

#[test]
fn a_filter_of_tcpdump_takes_what_it_should() {
    let program: Program = TCP_80_OR_ARP.parse().unwrap();
    let run = |frame: &[u8]| program.run(&frame);
    assert_eq!(run(&ipv4_tcp(80, 1000, 0)), 262_144);
    assert_eq!(run(&ipv4_tcp(1000, 80, 12)), 262_144, "behind options");
    assert_eq!(run(&ipv4_tcp(1000, 81, 0)), 0);
    let mut fragment = ipv4_tcp(80, 80, 0);
    fragment[21] = 1;
    assert_eq!(run(&fragment), 0, "a later fragment has no ports");
    let mut arp = vec![0; 42];
    (arp[12], arp[13]) = (8, 6);
    assert_eq!(run(&arp), 262_144);
    assert_eq!(run(&ipv4_tcp(80, 80, 0)[..30]), 0, "cut before its ports");
    assert_eq!(run(&[]), 0);
}

fn check(steps: &[(u16, u8, u8, u32)]) -> Result<Program, BpfError> {
    let instruction = |&(code, jump_true, jump_false, k): &(u16, u8, u8, u32)| Instruction {
        code,
        jump_true,
        jump_false,
        k,
    };
    Program::check(&steps.iter().map(instruction).collect::<Vec<_>>())
}

/// What a program leaves in A, where `steps` end with A there.
fn computed(steps: &[(u16, u8, u8, u32)], packet: &[u8]) -> u32 {
    let mut steps = steps.to_vec();
    steps.push((0x16, 0, 0, 0));
    check(&steps).unwrap().run(&packet)
}

#[test]
fn every_operation_computes_what_its_name_means() {
    let packet = [0x12, 0x34, 0x56, 0x78, 0x9a];
    let ldx = |k| (0x01, 0, 0, k);
    let ld = |k| (0x00, 0, 0, k);
    for (steps, expected) in [
        (vec![(0x20, 0, 0, 0)], 0x1234_5678),
        (vec![(0x28, 0, 0, 1)], 0x3456),
        (vec![(0x30, 0, 0, 4)], 0x9a),
        (vec![ldx(1), (0x40, 0, 0, 0)], 0x3456_789a),
        (vec![ldx(1), (0x48, 0, 0, 1)], 0x5678),
        (vec![ldx(3), (0x50, 0, 0, 1)], 0x9a),
        (vec![(0x80, 0, 0, 0)], 5),
        (vec![(0x81, 0, 0, 0), (0x87, 0, 0, 0)], 5),
        (vec![(0xb1, 0, 0, 1), (0x87, 0, 0, 0)], 16),
        (vec![ld(7), (0x02, 0, 0, 15), ld(0), (0x60, 0, 0, 15)], 7),
        (vec![ldx(9), (0x03, 0, 0, 2), (0x61, 0, 0, 2), (0x87, 0, 0, 0)], 9),
        (vec![ld(6), (0x07, 0, 0, 0), (0x0c, 0, 0, 0)], 12),
        (vec![ld(6), (0x14, 0, 0, 7)], u32::MAX),
        (vec![ld(6), (0x24, 0, 0, 7)], 42),
        (vec![ld(43), (0x34, 0, 0, 7)], 6),
        (vec![ld(43), (0x94, 0, 0, 7)], 1),
        (vec![ld(6), (0x44, 0, 0, 1)], 7),
        (vec![ld(6), (0x54, 0, 0, 3)], 2),
        (vec![ld(6), (0xa4, 0, 0, 3)], 5),
        (vec![ld(6), (0x64, 0, 0, 4)], 96),
        (vec![ld(96), (0x74, 0, 0, 4)], 6),
        (vec![ld(1), (0x84, 0, 0, 0)], u32::MAX),
        (vec![ldx(40), ld(1), (0x6c, 0, 0, 0)], 0),
        (vec![ldx(0), ld(1), (0x3c, 0, 0, 0)], 0),
        (vec![(0x05, 0, 0, 1), ld(1), ld(0), (0x04, 0, 0, 3)], 3),
    ] {
        assert_eq!(computed(&steps, &packet), expected, "{steps:?}");
    }
    for (code, a, k, holds) in
        [(0x15, 3, 3, true), (0x25, 3, 3, false), (0x35, 3, 3, true), (0x45, 3, 4, false)]
    {
        let steps = [ld(a), (code, 0, 1, k), (0x06, 0, 0, 1), (0x06, 0, 0, 2)];
        assert_eq!(check(&steps).unwrap().run(&&packet[..]), if holds { 1 } else { 2 }, "{code:#x}");
    }
}

#[test]
fn a_load_behind_the_end_refuses_the_packet() {
    for step in
        [(0x20, 0, 0, 2), (0x28, 0, 0, 4), (0x30, 0, 0, 5), (0x20, 0, 0, 0x7fff_ffff), (0xb1, 0, 0, 5)]
    {
        assert_eq!(check(&[step, (0x06, 0, 0, 9)]).unwrap().run(&&[1u8, 2, 3, 4, 5][..]), 0, "{step:?}");
    }
    let far = [(0x01, 0, 0, u32::MAX), (0x50, 0, 0, u32::MAX), (0x06, 0, 0, 9)];
    assert_eq!(check(&far).unwrap().run(&&[0u8; 9][..]), 0);
}

#[test]
fn a_program_that_might_misbehave_is_refused() {
    let end = (0x06, 0, 0, 0);
    for (steps, error) in [
        (vec![], BpfError::Length(0)),
        (vec![(0x00, 0, 0, 0)], BpfError::NoReturn),
        (vec![(0x05, 0, 0, 1), end], BpfError::Jump { at: 0 }),
        (vec![(0x05, 0, 0, u32::MAX), end], BpfError::Jump { at: 0 }),
        (vec![(0x15, 0, 1, 0), end], BpfError::Jump { at: 0 }),
        (vec![(0x15, 255, 0, 0), end], BpfError::Jump { at: 0 }),
        (vec![(0x60, 0, 0, 16), end], BpfError::Scratch { at: 0, index: 16 }),
        (vec![end, (0x03, 0, 0, u32::MAX), end], BpfError::Scratch { at: 1, index: u32::MAX }),
        (vec![(0x34, 0, 0, 0), end], BpfError::Division { at: 0 }),
        (vec![(0x94, 0, 0, 0), end], BpfError::Division { at: 0 }),
        (vec![(0x64, 0, 0, 32), end], BpfError::Shift { at: 0, by: 32 }),
        (vec![(0x30, 0, 0, 0xffff_f02c), end], BpfError::Extension { at: 0, offset: 0xffff_f02c }),
        (vec![(0xff, 0, 0, 0), end], BpfError::Operation { at: 0, code: 0xff }),
        (vec![(0x10, 0, 0, 0), end], BpfError::Operation { at: 0, code: 0x10 }),
    ] {
        assert_eq!(check(&steps), Err(error), "{steps:?}");
    }
    assert_eq!(check(&vec![end; MAX_INSTRUCTIONS + 1]), Err(BpfError::Length(MAX_INSTRUCTIONS + 1)));
}

#[test]
fn what_tcpdump_did_not_print_is_refused_with_its_line() {
    for (text, part) in [
        ("", "line 1 is \"\""),
        ("tcp port 80", "line 1 is \"tcp port 80\""),
        ("2\n6 0 0 0\n6 0 0", "line 3 is \"6 0 0\""),
        ("1\n6 0 0 0 7", "line 2"),
        ("1\n6 0 0 -1", "line 2"),
        ("1\n6 0 300 1", "line 2"),
        ("2\n6 0 0 0\n", "announces 2 instructions and has 1"),
        ("0\n", "1 to 1024 instructions, and this one has 0"),
        ("99999999\n", "shorter expression"),
    ] {
        let error = text.parse::<Program>().unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever passes the check ends, and its loads stay inside the packet: an index outside would panic
    /// here.
    #[test]
    fn whatever_passes_the_check_ends(
        steps in proptest::collection::vec(
            (prop_oneof![0u16..0x100, prop::sample::select(vec![0x15u16, 0x20, 0x28, 0x30, 0x40, 0x50, 0x05, 0x06, 0x61, 0xb1])],
             0u8..8, 0u8..8, prop_oneof![0u32..40, any::<u32>()]), 1..40),
        packet in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut steps = steps;
        steps.push((0x06, 0, 0, 7));
        if let Ok(program) = check(&steps) {
            let once = program.run(&&packet[..]);
            prop_assert_eq!(once, program.run(&&packet[..]));
        }
    }
}
