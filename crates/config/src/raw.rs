//! The TOML as it stands in the file: every key known, every value with its place.
//!
//! Numbers are read wide and names loosely, so that the checks can report what is wrong with a value in
//! words of their own. No key is required here, for the same reason.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::shape::{Shape, Shaped, tables};

tables! {
    pub struct RawConfig {
        pub daemon: RawDaemon,
        pub limits: RawLimits,
        pub vm: Vec<Spanned<RawVm>>,
        pub switch: Vec<Spanned<RawSwitch>>,
        pub port_group: Vec<Spanned<RawPortGroup>>,
        pub wire: Vec<Spanned<RawWire>>,
        pub uplink: Vec<Spanned<RawUplink>>,
        pub mirror: Vec<Spanned<RawMirror>>,
        pub team: Vec<Spanned<RawTeam>>,
        pub host: Vec<Spanned<RawHost>>,
        pub control: Vec<Spanned<RawControl>>,
        pub route: Option<Spanned<RawRoute>>,
        pub peer: Vec<Spanned<RawPeer>>,
        pub ovn: Option<Spanned<RawOvn>>,
    }

    pub struct RawOvn {
        pub database: Option<Spanned<String>>,
        pub bridge: Option<Spanned<String>>,
    }

    pub struct RawRoute {
        pub name: Option<Spanned<String>>,
        pub cids: Option<Vec<Spanned<toml::Value>>>,
        pub cid: Option<Spanned<i64>>,
        pub owner: Option<Spanned<toml::Value>>,
        pub listen: Option<Spanned<String>>,
        pub certificate: Option<Spanned<String>>,
        pub key: Option<Spanned<String>>,
        pub authority: Option<Spanned<String>>,
        pub crl: Option<Spanned<String>>,
        pub dead_s: Option<Spanned<i64>>,
    }

    pub struct RawPeer {
        pub name: Option<Spanned<String>>,
        pub address: Option<Spanned<String>>,
        pub cids: Option<Vec<Spanned<toml::Value>>>,
        pub groups: Option<Vec<Spanned<String>>>,
        pub trusted: bool,
        pub fingerprints: Option<Vec<Spanned<String>>>,
    }

    pub struct RawControl {
        pub uid: Option<Spanned<i64>>,
        pub gid: Option<Spanned<i64>>,
        pub may: Option<Spanned<String>>,
    }

    pub struct RawHost {
        pub uid: Option<Spanned<i64>>,
        pub gid: Option<Spanned<i64>>,
        pub groups: Option<Vec<Spanned<String>>>,
        pub connect: Option<bool>,
        pub listen: Option<bool>,
        pub privileged: bool,
    }

    pub struct RawSwitch {
        pub name: Option<Spanned<String>>,
        pub promiscuous: Option<bool>,
        pub mac_changes: Option<bool>,
        pub forged_transmits: Option<bool>,
    }

    pub struct RawPortGroup {
        pub name: Option<Spanned<String>>,
        pub switch: Option<Spanned<String>>,
        pub vlan: Option<Spanned<toml::Value>>,
        pub promiscuous: Option<bool>,
        pub mac_changes: Option<bool>,
        pub forged_transmits: Option<bool>,
        pub shape: Option<RawShape>,
        pub shares: Option<Spanned<i64>>,
        pub flood_limit: Option<Spanned<i64>>,
        pub multicast: Option<Spanned<String>>,
    }

    pub struct RawWire {
        pub name: Option<Spanned<String>>,
        pub ends: Vec<Spanned<String>>,
        pub impair: Option<Spanned<RawImpair>>,
        pub impair_back: Option<Spanned<RawImpair>>,
    }

    /// What happens to frames on a wire.
    pub struct RawImpair {
        pub delay_us: Option<Spanned<i64>>,
        pub jitter_us: Option<Spanned<i64>>,
        pub loss: Option<Spanned<Percent>>,
        pub loss_burst: Option<Spanned<i64>>,
        pub reorder: Option<Spanned<Percent>>,
        pub duplicate: Option<Spanned<Percent>>,
        pub corrupt: Option<Spanned<Percent>>,
        pub rate: Option<Spanned<Size>>,
    }

    /// Traffic shaping of a port.
    pub struct RawShape {
        pub r#in: Option<Spanned<RawRate>>,
        pub out: Option<Spanned<RawRate>>,
    }

    pub struct RawRate {
        pub average: Option<Spanned<Size>>,
        pub peak: Option<Spanned<Size>>,
        pub burst: Option<Spanned<Size>>,
    }

    pub struct RawUplink {
        pub name: Option<Spanned<String>>,
        pub tap: Option<Spanned<String>>,
        pub interface: Option<Spanned<String>>,
        pub vhost_user: Option<Spanned<String>>,
        pub role: Option<Spanned<String>>,
        pub owner: Option<Spanned<toml::Value>>,
        pub mtu: Option<Spanned<i64>>,
        pub group: Option<Spanned<String>>,
        pub switch: Option<Spanned<String>>,
        pub vlan: Option<Spanned<toml::Value>>,
        pub queues: Option<Spanned<i64>>,
        pub notify: Option<bool>,
    }

    pub struct RawMirror {
        pub name: Option<Spanned<String>>,
        pub from: Option<Spanned<Vec<String>>>,
        pub to: Option<Spanned<String>>,
        pub direction: Option<Spanned<String>>,
        pub vlan: Option<Spanned<i64>>,
        pub snap: Option<Spanned<Size>>,
    }

    pub struct RawTeam {
        pub name: Option<Spanned<String>>,
        pub uplinks: Vec<Spanned<String>>,
        pub standby: Vec<Spanned<String>>,
        pub policy: Option<Spanned<String>>,
        pub failback: Option<bool>,
        pub notify: Option<bool>,
    }

    pub struct RawNic {
        pub model: Option<Spanned<String>>,
        pub profile: Option<Spanned<String>>,
        pub switch: Option<Spanned<String>>,
        pub port_group: Option<Spanned<String>>,
        pub mac: Option<Spanned<String>>,
        pub mtu: Option<Spanned<i64>>,
        pub queues: Option<Spanned<i64>>,
        pub slot: Option<Spanned<i64>>,
        pub trapped: bool,
        pub endpoint: bool,
        pub lro: Option<bool>,
        pub packed: Option<bool>,
        pub role: Option<Spanned<String>>,
        pub promiscuous: Option<bool>,
        pub mac_changes: Option<bool>,
        pub forged_transmits: Option<bool>,
        pub shape: Option<RawShape>,
        pub shares: Option<Spanned<i64>>,
        pub ovn: Option<Spanned<String>>,
    }

    pub struct RawDaemon {
        pub workers: Option<Spanned<Count>>,
        pub cpus: Option<Spanned<String>>,
        pub balance: Option<bool>,
        pub mode: Option<Spanned<String>>,
        pub spin_us: Option<Spanned<i64>>,
        pub flood_limit: Option<Spanned<i64>>,
        pub coalesce: Option<bool>,
        pub huge_pages: Option<Spanned<Size>>,
        pub hold: Option<Spanned<i64>>,
        pub fault_limit: Option<Spanned<i64>>,
        pub fault_window_s: Option<Spanned<i64>>,
        pub fault_injection: Option<bool>,
        pub user: Option<Spanned<String>>,
        pub log: Option<String>,
        pub log_format: Option<Spanned<String>>,
    }

    pub struct RawLimits {
        pub queue_pairs: Option<Spanned<Size>>,
        pub queue_pair_bytes: Option<Spanned<Size>>,
        pub connections: Option<Spanned<Size>>,
        pub doorbells: Option<Spanned<Size>>,
        pub inbox_bytes: Option<Spanned<Size>>,
        pub overflow_bytes: Option<Spanned<Size>>,
        pub memory: Option<Spanned<Size>>,
    }

    pub struct RawVm {
        pub name: Option<Spanned<String>>,
        pub domain: Option<Spanned<String>>,
        pub owner: Option<Spanned<toml::Value>>,
        pub group: Option<Spanned<String>>,
        pub cid: Option<Spanned<i64>>,
        pub vsock: Option<Spanned<String>>,
        pub forward: Vec<Spanned<RawForward>>,
        pub parent_cid: Option<Spanned<i64>>,
        pub vsock_role: Option<Spanned<String>>,
        pub uds_path: Option<Spanned<String>>,
        pub uml_pci: Option<Spanned<bool>>,
        pub movable: Option<Spanned<bool>>,
        pub restricted: bool,
        pub trusted: bool,
        pub limits: RawLimits,
        pub nic: Vec<Spanned<RawNic>>,
    }

    pub struct RawForward {
        pub port: Option<i64>,
        pub to: Option<String>,
    }
}

