//! Tokens (JWT, RFC 7519) in the compact form of RFC 7515.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::jwk::{Algorithm, PublicKey};

/// Accepted difference between the clocks of issuer and farm, in seconds.
pub(crate) const LEEWAY_SECONDS: u64 = 30;
/// Maximum characters of an unknown algorithm that are shown.
const SHOWN_MAX: usize = 20;

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenFault {
    #[error("it is not a token (JWT)")]
    Malformed,
    #[error("it needs an extension (crit)")]
    Critical,
    #[error("algorithm {0} is not allowed")]
    Algorithm(String),
    #[error("its signature is not valid")]
    Signature,
    #[error("its claims cannot be read: {0}")]
    Claims(String),
    #[error("it has no valid claim {0}")]
    Claim(&'static str),
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet (nbf)")]
    Early,
    #[error("it is of another issuer (iss)")]
    Issuer,
    #[error("it is for another audience (aud)")]
    Audience,
}

/// A token whose signature was not verified yet.
pub(crate) struct Unverified<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) key_id: Option<String>,
    /// Header and payload, as they were signed.
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

/// What a token says whose signature was verified.
#[derive(Debug, Deserialize)]
pub(crate) struct Claims {
    pub(crate) exp: u64,
    pub(crate) sub: String,
    #[serde(flatten)]
    pub(crate) others: Map<String, Value>,
}

impl<'a> Unverified<'a> {
    pub(crate) fn parse(token: &'a str) -> Result<Self, TokenFault> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
            kid: Option<String>,
            crit: Option<Value>,
        }
        let parts = token.rsplit_once('.').and_then(|(signed, signature)| {
            let (header, payload) = signed.split_once('.')?;
            (!payload.contains('.')).then_some((signed, header, payload, signature))
        });
        let (signed, header, payload, signature) = parts.ok_or(TokenFault::Malformed)?;
        let header: Header = decoded(header).ok_or(TokenFault::Malformed)?;
        // Who does not know some extensions must refuse the token (RFC 7515, section 4.1.11).
        if header.crit.is_some() {
            return Err(TokenFault::Critical);
        }
        let unknown = |_| {
            TokenFault::Algorithm(format!("{:?}", header.alg.chars().take(SHOWN_MAX).collect::<String>()))
        };
        let algorithm = header.alg.parse().map_err(unknown)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenFault::Malformed)?;
        Ok(Self { algorithm, key_id: header.kid, signed, payload, signature })
    }

    /// The claims, if the private key of `key` signed them.
    pub(crate) fn verify(self, key: &PublicKey) -> Result<Claims, TokenFault> {
        if !key.verifies(self.algorithm, self.signed.as_bytes(), &self.signature) {
            return Err(TokenFault::Signature);
        }
        let payload = URL_SAFE_NO_PAD.decode(self.payload).map_err(|_| TokenFault::Malformed)?;
        serde_json::from_slice(&payload).map_err(|error| TokenFault::Claims(error.to_string()))
    }
}

impl Claims {
    /// Checks that the token is of `issuer`, for one of `audience`, and valid `now`, in seconds since 1970.
    pub(crate) fn check(&self, issuer: &str, audience: &[String], now: u64) -> Result<(), TokenFault> {
        if self.exp.saturating_add(LEEWAY_SECONDS) < now {
            return Err(TokenFault::Expired);
        }
        if let Some(begin) = self.others.get("nbf")
            && seconds(begin).ok_or(TokenFault::Claim("nbf"))? > now.saturating_add(LEEWAY_SECONDS)
        {
            return Err(TokenFault::Early);
        }
        let claimed = self.others.get("iss").and_then(Value::as_str).ok_or(TokenFault::Claim("iss"))?;
        if claimed != issuer {
            return Err(TokenFault::Issuer);
        }
        let for_whom = self.others.get("aud").and_then(texts).ok_or(TokenFault::Claim("aud"))?;
        let is_ours = |given: &&str| audience.iter().any(|ours| ours == given);
        if for_whom.iter().any(is_ours) { Ok(()) } else { Err(TokenFault::Audience) }
    }
}

/// The claim `iss` of a token that is not verified yet, to choose the issuer whose keys verify it.
pub(crate) fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claimed {
        iss: String,
    }
    decoded(token.split('.').nth(1)?).map(|Claimed { iss }| iss)
}

/// When a token expires, in seconds since 1970, as it says itself; none for a key.
pub fn token_expiry(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Claimed {
        exp: u64,
    }
    decoded(token.split('.').nth(1)?).map(|Claimed { exp }| exp)
}

fn decoded<T: DeserializeOwned>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// A time in seconds, which some issuers write with a fraction.
fn seconds(value: &Value) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in the range of u64")]
    let rounded = |number: f64| (0.0..u64::MAX as f64).contains(&number).then(|| number.round() as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(rounded))
}

/// A text, or several in a list.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(values) => values.iter().map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::SigningKey;

    const NOW: u64 = 1_000_000;

    fn check(change: &[(&str, Value)]) -> Result<(), TokenFault> {
        let mut claims = json!({ "iss": "i", "aud": "a", "sub": "s", "exp": NOW + 60 });
        for (name, value) in change {
            claims[*name] = value.clone();
        }
        serde_json::from_value::<Claims>(claims).unwrap().check("i", &["a".into(), "b".into()], NOW)
    }

    #[test]
    fn times_may_differ_by_the_clocks() {
        assert_eq!(check(&[("exp", json!(NOW - 30))]), Ok(()));
        assert_eq!(check(&[("exp", json!(NOW - 31))]), Err(TokenFault::Expired));
        assert_eq!(check(&[("exp", json!(u64::MAX))]), Ok(()));
        assert_eq!(check(&[("nbf", json!(NOW + 30))]), Ok(()));
        assert_eq!(check(&[("nbf", json!(NOW + 31))]), Err(TokenFault::Early));
        assert_eq!(check(&[("nbf", json!(1.5))]), Ok(()));
        assert_eq!(check(&[("nbf", json!(1e15))]), Err(TokenFault::Early));
        for wrong in [json!(null), json!(-1), json!(1e30), json!("1")] {
            assert_eq!(check(&[("nbf", wrong.clone())]), Err(TokenFault::Claim("nbf")), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_for_one_of_the_audience() {
        for right in [json!("a"), json!("b"), json!(["c", "b"])] {
            assert_eq!(check(&[("aud", right.clone())]), Ok(()), "{right}");
        }
        for wrong in [json!("c"), json!([]), json!(["A", "c"]), json!("")] {
            assert_eq!(check(&[("aud", wrong.clone())]), Err(TokenFault::Audience), "{wrong}");
        }
        for wrong in [json!(null), json!(["a", 1]), json!({ "a": "a" })] {
            assert_eq!(check(&[("aud", wrong.clone())]), Err(TokenFault::Claim("aud")), "{wrong}");
        }
    }

    #[test]
    fn only_three_parts_are_a_token() {
        let signed = SigningKey::generate("one").sign(&json!({}));
        assert!(Unverified::parse(&signed).is_ok());
        let (head, signature) = signed.rsplit_once('.').unwrap();
        for wrong in [
            head.to_owned(),
            format!("{signed}.x"),
            format!("{head}.x.{signature}"),
            format!(".{head}.{signature}"),
            format!("{head}.{signature}="),
            format!("{signed}\n"),
            "..".to_owned(),
        ] {
            assert_eq!(Unverified::parse(&wrong).err(), Some(TokenFault::Malformed), "{wrong}");
        }
    }
}
