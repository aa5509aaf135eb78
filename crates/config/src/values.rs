//! Values of the configuration that are more than one kind of value of TOML.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::shape::{Shape, Shaped};

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
