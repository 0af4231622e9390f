//! Credentials as requests contain them.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{build_token::is_build_token, key::ApiKey, refusal::Refusal};

/// Maximum bytes of a token; longer ones are refused unread.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// What a request offers as proof of its caller.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offered<'a> {
    /// The header `authorization`: `Bearer` with a key or token, or `Basic` with one as its password.
    pub authorization: Option<&'a [u8]>,
    /// The value of the header `x-forebay-api-key`.
    pub api_key: Option<&'a [u8]>,
    /// Whether one of both headers occurs more than once.
    pub is_repeated: bool,
    /// The session of a person, from a cookie. Counts if there is no other credential.
    pub session: Option<&'a str>,
    /// Names of a verified client certificate.
    pub certificate: &'a [String],
}

/// The credentials of a request, kept while its answer is sent. It has no `Debug`, so that it is not logged.
#[derive(Clone)]
pub struct Credentials {
    authorization: Option<Vec<u8>>,
    api_key: Option<Vec<u8>>,
    session: Option<String>,
    certificate: Vec<String>,
}

impl Credentials {
    /// What they offer as proof.
    pub fn offered(&self) -> Offered<'_> {
        Offered {
            authorization: self.authorization.as_deref(),
            api_key: self.api_key.as_deref(),
            is_repeated: false,
            session: self.session.as_deref(),
            certificate: &self.certificate,
        }
    }
}

/// A credential that is not verified yet. It has no `Debug`, so that it is not logged.
pub(crate) enum Credential {
    Key(ApiKey),
    /// The token of a build.
    Build(String),
    /// A token of an issuer (JWT).
    Token(String),
    /// The sealed session of a person.
    Session(String),
}

impl Credential {
    /// The text of the credential.
    pub(crate) fn secret(&self) -> &str {
        match self {
            Self::Key(key) => key.reveal(),
            Self::Build(token) | Self::Token(token) | Self::Session(token) => token,
        }
    }

    fn of(text: &str) -> Result<Self, Refusal> {
        if ApiKey::is_meant(text) {
            return ApiKey::parse(text)
                .map(Self::Key)
                .ok_or(Refusal::invalid("it is not a complete API key"));
        }
        if text.len() > TOKEN_BYTES_MAX {
            return Err(Refusal::invalid("the token is too long"));
        }
        if is_build_token(text) {
            return Ok(Self::Build(text.to_owned()));
        }
        Ok(Self::Token(text.to_owned()))
    }
}

impl Offered<'_> {
    /// A copy that outlives the request.
    pub fn keep(&self) -> Credentials {
        Credentials {
            authorization: self.authorization.map(<[u8]>::to_vec),
            api_key: self.api_key.map(<[u8]>::to_vec),
            session: self.session.map(str::to_owned),
            certificate: self.certificate.to_vec(),
        }
    }

    /// The credential; none if the request has none.
    pub(crate) fn credential(&self) -> Result<Option<Credential>, Refusal> {
        if self.is_repeated || (self.authorization.is_some() && self.api_key.is_some()) {
            return Err(Refusal::invalid("the request has more than one credential"));
        }
        let text = |header| std::str::from_utf8(header).map_err(|_| Refusal::invalid("a header is not text"));
        if let Some(key) = self.api_key {
            return Credential::of(text(key)?.trim()).map(Some);
        }
        let Some(header) = self.authorization else {
            return Ok(self.session.map(|session| Credential::Session(session.to_owned())));
        };
        let header = text(header)?;
        let (scheme, value) = header.split_once(' ').unwrap_or((header, ""));
        let value = value.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Credential::of(value).map(Some);
        }
        if scheme.eq_ignore_ascii_case("basic") {
            return password(value).and_then(|password| Credential::of(&password)).map(Some);
        }
        Err(Refusal::invalid("the header authorization is neither Bearer nor Basic"))
    }
}

/// The password of basic authentication. The name of the user has no meaning.
fn password(value: &str) -> Result<String, Refusal> {
    let refused = || Refusal::invalid("the header authorization cannot be decoded");
    if value.len() > 2 * TOKEN_BYTES_MAX {
        return Err(refused());
    }
    let decoded = STANDARD.decode(value).map_err(|_| refused())?;
    let decoded = String::from_utf8(decoded).map_err(|_| refused())?;
    decoded.split_once(':').map(|(_, password)| password.to_owned()).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(authorization: &str) -> Result<Option<String>, Refusal> {
        let offered = Offered { authorization: Some(authorization.as_bytes()), ..Offered::default() };
        Ok(offered.credential()?.map(|credential| credential.secret().to_owned()))
    }

    #[test]
    fn credentials_come_in_three_forms() {
        let key = ApiKey::generate().unwrap();
        let key = key.reveal();
        assert_eq!(read(&format!("Bearer {key}")).unwrap().unwrap(), key);
        assert_eq!(read("bearer a.b.c").unwrap().unwrap(), "a.b.c");
        assert_eq!(read(&format!("Basic {}", STANDARD.encode(format!("x:{key}")))).unwrap().unwrap(), key);
        let offered = Offered { api_key: Some(key.as_bytes()), ..Offered::default() };
        assert_eq!(offered.credential().unwrap().unwrap().secret(), key);
        assert!(Offered::default().credential().unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for header in [
            "",
            "Digest x",
            "Basic ***",
            "Basic eA==",
            "Bearer fbk_12",
            &format!("Bearer {}", "a".repeat(100_000)),
        ] {
            assert!(read(header).is_err(), "{header:.20}");
        }
        let both = Offered { authorization: Some(b"Bearer a"), api_key: Some(b"b"), ..Offered::default() };
        assert!(both.credential().is_err());
        assert!(Offered { is_repeated: true, ..Offered::default() }.credential().is_err());
        assert!(Offered { authorization: Some(b"Bearer \xff"), ..Offered::default() }.credential().is_err());
    }
}
