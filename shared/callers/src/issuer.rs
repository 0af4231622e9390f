//! Issuers of tokens (JWT, RFC 7519), and their keys (JWKS, RFC 7517).

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, jwk::JwkSet};
use serde::Deserialize;
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;

use crate::{
    fetched::{Fetched, read_document},
    provider::Provider,
    refusal::Refusal,
};

/// Algorithms of issuers that name none. None of them uses a shared secret.
const ALGORITHMS: [Algorithm; 4] = [Algorithm::RS256, Algorithm::ES256, Algorithm::ES384, Algorithm::EdDSA];
/// Accepted difference between the clocks of issuer and farm, in seconds.
const LEEWAY_SECONDS: u64 = 30;
/// Maximum number of values of one claim; further ones are ignored.
const VALUES_MAX: usize = 200;

/// Where the keys of an issuer are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    Url(String),
    File(PathBuf),
    /// At the address that the provider names, with which people sign in.
    Provider,
}

impl From<String> for KeySource {
    fn from(url: String) -> Self {
        Self::Url(url)
    }
}

impl From<PathBuf> for KeySource {
    fn from(file: PathBuf) -> Self {
        Self::File(file)
    }
}

/// An issuer of tokens.
#[derive(Debug)]
pub(crate) struct Issuer {
    /// Its name in rules.
    pub(crate) name: String,
    /// The claim `iss` of its tokens.
    pub(crate) url: String,
    /// How people sign in with it, if they may.
    pub(crate) provider: Option<Arc<Provider>>,
    validation: Validation,
    /// Whether it has an audience of tokens: otherwise people sign in with it, and that is all.
    has_tokens: bool,
    source: KeySource,
    keys: Arc<Fetched<JwkSet>>,
}

/// What a verified token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) subject: String,
    pub(crate) claims: BTreeMap<String, Vec<String>>,
    pub(crate) expires: SystemTime,
}

#[derive(Debug, Deserialize)]
struct Claims {
    exp: u64,
    #[serde(default)]
    sub: String,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Issuer {
    /// Describes an issuer; the first token reads its keys.
    pub(crate) fn new(
        name: String,
        url: String,
        audience: &[String],
        source: KeySource,
        algorithms: &[String],
        provider: Option<Provider>,
    ) -> Result<Self, String> {
        let algorithms = if algorithms.is_empty() {
            ALGORITHMS.to_vec()
        } else {
            algorithms.iter().map(|name| algorithm(name)).collect::<Result<_, _>>()?
        };
        let mut validation = Validation::new(Algorithm::ES256);
        validation.algorithms = algorithms;
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_audience(audience);
        validation.set_issuer(&[&url]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let (has_tokens, provider) = (!audience.is_empty(), provider.map(Arc::new));
        Ok(Self { name, url, provider, validation, has_tokens, source, keys: Arc::default() })
    }

    /// Takes over what was read for the same issuer: it may not answer now.
    pub(crate) fn take_over(&mut self, earlier: &Self) {
        if self.url != earlier.url {
            return;
        }
        if self.source == earlier.source {
            self.keys = Arc::clone(&earlier.keys);
        }
        if let (Some(provider), Some(earlier)) = (&self.provider, &earlier.provider)
            && provider.is_same(earlier)
        {
            self.provider = Some(Arc::clone(earlier));
        }
    }

    /// Verifies a token of this issuer with which a program calls.
    pub(crate) async fn verify(&self, token: &str) -> Result<Verified, Refusal> {
        if !self.has_tokens {
            let name = &self.name;
            return Err(Refusal::invalid(format!("token of {name}: it has no audience in the access rules")));
        }
        self.verify_for(token, &self.validation).await
    }

    /// Verifies the token by which a provider says who signed in (`OpenID` Connect Core, section 3.1.3.7).
    pub(crate) async fn verify_sign_in(
        &self,
        token: &str,
        client: &str,
        nonce: &str,
    ) -> Result<Verified, Refusal> {
        let mut validation = self.validation.clone();
        validation.set_audience(&[client]);
        let verified = self.verify_for(token, &validation).await?;
        let of = |claim: &str| verified.claims.get(claim).map(Vec::as_slice).unwrap_or_default();
        let refused = |why: &str| Refusal::invalid(format!("ID token of {}: {why}", self.name));
        let is_expected = |given: &String| bool::from(given.as_bytes().ct_eq(nonce.as_bytes()));
        match of("nonce") {
            [given] if is_expected(given) => {}
            _ => return Err(refused("it is not for this sign-in (nonce)")),
        }
        match (of("azp"), of("aud")) {
            ([party], _) if party == client => Ok(verified),
            ([], [_]) => Ok(verified),
            _ => Err(refused("it is for another client (azp)")),
        }
    }

    async fn verify_for(&self, token: &str, validation: &Validation) -> Result<Verified, Refusal> {
        let invalid =
            |error: jsonwebtoken::errors::Error| Refusal::invalid(format!("token of {}: {error}", self.name));
        let header = decode_header(token).map_err(invalid)?;
        if has_critical_extensions(token) {
            return Err(Refusal::invalid(format!("token of {}: it needs an extension (crit)", self.name)));
        }
        if !validation.algorithms.contains(&header.alg) {
            let alg = header.alg;
            return Err(Refusal::invalid(format!(
                "token of {}: algorithm {alg:?} is not allowed",
                self.name
            )));
        }
        let key = self.key(header.kid.as_deref()).await?;
        // A key is used with its own kind of algorithm only.
        let validation = Validation { algorithms: vec![header.alg], ..validation.clone() };
        let decoded = decode::<Claims>(token, &key, &validation).map_err(invalid)?;
        let Claims { exp, sub, others } = decoded.claims;
        let mut claims: BTreeMap<String, Vec<String>> =
            others.into_iter().map(|(name, value)| (name, texts(value))).collect();
        claims.insert("sub".to_owned(), vec![sub.clone()]);
        let lasts = Duration::from_secs(exp.saturating_add(LEEWAY_SECONDS).min(u64::from(u32::MAX)));
        Ok(Verified { subject: sub, claims, expires: SystemTime::UNIX_EPOCH + lasts })
    }

    async fn key(&self, id: Option<&str>) -> Result<DecodingKey, Refusal> {
        let found = self.keys.find(&self.name, |set| find(set, id), self.read()).await;
        found.ok_or_else(|| Refusal::invalid(format!("token of {}: its key is not known", self.name)))
    }

    async fn read(&self) -> Result<JwkSet, String> {
        let content = match &self.source {
            KeySource::File(path) => {
                tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))?
            }
            KeySource::Url(url) => read_document(url).await?,
            KeySource::Provider => {
                let provider = self.provider.as_ref().ok_or("people cannot sign in with the issuer")?;
                let described = provider.description().await.ok_or("its provider does not answer")?;
                read_document(&described.jwks_uri).await?
            }
        };
        read_keys(&content)
    }
}

