//! Providers of `OpenID` Connect, with which people sign in: the authorization code flow with PKCE (RFC 7636).

use std::{fmt, path::PathBuf, time::Duration};

use download::{DownloadError, Downloader, Reach};
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, Client, ClientId, ClientSecret, CsrfToken, ExtraTokenFields,
    HttpRequest, HttpResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope,
    StandardRevocableToken, StandardTokenResponse, TokenUrl,
    basic::{
        BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse, BasicTokenType,
    },
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

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

/// The field of the answer by which the provider says who signed in.
#[derive(Serialize, Deserialize)]
struct IdToken {
    id_token: Option<String>,
}

impl fmt::Debug for IdToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdToken")
    }
}

impl ExtraTokenFields for IdToken {}

type OpenIdClient = Client<
    BasicErrorResponse,
    StandardTokenResponse<IdToken, BasicTokenType>,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
>;

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
        let client = OpenIdClient::new(ClientId::new(self.client.id.clone()))
            .set_auth_uri(AuthUrl::new(described.authorization_endpoint).ok()?)
            .set_redirect_uri(RedirectUrl::new(redirect_uri.to_owned()).ok()?);
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let scopes = self.client.scopes.iter().map(|scope| Scope::new(scope.clone()));
        let (url, state) = client
            .authorize_url(CsrfToken::new_random)
            .add_scopes(scopes)
            .add_extra_param("nonce", nonce)
            .set_pkce_challenge(challenge)
            .url();
        Some(AuthorizationRequest {
            url: url.into(),
            state: state.into_secret(),
            verifier: verifier.into_secret(),
        })
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
        let invalid = |_| unreachable("an address is invalid");
        let has_only_post = !described.token_endpoint_auth_methods_supported.is_empty()
            && !described.token_endpoint_auth_methods_supported.iter().any(|it| it == "client_secret_basic");
        let mut client = OpenIdClient::new(ClientId::new(self.client.id.clone()))
            .set_token_uri(TokenUrl::new(described.token_endpoint).map_err(invalid)?)
            .set_redirect_uri(RedirectUrl::new(redirect_uri.to_owned()).map_err(invalid)?)
            .set_auth_type(if has_only_post { AuthType::RequestBody } else { AuthType::BasicAuth });
        if let Some(secret) = self.secret().await.map_err(ExchangeError::Unreachable)? {
            client = client.set_client_secret(secret);
        }
        let request = client
            .exchange_code(AuthorizationCode::new(code))
            .set_pkce_verifier(PkceCodeVerifier::new(verifier));
        let answer = tokio::time::timeout(EXCHANGE_TIMEOUT, request.request_async(&send)).await;
        let answer = answer.map_err(|_| unreachable("it did not answer in time"))?;
        match answer {
            Ok(answer) => {
                let token = answer.extra_fields().id_token.clone();
                token.ok_or_else(|| ExchangeError::Refused("its answer has no ID token".to_owned()))
            }
            Err(RequestTokenError::ServerResponse(refused)) => {
                let why = refused.error_description().map_or("no reason", String::as_str);
                Err(ExchangeError::Refused(format!("{}: {why}", refused.error())))
            }
            Err(RequestTokenError::Request(error)) => {
                Err(ExchangeError::Unreachable(telemetry::error_chain(&error)))
            }
            // The rest of these errors may contain tokens.
            Err(RequestTokenError::Parse(..) | RequestTokenError::Other(_)) => {
                Err(unreachable("its answer cannot be read"))
            }
        }
    }

    /// The secret of this client; none if it is a public one. Read again each time, so that it can be changed.
    async fn secret(&self) -> Result<Option<ClientSecret>, String> {
        let Some(path) = &self.client.secret_file else { return Ok(None) };
        let unreadable =
            |error: std::io::Error| format!("the secret of the client {}: {error}", path.display());
        if disk::regular_bytes(path).map_err(unreadable)? > SECRET_BYTES_MAX {
            return Err(format!("the secret of the client {} is too long", path.display()));
        }
        let secret = tokio::fs::read_to_string(path).await.map_err(unreadable)?;
        Ok(Some(ClientSecret::new(secret.trim().to_owned())))
    }
}

async fn send(request: HttpRequest) -> Result<HttpResponse, DownloadError> {
    let (parts, body) = request.into_parts();
    let downloader = Downloader::new(Reach::everywhere())?;
    let (status, headers, content) =
        downloader.post(&parts.uri.to_string(), parts.headers, body, ANSWER_BYTES_MAX).await?;
    let mut response = HttpResponse::new(content);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
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

    fn described(name: &str, value: &str) -> Result<Description, String> {
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
}
