//! An issuer of tokens for tests.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    rsa::{KeyPairComponents, PublicKeyComponents},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384,
        RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
    },
};
use serde_json::{Value, json};

use crate::jwk::Algorithm;

mod published;

pub(crate) use published::rfc_7515_signature;
use published::{RFC_7515_KEY, RFC_7517_MODULUS, RsaKey};

pub(crate) const ISSUER: &str = "https://issuer.example.com";
pub(crate) const AUDIENCE: &str = "forebay";

/// A key pair of an issuer.
pub(crate) struct SigningKey {
    id: String,
    algorithm: Algorithm,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Elliptic(&'static str, EcdsaKeyPair),
    Edwards(Ed25519KeyPair),
    /// A public key of RSA, whose private one is not known.
    Published,
}

impl SigningKey {
    pub(crate) fn generate(id: &str) -> Self {
        Self::of(Algorithm::Es256, id)
    }

    /// A key of an algorithm: a new one, or that of RFC 7515 for RSA, of which `ring` makes none.
    pub(crate) fn of(algorithm: Algorithm, id: &str) -> Self {
        let pair = match algorithm {
            Algorithm::Rs256 => rsa(&RSA_PKCS1_SHA256),
            Algorithm::Rs384 => rsa(&RSA_PKCS1_SHA384),
            Algorithm::Rs512 => rsa(&RSA_PKCS1_SHA512),
            Algorithm::Ps256 => rsa(&RSA_PSS_SHA256),
            Algorithm::Ps384 => rsa(&RSA_PSS_SHA384),
            Algorithm::Ps512 => rsa(&RSA_PSS_SHA512),
            Algorithm::Es256 => elliptic("P-256", &ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::Es384 => elliptic("P-384", &ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::EdDsa => {
                let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
                Pair::Edwards(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
            }
        };
        Self { id: id.to_owned(), algorithm, pair }
    }

    /// Another key than [`Self::of`], which may not be able to sign.
    pub(crate) fn stranger(algorithm: Algorithm, id: &str) -> Self {
        let key = Self::of(algorithm, id);
        match key.pair {
            Pair::Rsa(..) => Self { pair: Pair::Published, ..key },
            Pair::Elliptic(..) | Pair::Edwards(_) | Pair::Published => key,
        }
    }

    pub(crate) fn public(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut key = match &self.pair {
            Pair::Rsa(pair, _) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({ "kty": "RSA", "n": text(&public.n), "e": text(&public.e) })
            }
            Pair::Published => json!({ "kty": "RSA", "n": RFC_7517_MODULUS, "e": "AQAB" }),
            Pair::Elliptic(curve, pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
                json!({ "kty": "EC", "crv": curve, "x": text(x), "y": text(y) })
            }
            Pair::Edwards(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref()) })
            }
        };
        key["alg"] = self.algorithm.to_string().into();
        key["use"] = "sig".into();
        key["kid"] = self.id.as_str().into();
        key
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = json!({ "typ": "JWT", "alg": self.algorithm.to_string(), "kid": self.id });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(claims));
        let signature = self.signature(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    pub(crate) fn signature(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &random, message, &mut signature).unwrap();
                signature
            }
            Pair::Elliptic(_, pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Edwards(pair) => pair.sign(message).as_ref().to_vec(),
            Pair::Published => panic!("the private key is not known"),
        }
    }
}

fn rsa(encoding: &'static dyn RsaEncoding) -> Pair {
    let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
    let RsaKey { n, d, p, q, dp, dq, qi } = RFC_7515_KEY;
    let components = KeyPairComponents {
        public_key: PublicKeyComponents { n: bytes(n), e: bytes("AQAB") },
        d: bytes(d),
        p: bytes(p),
        q: bytes(q),
        dP: bytes(dp),
        dQ: bytes(dq),
        qInv: bytes(qi),
    };
    Pair::Rsa(RsaKeyPair::from_components(&components).unwrap(), encoding)
}

fn elliptic(curve: &'static str, algorithm: &'static EcdsaSigningAlgorithm) -> Pair {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    Pair::Elliptic(curve, EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
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
