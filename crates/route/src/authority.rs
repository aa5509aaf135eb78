//! Certificates for those who have no authority of their own: one authority, a certificate for each host, and
//! a list of those that were revoked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData as _, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use sha2::{Digest as _, Sha256};
use webpki::{BorrowedCertRevocationList, EndEntityCert};

use crate::tls;

/// How the name of an authority begins.
const NAME: &str = "vmlane route authority";
/// By then a list is to be replaced by a newer one. Helpers use it beyond that.
const LIST_DAYS: u64 = 3650;

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Why something cannot be revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    #[error("{0}")]
    Sign(#[from] rcgen::Error),
    #[error("what should be PEM is not: {0}")]
    Pem(#[from] pem::Error),
    #[error("a certificate or the list before cannot be read: {0}")]
    Read(webpki::Error),
    #[error(
        "no certificate of this authority's names {0:?}; compare the name, and the directory of the authority"
    )]
    None(String),
}

impl From<webpki::Error> for RevokeError {
    fn from(error: webpki::Error) -> RevokeError {
        RevokeError::Read(error)
    }
}

/// From an hour ago, for hosts whose clocks differ a little, for so many days.
pub fn days(days: u64) -> (SystemTime, SystemTime) {
    let now = SystemTime::now();
    (now - Duration::from_secs(3600), now + Duration::from_secs(days * 86_400))
}

/// What signs certificates and lists.
pub struct Authority {
    name: String,
    key: KeyPair,
}

impl Authority {
    /// The one with this key. Authorities have names of their own: by its issuer's a list is found.
    pub fn of_key(key: &str) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::from_pem(key)?;
        let hash = Sha256::digest(key.der_bytes());
        let number: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(Authority { name: format!("{NAME} {number}"), key })
    }

    /// The one with this key and this certificate, whose name may be one that all authorities once had.
    pub fn of_pair(certificate: &str, key: &str) -> Result<Authority, RevokeError> {
        let mut authority = Authority::of_key(key)?;
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let certificate = EndEntityCert::try_from(&certificate)?;
        if certificate.subject().ends_with(NAME.as_bytes()) {
            authority.name = NAME.into();
        }
        Ok(authority)
    }

    fn params(&self, valid: (SystemTime, SystemTime)) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, self.name.as_str());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (valid.0.into(), valid.1.into());
        Ok(params)
    }

    fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, rcgen::Error> {
        Ok(Issuer::new(self.params(days(1))?, &self.key))
    }

    /// A certificate for the host `name`.
    pub fn certificate(&self, name: &str, valid: (SystemTime, SystemTime)) -> Result<Pair, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (valid.0.into(), valid.1.into());
        let certificate = params.signed_by(&key, &self.issuer()?)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// A list of what was revoked before, as `list` has it, and of those of `certificates` that name the host
    /// `name`; how many those are.
    pub fn revoke(
        &self,
        list: Option<&str>,
        certificates: &str,
        name: &str,
    ) -> Result<(String, usize), RevokeError> {
        let now = SystemTime::now();
        let mut revoked = list.map_or_else(|| Ok(BTreeMap::new()), revoked)?;
        let mut found = BTreeSet::new();
        for certificate in CertificateDer::pem_slice_iter(certificates.as_bytes()) {
            let certificate = certificate?;
            let parsed = EndEntityCert::try_from(&certificate)?;
            if tls::proves(&certificate, name).is_ok() && parsed.issuer().ends_with(self.name.as_bytes()) {
                found.insert(parsed.serial().to_vec());
            }
        }
        if found.is_empty() {
            return Err(RevokeError::None(name.into()));
        }
        let count = found.len();
        for serial in found {
            revoked.entry(serial).or_insert(now);
        }
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let entry = |(serial, time): (Vec<u8>, SystemTime)| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: time.into(),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: days(LIST_DAYS).1.into(),
            crl_number: SerialNumber::from(seconds),
            issuing_distribution_point: None,
            revoked_certs: revoked.into_iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok((params.signed_by(&self.issuer()?)?.pem()?, count))
    }
}

/// Serial numbers of a list, and when each was revoked.
fn revoked(list: &str) -> Result<BTreeMap<Vec<u8>, SystemTime>, RevokeError> {
    let list = CertificateRevocationListDer::from_pem_slice(list.as_bytes())?;
    let list = BorrowedCertRevocationList::from_der(&list)?;
    let of = |entry: Result<webpki::BorrowedRevokedCert<'_>, webpki::Error>| {
        let entry = entry?;
        let time = UNIX_EPOCH + Duration::from_secs(entry.revocation_date.as_secs());
        Ok((entry.serial_number.to_vec(), time))
    };
    list.into_iter().map(of).collect()
}

/// A new authority.
pub fn authority(valid: (SystemTime, SystemTime)) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?.serialize_pem();
    let authority = Authority::of_key(&key)?;
    let certificate = authority.params(valid)?.self_signed(&authority.key)?;
    Ok(Pair { certificate: certificate.pem(), key })
}

/// A certificate for the host `name`, signed by the authority with this key, which [`authority`] has made.
pub fn certificate(
    authority_key: &str,
    name: &str,
    valid: (SystemTime, SystemTime),
) -> Result<Pair, rcgen::Error> {
    Authority::of_key(authority_key)?.certificate(name, valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_certificates_of_a_host_are_revoked_and_a_list_keeps_what_it_had() {
        let own = authority(days(30)).unwrap();
        let authority = Authority::of_pair(&own.certificate, &own.key).unwrap();
        let made = |name| authority.certificate(name, days(1)).unwrap().certificate;
        let foreign = self::authority(days(30)).unwrap();
        let foreign = certificate(&foreign.key, "beta", days(1)).unwrap().certificate;
        let twice = made("alpha");
        let issued = [made("alpha"), made("beta"), twice.clone(), twice, foreign].concat();
        let (list, count) = authority.revoke(None, &issued, "alpha").unwrap();
        assert_eq!((count, revoked(&list).unwrap().len()), (2, 2));
        let (list, count) = authority.revoke(Some(&list), &issued, "beta").unwrap();
        assert_eq!(
            (count, revoked(&list).unwrap().len()),
            (1, 3),
            "the foreign one is another authority's to revoke"
        );
        let (again, _) = authority.revoke(Some(&list), &issued, "beta").unwrap();
        assert_eq!(revoked(&again).unwrap().len(), 3);
        let none = authority.revoke(Some(&list), &issued, "gamma").unwrap_err();
        assert!(none.to_string().contains("names \"gamma\""), "{none}");
    }

    #[test]
    fn authorities_have_names_of_their_own() {
        let [one, other] = [(), ()].map(|()| Authority::of_key(&authority(days(1)).unwrap().key).unwrap());
        assert_ne!(one.name, other.name);
    }
}
