//! Providers of `OpenID` Connect, with which people sign in: the authorization code flow with PKCE (RFC 7636).

use std::{path::PathBuf, time::Duration};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use download::{
    Downloader, HeaderMap, HeaderValue, Reach, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom as _, SystemRandom},
};
use serde::Deserialize;
use tokio::sync::Semaphore;
use url::{Url, form_urlencoded};

use crate::fetched::{Fetched, read_document};

/// Time limit of the exchange of a code for a token.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of the answer with a token.
const ANSWER_BYTES_MAX: u64 = 256 << 10;
/// Maximum bytes of the file with the secret of the client.
const SECRET_BYTES_MAX: u64 = 4096;
/// Exchanges at a time with one provider: people sign in rarely, and each waits for it.
const EXCHANGES_MAX: usize = 16;

/// How this farm is known to a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientConfig {
    pub(crate) id: String,
    /// File with the secret; a public client has none.
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) scopes: Vec<String>,
    /// Its name on the pages.
    pub(crate) title: String,
}

/// A provider with which people sign in.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) client: ClientConfig,
    /// Its claim `iss`, below which its description is.
    url: String,
    description: Fetched<Description>,
    exchanges: Semaphore,
}

/// What a provider says of itself (`OpenID` Connect Discovery).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Description {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    pub(crate) jwks_uri: String,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
}

/// What a browser is sent to the provider with.
pub(crate) struct AuthorizationRequest {
    /// Address of the provider, with all parameters.
    pub(crate) url: String,
    pub(crate) state: String,
    pub(crate) verifier: String,
}

/// Why no token was received for a code. The texts have no secrets.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The provider does not answer, or not as the protocol says.
    Unreachable(String),
    /// The provider refuses, for example a code that was used before.
    Refused(String),
}

impl Provider {
    /// Describes a provider; the first person who signs in reads its own description.
    pub(crate) fn new(url: String, client: ClientConfig) -> Self {
        Self { client, url, description: Fetched::default(), exchanges: Semaphore::new(EXCHANGES_MAX) }
    }

    /// Whether both are the same, so that what was read for one is valid for the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.url == other.url && self.client == other.client
    }

    /// What the provider says of itself; none if it does not answer.
    pub(crate) async fn description(&self) -> Option<Description> {
        let read = async {
            let address = format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
            self.checked(&read_document(&address).await?)
        };
        self.description.find(&self.url, |found: &Description| Some(found.clone()), read).await
    }

    fn checked(&self, content: &[u8]) -> Result<Description, String> {
        let found: Description = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        if found.issuer != self.url {
            let given: String = found.issuer.chars().take(200).collect();
            return Err(format!(
                "{} describes itself as {given:?}: expected the same as in the access rules",
                self.url
            ));
        }
        let addresses = [&found.authorization_endpoint, &found.token_endpoint, &found.jwks_uri];
        let insecure = addresses.into_iter().find(|address| !is_secure(address)).cloned();
        match insecure {
            Some(address) => Err(format!("{} names the address {address:?}: expected https://", self.url)),
            None => Ok(found),
        }
    }

    /// Where a browser goes to sign in; none if the provider does not answer.
    pub(crate) async fn authorization_request(
        &self,
        redirect_uri: &str,
        nonce: &str,
    ) -> Option<AuthorizationRequest> {
        let described = self.description().await?;
        let (state, verifier) = (random_text()?, random_text()?);
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        let mut url = Url::parse(&described.authorization_endpoint).ok()?;
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &self.client.id),
            ("redirect_uri", redirect_uri),
            ("scope", &self.client.scopes.join(" ")),
            ("state", &state),
            ("nonce", nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        Some(AuthorizationRequest { url: url.into(), state, verifier })
    }

    /// The ID token for the code with which a browser came back. The token is not verified yet.
    pub(crate) async fn exchange(
        &self,
        redirect_uri: &str,
        code: String,
        verifier: String,
    ) -> Result<String, ExchangeError> {
        let unreachable = |why: &str| ExchangeError::Unreachable(why.to_owned());
        let permit = self.exchanges.try_acquire();
        let _permit = permit.map_err(|_| unreachable("too many people sign in at the same time"))?;
        let described = self.description().await.ok_or_else(|| unreachable("it has no description"))?;
        let secret = self.secret().await.map_err(ExchangeError::Unreachable)?;
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", &code),
            ("code_verifier", &verifier),
            ("redirect_uri", redirect_uri),
        ];
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        match &secret {
            Some(secret) if described.takes_basic() => {
                let basic = basic(&self.client.id, secret);
                headers.insert(AUTHORIZATION, basic.ok_or_else(|| unreachable("the secret is invalid"))?);
            }
            Some(secret) => {
                fields.extend([("client_id", self.client.id.as_str()), ("client_secret", secret)]);
            }
            None => fields.push(("client_id", &self.client.id)),
        }
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let sent = async {
            let downloader = Downloader::new(Reach::everywhere())?;
            downloader.post(&described.token_endpoint, headers, body.into_bytes(), ANSWER_BYTES_MAX).await
        };
        let answer = tokio::time::timeout(EXCHANGE_TIMEOUT, sent).await;
        let answer = answer.map_err(|_| unreachable("it did not answer in time"))?;
        let (status, _, content) =
            answer.map_err(|error| ExchangeError::Unreachable(telemetry::error_chain(&error)))?;
        id_token(status, &content)
    }

    /// The secret of this client; none if it is a public one. Read again each time, so that it can be changed.
    async fn secret(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.client.secret_file else { return Ok(None) };
        let unreadable =
            |error: std::io::Error| format!("the secret of the client {}: {error}", path.display());
        if disk::regular_bytes(path).map_err(unreadable)? > SECRET_BYTES_MAX {
            return Err(format!("the secret of the client {} is too long", path.display()));
        }
        let secret = tokio::fs::read_to_string(path).await.map_err(unreadable)?;
        Ok(Some(secret.trim().to_owned()))
    }
}

