//! The configuration file: any text gives a configuration or an error, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    vmlane_fuzz::compares::next();
    let _ = vmlane_daemon::config::Config::parse(std::path::Path::new("fuzz.toml"), text);
});