/// The keys of a document. Keys of kinds that are not supported are left out.
fn read_keys(content: &[u8]) -> Result<JwkSet, String> {
    #[derive(Deserialize)]
    struct Document {
        keys: Vec<Value>,
    }
    let document: Document = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    let keys = document.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect();
    Ok(JwkSet { keys })
}

/// The key with an id; the only key, for a token without an id.
fn find(set: &JwkSet, id: Option<&str>) -> Option<DecodingKey> {
    let key = match (id, set.keys.as_slice()) {
        (Some(id), _) => set.find(id)?,
        (None, [only]) => only,
        (None, _) => return None,
    };
    // A shared secret in a public document is a mistake, and would let all forge tokens.
    if let jsonwebtoken::jwk::AlgorithmParameters::OctetKey(_) = key.algorithm {
        return None;
    }
    DecodingKey::from_jwk(key).ok()
}

/// Whether a token says that who does not know some extensions must refuse it (RFC 7515, section 4.1.11).
fn has_critical_extensions(token: &str) -> bool {
    #[derive(Deserialize)]
    struct Header {
        crit: Option<Value>,
    }
    let header = token.split('.').next().and_then(|header| URL_SAFE_NO_PAD.decode(header).ok());
    let header = header.and_then(|header| serde_json::from_slice::<Header>(&header).ok());
    header.is_none_or(|header| header.crit.is_some())
}

/// The claim `iss` of a token that is not verified yet, to choose the issuer whose keys verify it.
pub(crate) fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claimed {
        iss: String,
    }
    let payload = token.split('.').nth(1)?;
    let claimed: Claimed = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    Some(claimed.iss)
}

/// When a token expires, in seconds since 1970, as it says itself; none for a key.
pub fn token_expiry(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Claimed {
        exp: u64,
    }
    let payload = token.split('.').nth(1)?;
    let claimed: Claimed = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    Some(claimed.exp)
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let wanted = || {
        format!(
            "algorithm {name:?}: expected RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA"
        )
    };
    let algorithm = name.parse().map_err(|_| wanted())?;
    let is_shared = matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
    if is_shared { Err(wanted()) } else { Ok(algorithm) }
}

/// The values of a claim as text: rules compare text.
fn texts(value: Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text],
        Value::Bool(_) | Value::Number(_) => vec![value.to_string()],
        Value::Array(values) => values
            .into_iter()
            .take(VALUES_MAX)
            .filter_map(|value| if let Value::String(text) = value { Some(text) } else { None })
            .collect(),
        Value::Null | Value::Object(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
