//! What Open vSwitch's database says: any bytes, cut anywhere. Whole messages are understood the same however
//! they come, as another reader of JSON understands them, and rows are taken from whatever they say.

use serde_json::Value;
use vmlane_ovn::input::{Broken, Framing, Rows};

fn understood(pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> (Vec<Value>, Option<Broken>) {
    let (mut framing, mut received) = (Framing::default(), Vec::new());
    for piece in pieces {
        framing.push(piece.as_ref());
        loop {
            match framing.message() {
                Ok(Some(message)) => received.push(message),
                Ok(None) => break,
                Err(why) => return (received, Some(why)),
            }
        }
    }
    (received, None)
}

pub fn run(input: &[u8]) {
    let Some((&cut, bytes)) = input.split_first() else { return };
    let whole = understood(std::iter::once(bytes));
    assert_eq!(whole, understood(bytes.chunks(usize::from(cut).max(1))));
    let mut others = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    for message in &whole.0 {
        assert_eq!(others.next().and_then(Result::ok).as_ref(), Some(message));
    }
    let mut rows = Rows::default();
    for message in &whole.0 {
        let _ = rows.update(message);
    }
}
