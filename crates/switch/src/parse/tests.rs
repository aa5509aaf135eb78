use vmlane_port::{Layers, Network, Transport};

use super::{inner, layers, payload};

fn ipv4_tcp(tags: usize) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x81, 0, 0, 5].repeat(tags));
    frame.extend([8, 0, 0x46, 0, 0, 48, 0, 0, 0x40, 0, 64, 6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 0]);
    frame.extend([0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 0x60, 0x10, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 9]);
    frame
}

#[test]
fn tags_and_options_are_stepped_over() {
    for tags in 0..=2 {
        let frame = ipv4_tcp(tags);
        let at = 14 + 4 * tags as u16;
        let expected = Layers {
            network: Network::V4,
            transport: Transport::Tcp,
            fragment: false,
            network_at: at,
            transport_at: at + 24,
        };
        assert_eq!(layers(&frame), expected);
        assert_eq!(payload(&frame, &expected), Some(usize::from(at) + 48));
    }
    assert_eq!(layers(&ipv4_tcp(3)), Layers::default());
}

#[test]
fn every_cut_of_a_frame_is_survived() {
    let frame = ipv4_tcp(1);
    for len in 0..frame.len() {
        let found = layers(&frame[..len]);
        assert_eq!(found.network == Network::V4, len >= 42, "{len}");
        assert_eq!(found.transport == Transport::Tcp, len >= 66, "{len}");
    }
}

#[test]
fn fragments_have_no_transport() {
    for (high, low) in [(0x20, 0), (0, 1), (0x3f, 0xff)] {
        let mut frame = ipv4_tcp(0);
        (frame[20], frame[21]) = (high, low);
        let found = layers(&frame);
        assert!(found.fragment && found.transport == Transport::Other);
    }
}

#[test]
fn ipv6_extension_headers_are_walked_and_bounded() {
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 0, 64]);
    frame.extend([7; 32]);
    frame.extend([60, 0, 1, 4, 0, 0, 0, 0]); // hop by hop
    frame.extend([44, 0, 1, 4, 0, 0, 0, 0]); // destination options
    frame.extend([17, 0, 0, 0, 0, 0, 0, 9]); // atomic fragment
    frame.extend([0, 53, 0, 53, 0, 8, 0, 0]);
    let found = layers(&frame);
    assert_eq!((found.network, found.transport, found.transport_at), (Network::V6, Transport::Udp, 78));
    frame[73] = 1;
    assert!(layers(&frame).fragment);
    let endless = [&frame[..54], &[0u8; 400][..]].concat();
    assert_eq!(layers(&endless).transport, Transport::Other);
}

#[test]
fn tunnels_show_their_inside() {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    for (port, header) in
        [(4789u16, vec![8, 0, 0, 0, 0, 0, 1, 0]), (6081, vec![1, 0, 0x65, 0x58, 0, 0, 1, 0, 1, 2, 3, 4])]
    {
        let mut frame = frame.clone();
        frame.extend([0, 99]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 0, 0, 0]);
        frame.extend(&header);
        let base = frame.len() as u16;
        frame.extend(ipv4_tcp(0));
        let inside = inner(&frame, &layers(&frame)).unwrap();
        assert_eq!((inside.transport, inside.network_at), (Transport::Tcp, base + 14));
    }
}
