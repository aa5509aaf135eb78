//! A secret that both ends know: the server sends a challenge, the client answers with its HMAC-SHA-256 under
//! the secret. The secret itself never travels; what follows is neither encrypted nor signed.

use std::fmt::{self, Write as _};
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::Error;

/// Bytes of a challenge.
const CHALLENGE: usize = 32;
/// What is proved, so that the same secret used elsewhere proves nothing here.
const PURPOSE: &[u8] = b"vmlane bench client";
/// Shorter ones can be guessed.
const SHORTEST: usize = 8;

#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// For the fuzzer.
    pub(crate) fn of(bytes: &[u8]) -> Secret {
        Secret(bytes.to_vec())
    }

    /// The file's text, without white space around it.
    pub fn read(path: &Path) -> Result<Secret, Error> {
        let text = std::fs::read(path)
            .map_err(|error| Error::Usage(format!("secret file {}: {error}", path.display())))?;
        let secret = text.trim_ascii();
        if secret.len() < SHORTEST {
            return Err(Error::Usage(format!(
                "secret file {}: {} bytes; use at least {SHORTEST}, such as those of `head -c 24 /dev/urandom | base64`",
                path.display(),
                secret.len()
            )));
        }
        Ok(Secret(secret.to_vec()))
    }

    fn mac(&self, challenge: &str) -> Result<Hmac<Sha256>, Error> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        let mut mac = mac.map_err(|error| Error::Usage(format!("the secret: {error}")))?;
        mac.update(PURPOSE);
        mac.update(challenge.as_bytes());
        Ok(mac)
    }

    pub fn prove(&self, challenge: &str) -> Result<String, Error> {
        Ok(hex(&self.mac(challenge)?.finalize().into_bytes()))
    }

    /// In constant time.
    pub fn accepts(&self, challenge: &str, proof: &str) -> bool {
        let matches = |proof: Vec<u8>| self.mac(challenge).is_ok_and(|mac| mac.verify_slice(&proof).is_ok());
        unhex(proof).is_some_and(matches)
    }
}

/// A challenge that was never used before.
pub fn challenge() -> Result<String, Error> {
    Ok(hex(&random::<CHALLENGE>()?))
}

/// Unpredictable bytes.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(count) if count == N => Ok(bytes),
        other => Err(Error::io("asking the kernel for random bytes")(
            other.err().map_or_else(|| std::io::ErrorKind::UnexpectedEof.into(), Into::into),
        )),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pair = |&[high, low]: &[u8; 2]| Some(nibble(high)? << 4 | nibble(low)?);
    (digits.len() == 64).then(|| digits.as_chunks().0.iter().map(pair).collect()).flatten()
}

fn nibble(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_and_challenge_are_accepted() {
        let (ours, theirs) = (Secret(b"correct horse".to_vec()), Secret(b"battery staple".to_vec()));
        let (first, second) = (challenge().unwrap(), challenge().unwrap());
        assert_ne!(first, second);
        let proof = ours.prove(&first).unwrap();
        assert!(ours.accepts(&first, &proof));
        assert!(!ours.accepts(&second, &proof) && !theirs.accepts(&first, &proof));
        for wrong in ["", "00", &proof[1..], &"g".repeat(64), &"é".repeat(32)] {
            assert!(!ours.accepts(&first, wrong), "{wrong}");
        }
    }

    #[test]
    fn a_known_answer() {
        // RFC 4231, test case 2, with its key and data: the construction is the standard's.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(&mac.finalize().into_bytes()), expected);
    }

    #[test]
    fn secrets_come_from_files_and_are_long_enough() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "  short \n").unwrap();
        let error = Secret::read(file.path()).unwrap_err().to_string();
        assert!(error.contains("5 bytes; use at least 8"), "{error}");
        std::fs::write(file.path(), "long enough\n").unwrap();
        assert_eq!(Secret::read(file.path()).unwrap().0, b"long enough");
        assert!(Secret::read(Path::new("/no/such/file")).unwrap_err().to_string().contains("/no/such/file"));
    }
}