impl RawVm {
    /// How messages call it, the one at `index`.
    pub fn label(&self, index: usize) -> String {
        match &self.name {
            Some(name) => format!("vm {:?}", name.get_ref()),
            None => format!("vm number {}", index + 1),
        }
    }
}

/// What a file may have, as JSON Schema.
pub fn schema() -> serde_json::Value {
    let mut schema = RawConfig::shape().schema();
    if let Some(keys) = schema.as_object_mut() {
        keys.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        keys.insert("title".into(), "Configuration of vmlane".into());
    }
    schema
}

/// A number; None: `"auto"`. Other texts do not fit its [`Shape`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub Option<i64>);

impl Shaped for Count {
    fn shape() -> Shape {
        Shape::Count
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        Ok(Count(value.as_integer()))
    }
}

/// A number, whole or not. Others do not fit its [`Shape`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percent(pub f64);

impl Shaped for Percent {
    fn shape() -> Shape {
        Shape::Percent
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Percent, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let whole = value.as_integer().map(|number| number as f64);
        Ok(Percent(value.as_float().or(whole).unwrap_or(f64::NAN)))
    }
}

/// A number, or a text such as `"64M"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// None if the text is not a size.
    pub value: Option<u64>,
    /// The same with letters that stand for powers of 1000: bits in a second.
    pub decimal: Option<u64>,
    /// As written, for messages.
    pub written: String,
}

impl Shaped for Size {
    fn shape() -> Shape {
        Shape::Size
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = Size;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number or a text such as \"64M\"")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Size, E> {
                let number = value.try_into().ok();
                Ok(Size { value: number, decimal: number, written: value.to_string() })
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Size, E> {
                Ok(Size { value: Some(value), decimal: Some(value), written: value.to_string() })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                let [value, decimal] = [1024, 1000].map(|base| scaled(text, base));
                Ok(Size { value, decimal, written: format!("{text:?}") })
            }
        }
        deserializer.deserialize_any(Written)
    }
}

/// Understands `64`, `64k`, `64M`, `64G`: powers of `base`.
fn scaled(text: &str, base: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let power = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(base.pow(power))
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn sizes_take_letters() {
        for (text, value) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("4k", Some(4096)),
            ("4K", Some(4096)),
            ("64M", Some(64 << 20)),
            ("2G", Some(2 << 30)),
            ("", None),
            ("M", None),
            ("-1", None),
            ("4 k", None),
            ("4kk", None),
            ("99999999999G", None),
        ] {
            assert_eq!(scaled(text, 1024), value, "{text:?}");
        }
        assert_eq!((scaled("10k", 1000), scaled("2G", 1000)), (Some(10_000), Some(2_000_000_000)));
    }
}
