//! The configurations in pages of the guide that are there to be copied are taken by `vmlane check`.

use std::path::Path;
use std::process::Command;

#[test]
fn configurations_of_the_guide_are_good() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let folder = tempfile::tempdir().unwrap();
    for page in ["connect", "ipv6", "qos", "vhost-device-vsock"] {
        let text = std::fs::read_to_string(guide.join(page).with_extension("md")).unwrap();
        let blocks: Vec<&str> =
            text.split("\n```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
        assert!(!blocks.is_empty(), "{page} has no configuration");
        for (number, block) in blocks.iter().enumerate() {
            let file = folder.path().join(format!("{page}{number}.toml"));
            std::fs::write(&file, block).unwrap();
            let mut check = Command::new(env!("CARGO_BIN_EXE_vmlane"));
            check.arg("check").arg(&file).arg("--runtime-dir").arg(folder.path());
            let output = check.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{page}: {said}\n{block}");
        }
    }
}
