//! The switch with ports, VLANs, policies, filters and addresses that change, and any frames: every
//! receiver gets exactly what a model without tables says, from one worker and from two.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmlane_fuzz::Input;
use vmlane_fuzz::switching::Bench;

fuzz_target!(|data: &[u8]| {
    for workers in [1, 2] {
        let mut input = Input::of(data);
        let mut bench = Bench::new(&mut input, workers);
        for _ in 0..100 {
            if input.is_empty() {
                break;
            }
            bench.act(&mut input);
        }
    }
});
