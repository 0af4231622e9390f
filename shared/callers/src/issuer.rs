//! Issuers of tokens, whose keys verify them.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use subtle::ConstantTimeEq as _;

use crate::{
    fetched::{Fetched, read_document},
    jwk::{Algorithm, KeySet, PublicKey},
    provider::Provider,
    refusal::Refusal,
    session::since_1970,
    token::{Claims, LEEWAY_SECONDS, TokenFault, Unverified},
};

/// Algorithms of issuers that name none.
const ALGORITHMS: [Algorithm; 4] = [Algorithm::Rs256, Algorithm::Es256, Algorithm::Es384, Algorithm::EdDsa];
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
    algorithms: Vec<Algorithm>,
    /// For whom its tokens are. Empty: people sign in with it, and that is all.
    audience: Vec<String>,
    source: KeySource,
    keys: Arc<Fetched<KeySet>>,
}

/// What a verified token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) subject: String,
    pub(crate) claims: BTreeMap<String, Vec<String>>,
    pub(crate) expires: SystemTime,
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
        let (audience, provider) = (audience.to_vec(), provider.map(Arc::new));
        Ok(Self { name, url, provider, algorithms, audience, source, keys: Arc::default() })
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
        if self.audience.is_empty() {
            let name = &self.name;
            return Err(Refusal::invalid(format!("token of {name}: it has no audience in the access rules")));
        }
        self.verify_for(token, &self.audience).await
    }

    /// Verifies the token by which a provider says who signed in (`OpenID` Connect Core, section 3.1.3.7).
    pub(crate) async fn verify_sign_in(
        &self,
        token: &str,
        client: &str,
        nonce: &str,
    ) -> Result<Verified, Refusal> {
        let verified = self.verify_for(token, &[client.to_owned()]).await?;
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

    async fn verify_for(&self, token: &str, audience: &[String]) -> Result<Verified, Refusal> {
        let refused = |fault: TokenFault| Refusal::invalid(format!("token of {}: {fault}", self.name));
        let token = Unverified::parse(token).map_err(refused)?;
        if !self.algorithms.contains(&token.algorithm) {
            return Err(refused(TokenFault::Algorithm(token.algorithm.to_string())));
        }
        let key = self.key(token.key_id.as_deref()).await?;
        let claims = token.verify(&key).map_err(refused)?;
        claims.check(&self.url, audience, since_1970().as_secs()).map_err(refused)?;
        let Claims { exp, sub, others } = claims;
        let mut claims: BTreeMap<String, Vec<String>> =
            others.into_iter().map(|(name, value)| (name, texts(value))).collect();
        claims.insert("sub".to_owned(), vec![sub.clone()]);
        let lasts = Duration::from_secs(exp.saturating_add(LEEWAY_SECONDS).min(u64::from(u32::MAX)));
        Ok(Verified { subject: sub, claims, expires: SystemTime::UNIX_EPOCH + lasts })
    }

    async fn key(&self, id: Option<&str>) -> Result<PublicKey, Refusal> {
        let found = self.keys.find(&self.name, |keys| keys.find(id), self.read()).await;
        found.ok_or_else(|| Refusal::invalid(format!("token of {}: its key is not known", self.name)))
    }

    async fn read(&self) -> Result<KeySet, String> {
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
        KeySet::parse(&content).map_err(|error| error.to_string())
    }
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    name.parse().map_err(|_| {
        format!(
            "algorithm {name:?}: expected RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA"
        )
    })
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
