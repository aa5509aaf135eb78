//! The switch with ports, VLANs, policies, filters and addresses that change, and any frames: every
//! receiver gets exactly what a model without tables says, from one worker and from two.

use crate::Input;
use crate::switching::Bench;

pub fn run(data: &[u8]) {
    for workers in [1, 2] {
        let mut input = Input(data);
        let mut bench = Bench::new(&mut input, workers);
        for _ in 0..100 {
            if input.is_empty() {
                break;
            }
            bench.act(&mut input);
        }
    }
}
