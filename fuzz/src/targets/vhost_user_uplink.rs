//! A vhost-user uplink whose peer is hostile: any words in its used rings, any bytes in the memory that both
//! share, between frames that pass as they should.

use crate::Input;
use crate::uplink::Bench;

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut bench = Bench::new(&mut input);
    while !input.is_empty() {
        if !bench.act(&mut input) {
            return;
        }
    }
    bench.end();
}
