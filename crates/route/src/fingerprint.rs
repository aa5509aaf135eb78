//! The fingerprint of a certificate, by which a peer's is pinned: SHA-256, as `openssl x509 -fingerprint
//! -sha256` shows it.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use sha2::{Digest as _, Sha256};

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

/// The text is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not 32 bytes in hexadecimal, with or without a colon between each two")]
pub struct NoFingerprint;

impl Fingerprint {
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }

    /// Of the first certificate of a text in PEM.
    pub fn of_pem(text: &str) -> Result<Fingerprint, pem::Error> {
        CertificateDer::from_pem_slice(text.as_bytes()).map(|certificate| Fingerprint::of(&certificate))
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Fingerprint, NoFingerprint> {
        let mut bytes = Vec::new();
        let mut digits = text.as_bytes();
        while let [high, low, rest @ ..] = digits {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(NoFingerprint);
            bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
            digits = match rest {
                [b':', more @ ..] if !more.is_empty() => more,
                rest => rest,
            };
        }
        if !digits.is_empty() {
            return Err(NoFingerprint);
        }
        bytes.try_into().map(Fingerprint).map_err(|_| NoFingerprint)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, byte)| {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")
        })
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_is_shown_and_without_colons() {
        let fingerprint = Fingerprint::of(&CertificateDer::from(vec![1, 2, 3]));
        let shown = fingerprint.to_string();
        assert!(shown.starts_with("03:90:58:C6"), "{shown}");
        for text in [shown.clone(), shown.replace(':', ""), shown.to_lowercase()] {
            assert_eq!(text.parse(), Ok(fingerprint), "{text}");
        }
        for text in
            ["", "03", &shown[1..], &format!("{shown}:"), &format!("{shown}:00"), &shown.replace('C', "é")]
        {
            assert_eq!(text.parse::<Fingerprint>(), Err(NoFingerprint), "{text}");
        }
    }
}
