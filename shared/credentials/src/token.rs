//! What JWTs of NATS say. Their signatures are checked by nats-server, not here.

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, de::DeserializeOwned};

/// When a JWT was issued, and when it expires. In seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Expiry {
    #[serde(rename = "iat")]
    pub issued: i64,
    /// None: it does not expire.
    #[serde(rename = "exp")]
    pub expires: Option<i64>,
}

/// The claims of a JWT, without a check of its signature. None if the text is not a JWT with these claims.
pub fn claims<T: DeserializeOwned>(token: &str) -> Option<T> {
    let mut parts = token.trim().split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    serde_json::from_slice(&BASE64URL_NOPAD.decode(claims.as_bytes()).ok()?).ok()
}

pub(crate) fn expiry(token: &str) -> Option<Expiry> {
    claims(token)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A JWT with these claims and no signature.
    pub(crate) fn token(claims: &str) -> String {
        format!("e30.{}.AA", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    #[test]
    fn the_end_of_a_jwt_is_read() {
        let wanted = Expiry { issued: 5, expires: Some(9) };
        assert_eq!(expiry(&token(r#"{"iat":5,"exp":9,"nats":{}}"#)), Some(wanted));
        assert_eq!(expiry(&token(r#"{"iat":5}"#)), Some(Expiry { expires: None, ..wanted }));
        for wrong in ["", "a.b", "a.b.c", "a.b.c.d", &token("{}"), &token("[]")] {
            assert_eq!(expiry(wrong), None, "{wrong}");
        }
    }
}
