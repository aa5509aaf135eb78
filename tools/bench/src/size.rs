//! Sizes as people type them: `65536`, `64k`, `1M`, always in powers of 1024.

use crate::error::Error;

/// Reads a byte count with an optional suffix k, M or G (either case).
pub fn parse_size(text: &str) -> Result<u64, Error> {
    let bad = || {
        Error::Usage(format!(
            "\"{text}\" is no size: write a whole number of bytes, with k, M or G if you like (64k)"
        ))
    };
    let (digits, shift) = match text.char_indices().last().ok_or_else(bad)? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// Reads bits per second, with a suffix k, M or G (powers of 1000, as links are named).
pub fn parse_rate(text: &str) -> Result<u64, Error> {
    let bad = || {
        Error::Usage(format!(
            "\"{text}\" is no rate: write bits per second, with k, M or G (powers of 1000) if you like (100M)"
        ))
    };
    let (digits, factor) = match text.char_indices().last().ok_or_else(bad)? {
        (at, 'k' | 'K') => (&text[..at], 1e3),
        (at, 'm' | 'M') => (&text[..at], 1e6),
        (at, 'g' | 'G') => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(bad());
    }
    let rate = digits.parse::<f64>().map_err(|_| bad())? * factor;
    if (1.0..1e15).contains(&rate) { Ok(rate as u64) } else { Err(bad()) }
}

/// Reads `REQ,RSP`; one number alone counts for both.
pub fn parse_pair(text: &str) -> Result<(u64, u64), Error> {
    match text.split_once(',') {
        Some((request, response)) => Ok((parse_size(request)?, parse_size(response)?)),
        None => parse_size(text).map(|size| (size, size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("1", 1), ("64k", 65536), ("64K", 65536), ("2M", 2 << 20), ("1G", 1 << 30)]
        {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "k", "-1", "+1", "1.5k", "64kB", "1 k", "é", "99999999999G", "99999999999999999999"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, rate) in [("100M", 100_000_000), ("2.5G", 2_500_000_000), ("9k", 9000), ("7", 7)] {
            assert_eq!(parse_rate(text).unwrap(), rate, "{text}");
        }
        for text in ["", "M", "-1M", "0", "1e9", "nan", "1..2", "99999999999G"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pairs() {
        assert_eq!(parse_pair("1,64k").unwrap(), (1, 65536));
        assert_eq!(parse_pair("128").unwrap(), (128, 128));
        assert!(parse_pair("1,").is_err());
        assert!(parse_pair("1,2,3").is_err());
    }
}
