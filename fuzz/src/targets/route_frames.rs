//! What another host says: any bytes, cut anywhere. Whole frames are understood the same however they come.

use vmlane_route::frame::{Decoder, Piece, Violation};

fn understood(pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> (Vec<String>, Option<Violation>) {
    let (mut decoder, mut received) = (Decoder::default(), Vec::new());
    let mut data = 0;
    for piece in pieces {
        let outcome = decoder.feed(piece.as_ref(), |piece| {
            match piece {
                Piece::Frame(frame) => {
                    let mut again = Vec::new();
                    frame.write(&mut again);
                    received.push(format!("{frame:?} {}", again.len()));
                }
                Piece::DataBegins { stream, len } => received.push(format!("data {stream} {len}")),
                Piece::Data { bytes, .. } => data += bytes.len(),
            }
            Ok(())
        });
        if let Err(violation) = outcome {
            received.push(format!("{data}"));
            return (received, Some(violation));
        }
    }
    received.push(format!("{data}"));
    (received, None)
}

pub fn run(input: &[u8]) {
    let Some((&cut, bytes)) = input.split_first() else { return };
    let whole = understood(std::iter::once(bytes));
    assert_eq!(whole, understood(bytes.chunks(usize::from(cut).max(1))));
}
