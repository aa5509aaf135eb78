//! The configurations in pages of the guide that are there to be copied are taken by `vmlane check`.

use std::path::Path;

use crate::common::place;

#[test]
fn configurations_of_the_guide_are_good() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    for page in ["connect", "ipv6", "qos", "vhost-device-vsock"] {
        let text = std::fs::read_to_string(guide.join(page).with_extension("md")).unwrap();
        let blocks: Vec<&str> =
            text.split("\n```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
        assert!(!blocks.is_empty(), "{page} has no configuration");
        for block in blocks {
            let place = place(block);
            let ran = place.ask(&["check", place.config().to_str().unwrap()]);
            assert!(ran.succeeded(), "{page}: {}\n{block}", ran.printed());
        }
    }
}
