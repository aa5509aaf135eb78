//! A vhost-user uplink whose peer is hostile: any words in its used rings, any bytes in the memory that both share, between frames
//! that pass as they should.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmlane_fuzz::Input;
use vmlane_fuzz::uplink::Bench;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::of(data);
    let mut bench = Bench::new(&mut input);
    while !input.is_empty() {
        if !bench.act(&mut input) {
            return;
        }
    }
    bench.end();
});
