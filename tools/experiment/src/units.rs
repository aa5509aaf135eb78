//! Numbers as people read them.

/// `512`, `4k`, `1M`: as bench takes it.
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// `512 B`, `4 KiB`, `1 MiB`, of a size as plans write it; any other text stays.
pub fn bytes(text: &str) -> String {
    match vmlane_bench::size::parse_size(text) {
        Ok(0) | Err(_) => text.to_owned(),
        Ok(count) if count.is_multiple_of(1 << 20) => format!("{} MiB", count >> 20),
        Ok(count) if count.is_multiple_of(1 << 10) => format!("{} KiB", count >> 10),
        Ok(count) => format!("{count} B"),
    }
}

/// `1.23`, `12.3`, `123`: three digits, more before the point if need be.
pub fn number(value: f64) -> String {
    let decimals = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// A result with its unit: `5.53 Gbit/s`, `984 Mbit/s`; of round trips and connections the number alone.
pub fn amount(value: f64, is_transactional: bool) -> String {
    match value {
        _ if is_transactional => number(value),
        value if value >= 1e9 => format!("{} Gbit/s", number(value / 1e9)),
        value => format!("{} Mbit/s", number(value / 1e6)),
    }
}

/// A row's value in the unit that people get to see.
pub fn unit(test: &str) -> (&'static str, f64) {
    match test {
        "rr" => ("round trips / s", 1.0),
        "crr" => ("connections / s", 1.0),
        _ => ("Mbit/s", 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers() {
        assert_eq!([0, 512, 4096, 1536, 2 << 20].map(size), ["0", "512", "4k", "1536", "2M"]);
        assert_eq!([1.234, 9.999, 12.34, 99.96, 4321.4].map(number), ["1.23", "10.0", "12.3", "100", "4321"]);
    }
}