impl Description {
    /// Whether a client may prove who it is by the header `Authorization`: a provider that names no method takes it.
    fn takes_basic(&self) -> bool {
        let methods = &self.token_endpoint_auth_methods_supported;
        methods.is_empty() || methods.iter().any(|method| method == "client_secret_basic")
    }
}

/// The header by which a client proves who it is (RFC 6749, section 2.3.1).
fn basic(id: &str, secret: &str) -> Option<HeaderValue> {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let both = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::from_str(&format!("Basic {both}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The ID token of an answer to the exchange of a code.
fn id_token(status: StatusCode, content: &[u8]) -> Result<String, ExchangeError> {
    #[derive(Deserialize)]
    struct Answer {
        id_token: Option<String>,
    }
    #[derive(Deserialize)]
    struct Error {
        error: String,
        error_description: Option<String>,
    }
    // Errors of JSON may contain tokens.
    let unreadable = |_| ExchangeError::Unreachable("its answer cannot be read".to_owned());
    if status != StatusCode::OK {
        let Error { error, error_description: why } = serde_json::from_slice(content).map_err(unreadable)?;
        let why = why.as_deref().unwrap_or("no reason");
        return Err(ExchangeError::Refused(format!("{error}: {why}")));
    }
    let Answer { id_token } = serde_json::from_slice(content).map_err(unreadable)?;
    id_token.ok_or_else(|| ExchangeError::Refused("its answer has no ID token".to_owned()))
}

/// A text of 256 random bits, for an address. None if the machine has no random numbers.
pub(crate) fn random_text() -> Option<String> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(URL_SAFE_NO_PAD.encode(bytes))
}

/// Whether others cannot change what is read from a URL.
pub(crate) fn is_secure(url: &str) -> bool {
    let is_local = |start: &str| {
        url.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    };
    url.starts_with("https://") || is_local("http://127.0.0.1") || is_local("http://localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider() -> Provider {
        let client = ClientConfig {
            id: "forebay".into(),
            secret_file: None,
            scopes: vec!["openid".into()],
            title: "Dex".into(),
        };
        Provider::new("https://dex.example.com".into(), client)
    }

    fn described(name: &str, value: impl Into<serde_json::Value>) -> Result<Description, String> {
        let mut document = serde_json::json!({
            "issuer": "https://dex.example.com",
            "authorization_endpoint": "https://dex.example.com/auth",
            "token_endpoint": "https://dex.example.com/token",
            "jwks_uri": "https://dex.example.com/keys",
        });
        document[name] = value.into();
        provider().checked(document.to_string().as_bytes())
    }

    #[test]
    fn a_provider_describes_itself_and_nothing_else() {
        assert!(described("more", "").is_ok());
        for (name, value) in [
            ("issuer", "https://evil.example.com"),
            ("issuer", "https://dex.example.com/"),
            ("token_endpoint", "http://dex.example.com/token"),
            ("authorization_endpoint", "javascript:alert(1)"),
            ("jwks_uri", "http://127.0.0.1.evil.example.com/keys"),
        ] {
            assert!(described(name, value).is_err(), "{name} {value}");
        }
        assert!(provider().checked(b"{}").is_err());
    }

    #[test]
    fn a_client_proves_itself_as_the_standard_says() {
        // The example of RFC 6749, section 2.3.1.
        let header = basic("s6BhdRkqt3", "7Fjfp0ZBr1KtDRbnfVdmIw").unwrap();
        assert_eq!(header, "Basic czZCaGRSa3F0Mzo3RmpmcDBaQnIxS3REUmJuZlZkbUl3");
        assert!(!format!("{header:?}").contains("czZ"), "it is secret");
        let header = basic("a:b", "c d/é").unwrap();
        assert_eq!(header, format!("Basic {}", STANDARD.encode("a%3Ab:c+d%2F%C3%A9")).as_str());
        let methods = |methods: serde_json::Value| {
            described("token_endpoint_auth_methods_supported", methods).unwrap().takes_basic()
        };
        assert!(methods(serde_json::json!([])));
        assert!(methods(serde_json::json!(["client_secret_post", "client_secret_basic"])));
        assert!(!methods(serde_json::json!(["client_secret_post"])));
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_not_shown() {
        let read = |status, content: &str| id_token(status, content.as_bytes());
        assert_eq!(read(StatusCode::OK, r#"{ "id_token": "a.b.c", "scope": "x" }"#).unwrap(), "a.b.c");
        for (status, content) in [
            (StatusCode::OK, r#"{ "id_token": 1, "access_token": "hidden" }"#),
            (StatusCode::OK, ""),
            (StatusCode::BAD_GATEWAY, "<p>hidden</p>"),
            (StatusCode::CREATED, r#"{ "id_token": "hidden" }"#),
        ] {
            let error = read(status, content).unwrap_err();
            let ExchangeError::Unreachable(why) = &error else { panic!("{error:?}") };
            assert_eq!(why, "its answer cannot be read");
        }
    }
}
