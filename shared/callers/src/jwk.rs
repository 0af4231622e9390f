//! Algorithms that sign tokens (RFC 7518), and the public keys of issuers that verify them (JWKS, RFC 7517).

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::Value;

/// First byte of a point of a curve whose coordinates both follow (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// An algorithm that signs with a private key. There is none with a shared secret: the keys of an issuer are public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    const NAMES: [(&str, Self); 9] = [
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("EdDSA", Self::EdDsa),
    ];

    fn rsa(self) -> Option<&'static RsaParameters> {
        match self {
            Self::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
            Self::Es256 | Self::Es384 | Self::EdDsa => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(_, algorithm)| algorithm == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// A text that is not the name of an [`Algorithm`].
#[derive(Debug)]
pub(crate) struct UnknownAlgorithm;

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, algorithm)| *algorithm).ok_or(UnknownAlgorithm)
    }
}

/// Bytes that a key has in base64url.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Octets(Vec<u8>);

impl TryFrom<String> for Octets {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        URL_SAFE_NO_PAD.decode(text).map(Self)
    }
}

impl Octets {
    /// The number of these bytes without leading zeros, which some issuers write.
    fn number(&self) -> &[u8] {
        let zeros = self.0.iter().take_while(|byte| **byte == 0).count();
        self.0.get(zeros..).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Curve {
    #[serde(rename = "P-256")]
    P256,
    #[serde(rename = "P-384")]
    P384,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum EdwardsCurve {
    Ed25519,
}

/// The public key of an issuer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kty")]
pub(crate) enum PublicKey {
    #[serde(rename = "RSA")]
    Rsa { n: Octets, e: Octets },
    #[serde(rename = "EC")]
    Elliptic { crv: Curve, x: Octets, y: Octets },
    #[serde(rename = "OKP")]
    Edwards { crv: EdwardsCurve, x: Octets },
}

impl PublicKey {
    /// Whether the private key of this one signed `message`. False for an algorithm of another kind of keys.
    pub(crate) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let by = |verifier: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(verifier, key).verify(message, signature).is_ok()
        };
        match (self, algorithm) {
            (Self::Rsa { n, e }, _) => {
                let key = RsaPublicKeyComponents { n: n.number(), e: e.number() };
                algorithm.rsa().is_some_and(|rsa| key.verify(rsa, message, signature).is_ok())
            }
            (Self::Elliptic { crv: Curve::P256, x, y }, Algorithm::Es256) => {
                by(&ECDSA_P256_SHA256_FIXED, &point(x, y))
            }
            (Self::Elliptic { crv: Curve::P384, x, y }, Algorithm::Es384) => {
                by(&ECDSA_P384_SHA384_FIXED, &point(x, y))
            }
            (Self::Edwards { crv: EdwardsCurve::Ed25519, x }, Algorithm::EdDsa) => by(&ED25519, &x.0),
            (Self::Elliptic { .. } | Self::Edwards { .. }, _) => false,
        }
    }
}

fn point(x: &Octets, y: &Octets) -> Vec<u8> {
    [&[UNCOMPRESSED], x.0.as_slice(), y.0.as_slice()].concat()
}

/// The keys of an issuer.
#[derive(Debug)]
pub(crate) struct KeySet(Vec<Named>);

#[derive(Debug, Deserialize)]
struct Named {
    #[serde(rename = "kid")]
    id: Option<String>,
    #[serde(flatten)]
    key: PublicKey,
}

impl KeySet {
    /// The keys of a document. Keys of kinds that are not supported are left out, shared secrets among them: in a public
    /// document they are a mistake, and would let all forge tokens.
    pub(crate) fn parse(content: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let document: Document = serde_json::from_slice(content)?;
        let keys = document.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        Ok(Self(keys.collect()))
    }

