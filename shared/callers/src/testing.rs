//! An issuer of tokens for tests.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};

pub(crate) const ISSUER: &str = "https://issuer.example.com";
pub(crate) const AUDIENCE: &str = "forebay";

/// A key pair of an issuer.
pub(crate) struct SigningKey {
    id: String,
    private: Vec<u8>,
    public: Vec<u8>,
}

impl SigningKey {
    pub(crate) fn generate(id: &str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        let public = pair.public_key().as_ref().to_vec();
        Self { id: id.to_owned(), private: document.as_ref().to_vec(), public }
    }

    pub(crate) fn public(&self) -> Value {
        let (x, y) = (&self.public[1..33], &self.public[33..]);
        json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.id,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        })
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &EncodingKey::from_ec_der(&self.private)).unwrap()
    }
}

/// Writes the public keys of an issuer.
pub(crate) fn write_keys(path: &Path, keys: &[&SigningKey]) {
    let keys: Vec<Value> = keys.iter().map(|key| key.public()).collect();
    std::fs::write(path, json!({ "keys": keys }).to_string()).unwrap();
}

/// Claims of a token that is valid for an hour.
pub(crate) fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": "repo:acme/web", "exp": after(3600), "repository": "acme/web" })
}

/// A time in seconds since 1970, `seconds` from now.
pub(crate) fn after(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(now.as_secs()).unwrap() + seconds
}
