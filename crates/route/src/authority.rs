//! Certificates for those who have no authority of their own: one authority, and a certificate for each host.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// What a new authority is called.
const NAME: &str = "vmlane route authority";

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

fn authority_params(valid: (SystemTime, SystemTime)) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (valid.0.into(), valid.1.into());
    Ok(params)
}

/// From an hour ago, for hosts whose clocks differ a little, for so many days.
pub fn days(days: u64) -> (SystemTime, SystemTime) {
    let now = SystemTime::now();
    (now - Duration::from_secs(3600), now + Duration::from_secs(days * 86_400))
}

/// A new authority.
pub fn authority(valid: (SystemTime, SystemTime)) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(valid)?.self_signed(&key)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// A certificate for the host `name`, signed by the authority with this key, which [`authority`] has made.
pub fn certificate(
    authority_key: &str,
    name: &str,
    valid: (SystemTime, SystemTime),
) -> Result<Pair, rcgen::Error> {
    let issuer = Issuer::new(authority_params(valid)?, KeyPair::from_pem(authority_key)?);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    (params.not_before, params.not_after) = (valid.0.into(), valid.1.into());
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}
