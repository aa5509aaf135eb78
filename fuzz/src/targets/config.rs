//! The configuration file: any text gives a configuration or an error, never a panic.

pub fn run(data: &[u8]) {
    let text = crate::text(data);
    let _ = vmlane_config::Config::parse(std::path::Path::new("fuzz.toml"), text);
}
