//! An authority of certificates for one farm, for those who have none of their own.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

/// An authority that certifies the servers and clients of one farm.
pub struct Authority(Issuer<'static, KeyPair>);

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub struct Certified {
    /// The certificate, in PEM.
    pub certificate: String,
    /// Its private key, in PEM.
    pub key: String,
}

/// A certificate that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("a certificate cannot be made")]
pub struct CertificateError(#[from] rcgen::Error);

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Server,
    Client,
}

/// Validity of the authority's own certificate in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Validity of certificates in days: the most that clients commonly accept.
const DAYS: i64 = 397;

impl Authority {
    /// Makes a new authority. Returns it with its certificate and key.
    ///
    /// # Errors
    ///
    /// Fails if the machine has no random numbers.
    pub fn generate() -> Result<(Self, Certified), CertificateError> {
        let key = KeyPair::generate()?;
        let files =
            Certified { certificate: own_params().self_signed(&key)?.pem(), key: key.serialize_pem() };
        Ok((Self(Issuer::new(own_params(), key)), files))
    }

    /// The authority with this key, which [`Authority::generate`] made.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a private key in PEM.
    pub fn of_key(key: &str) -> Result<Self, CertificateError> {
        Ok(Self(Issuer::new(own_params(), KeyPair::from_pem(key)?)))
    }

    /// Makes a certificate with these DNS names and addresses, valid for 397 days.
    ///
    /// # Errors
    ///
    /// Fails if a name is not valid.
    pub fn certify(&self, names: &[String], purpose: Purpose) -> Result<Certified, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        valid_for(&mut params, DAYS);
        params.distinguished_name.push(DnType::CommonName, "Forebay");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match purpose {
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Certified { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// The same for each start with one key, so that the key alone makes the authority again.
fn own_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    valid_for(&mut params, AUTHORITY_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "Forebay farm");
    params
}

fn valid_for(params: &mut CertificateParams, days: i64) {
    let now = OffsetDateTime::now_utc();
    // Clocks of other machines may be behind.
    params.not_before = now - Duration::days(1);
    params.not_after = now + Duration::days(days);
}
