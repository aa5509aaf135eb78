//! The checksum that is filled in while a frame is copied.

use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{ChecksumStatus, Layers, PartialChecksum, RxFrame};

/// Bytes of the head, of which none is set: the body alone is summed.
const HEAD: [u8; 42] = [0; 42];
const FIELD: usize = 40;

fn memory(len: usize) -> Spans {
    let fd = memfd("checksums", 4096).unwrap();
    let request = MapRequest { guest: 0, len: 4096, offset: 0, fd, writable: true };
    let mut spans = Spans::new(MemoryMap::default().map(request).unwrap(), true);
    spans.push(0, len).unwrap();
    spans
}

/// What is in the field after the copy.
fn filled_in(body: [u8; 2], never_zero: bool) -> [u8; 2] {
    let (from, to) = (memory(body.len()), memory(HEAD.len() + body.len()));
    from.write(0, &body);
    let partial = PartialChecksum { start: 34, field: FIELD as u16, never_zero, head_sum: None };
    let frame = RxFrame {
        head: &HEAD,
        body: &from,
        body_at: 0,
        body_len: body.len(),
        tag: None,
        layers: Layers::default(),
        checksum: ChecksumStatus::Unknown,
        aggregate: None,
        partial_checksum: Some(partial),
    };
    assert_eq!(frame.write(&to, false), HEAD.len() + body.len());
    let mut field = [0; 2];
    to.read(FIELD, &mut field);
    field
}

/// UDP's checksum 0 means that there is none.
#[test]
fn a_checksum_of_zero_is_sent_as_ones_where_zero_means_that_there_is_none() {
    assert_eq!(filled_in([0x12, 0x34], true), [0xed, 0xcb]);
    assert_eq!(filled_in([0xff, 0xff], true), [0xff, 0xff]);
    assert_eq!(filled_in([0xff, 0xff], false), [0, 0]);
}