    /// The key with an id; the only key, for a token without an id.
    pub(crate) fn find(&self, id: Option<&str>) -> Option<PublicKey> {
        let found = match (id, self.0.as_slice()) {
            (Some(id), keys) => keys.iter().find(|named| named.id.as_deref() == Some(id))?,
            (None, [only]) => only,
            (None, _) => return None,
        };
        Some(found.key.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{SigningKey, rfc_7515_signature};

    const MESSAGE: &[u8] = b"header.payload";

    fn key(signing: &SigningKey) -> PublicKey {
        serde_json::from_value(signing.public()).unwrap()
    }

    #[test]
    fn each_algorithm_verifies_what_its_own_key_signed() {
        for (name, algorithm) in Algorithm::NAMES {
            assert_eq!(
                (name.parse::<Algorithm>().unwrap(), algorithm.to_string().as_str()),
                (algorithm, name)
            );
            let signing = SigningKey::of(algorithm, "one");
            let signature = signing.signature(MESSAGE);
            assert!(key(&signing).verifies(algorithm, MESSAGE, &signature), "{name}");
            assert!(
                !key(&signing).verifies(algorithm, b"header.other", &signature),
                "{name}: another message"
            );
            for end in [0, 1, signature.len() - 1] {
                assert!(
                    !key(&signing).verifies(algorithm, MESSAGE, &signature[..end]),
                    "{name}: {end} bytes"
                );
            }
            let longer = [signature.as_slice(), &[0]].concat();
            assert!(!key(&signing).verifies(algorithm, MESSAGE, &longer), "{name}: longer");
            for at in [0, signature.len() / 2, signature.len() - 1] {
                let mut changed = signature.clone();
                changed[at] ^= 1;
                assert!(!key(&signing).verifies(algorithm, MESSAGE, &changed), "{name}: changed at {at}");
            }
            for (other, wrong) in Algorithm::NAMES.iter().filter(|(_, other)| *other != algorithm) {
                assert!(!key(&signing).verifies(*wrong, MESSAGE, &signature), "{name} as {other}");
            }
        }
    }

    #[test]
    fn another_key_of_the_same_kind_verifies_nothing() {
        for (name, algorithm) in Algorithm::NAMES {
            let signature = SigningKey::of(algorithm, "one").signature(MESSAGE);
            for (other, kind) in Algorithm::NAMES {
                let stranger = key(&SigningKey::stranger(kind, "one"));
                assert!(!stranger.verifies(algorithm, MESSAGE, &signature), "{name} by a key of {other}");
            }
        }
    }

    #[test]
    fn the_signature_of_the_standard_is_valid() {
        let (message, signature) = rfc_7515_signature();
        let key = key(&SigningKey::of(Algorithm::Rs256, "one"));
        assert!(key.verifies(Algorithm::Rs256, message.as_bytes(), &signature));
    }

    #[test]
    fn an_rsa_key_may_begin_with_zeros() {
        let signing = SigningKey::of(Algorithm::Rs256, "one");
        let PublicKey::Rsa { n, e } = key(&signing) else { unreachable!() };
        let padded = |number: Octets| Octets([&[0, 0], number.0.as_slice()].concat());
        let key = PublicKey::Rsa { n: padded(n), e: padded(e) };
        assert!(key.verifies(Algorithm::Rs256, MESSAGE, &signing.signature(MESSAGE)));
    }

    #[test]
    fn keys_that_verify_nothing_are_harmless() {
        let octets = |bytes: usize| URL_SAFE_NO_PAD.encode(vec![1; bytes]);
        for broken in [
            json!({ "kty": "RSA", "n": "", "e": "" }),
            json!({ "kty": "RSA", "n": octets(64), "e": "AQAB" }),
            json!({ "kty": "EC", "crv": "P-256", "x": "", "y": "" }),
            json!({ "kty": "EC", "crv": "P-256", "x": octets(32), "y": octets(32) }),
            json!({ "kty": "EC", "crv": "P-384", "x": octets(32), "y": octets(32) }),
            json!({ "kty": "OKP", "crv": "Ed25519", "x": octets(31) }),
        ] {
            let key: PublicKey = serde_json::from_value(broken.clone()).unwrap();
            for (name, algorithm) in Algorithm::NAMES {
                assert!(!key.verifies(algorithm, MESSAGE, &[0; 64]), "{broken} {name}");
            }
        }
    }

    #[test]
    fn unknown_kinds_of_keys_are_left_out() {
        let key = SigningKey::generate("one").public();
        let document = json!({ "keys": [
            { "kty": "new" }, { "kty": "EC", "crv": "P-521", "x": "", "y": "" }, { "kty": "oct", "k": "c2VjcmV0" }, key, 1,
        ] });
        let keys = KeySet::parse(document.to_string().as_bytes()).unwrap();
        assert!(
            keys.find(Some("one")).is_some() && keys.find(None).is_some() && keys.find(Some("two")).is_none()
        );
        assert!(KeySet::parse(b"[]").is_err());
        let two =
            json!({ "keys": [SigningKey::generate("one").public(), SigningKey::generate("two").public()] });
        assert!(KeySet::parse(two.to_string().as_bytes()).unwrap().find(None).is_none());
    }
}
