//! The machine at the other end of `vmlane doctor --to`: whatever it says of itself is refused, or judged and
//! shown without control characters.

use vmlane_doctor::Diagnosis;
use vmlane_doctor::evidence::Evidence;
use vmlane_doctor::facts::Facts;

pub fn run(data: &[u8]) {
    let text = crate::text(data);
    let Ok(answer) = serde_json::from_str(text) else { return };
    let Ok(facts) = Facts::from_answer(answer) else { return };
    for is_vsock in [false, true] {
        // Two machines that say the same are neighbours with the same addresses.
        let evidence =
            Evidence { near: facts.clone(), far: Some(facts.clone()), is_vsock, ..Evidence::default() };
        let diagnosis = Diagnosis::new(evidence, 0.0);
        let text = diagnosis.text();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
        serde_json::from_str::<serde_json::Value>(&diagnosis.json()).expect("a line of JSON");
    }
}
