//! How people sign in on the pages: with a provider of `OpenID` Connect, or with an API key.

use std::{sync::Arc, time::Duration};

use policy::sign_in::{session_left, wanted_page};
use subtle::ConstantTimeEq as _;

use crate::{
    caller::Caller,
    callers::{Access, Callers},
    issuer::{Issuer, Verified},
    key::ApiKey,
    provider::{ExchangeError, Provider, random_text},
    refusal::Refusal,
    session::{Attempt, Session, SessionProof, Sessions, since_1970},
};

/// Time that a person has to sign in at the provider.
pub const ATTEMPT_LIFETIME: Duration = Duration::from_secs(600);
/// Claims with a name that the person recognises, the best first.
const NAMES: [&str; 3] = ["preferred_username", "email", "name"];
/// Maximum characters of a text of a provider that is shown.
const SHOWN_MAX: usize = 200;

/// How people sign in now.
pub struct SignIn {
    access: Arc<Access>,
    sessions: Sessions,
}

/// A person is sent to a provider.
pub struct Begun {
    /// Address of the provider.
    pub url: String,
    /// What the browser keeps until the person comes back, sealed.
    pub attempt: String,
}

/// What a browser brings back from a provider: the parameters of the address. It has no `Debug`, so that it is not logged.
#[derive(Default)]
pub struct Answer<'a> {
    pub state: &'a str,
    pub code: Option<&'a str>,
    /// The name of an error, and its description.
    pub error: Option<&'a str>,
    pub error_description: Option<&'a str>,
    /// The issuer that answers (RFC 9207).
    pub issuer: Option<&'a str>,
}

/// A person has signed in.
pub struct SignedIn {
    /// The sealed session, for a cookie.
    pub session: String,
    pub lifetime: Duration,
    pub caller: Arc<Caller>,
    /// The page that the person wanted.
    pub wanted: String,
}

/// Why a person could not sign in. The texts are for that person, and may contain words of the provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignInError {
    #[error("this farm has no provider of this name")]
    Unknown,
    #[error("this sign-in did not begin in this browser, or more than 10 minutes ago: please begin again")]
    Foreign { why: &'static str },
    #[error("{provider} did not sign you in: {why}")]
    Refused { provider: String, why: String },
    #[error("{provider} cannot be reached now: please try again later")]
    Unreachable { provider: String, why: String },
    #[error("what {provider} says of you cannot be trusted: please tell the operators of this farm")]
    Untrusted { provider: String, why: String },
    #[error("{provider} knows you as {subject}, and no access rule of this farm is for you")]
    NoRule { provider: String, subject: String },
    #[error("the API key is not accepted")]
    Key { why: String },
    #[error(
        "too much is known of you for a session: an operator can name fewer of your groups in the access rules"
    )]
    TooLong,
}

impl SignInError {
    /// The reason as operators see it in the log and in the audit record.
    pub fn refusal(&self) -> Refusal {
        let why = match self {
            Self::Unknown | Self::TooLong | Self::NoRule { .. } => return Refusal::invalid(self.to_string()),
            Self::Foreign { why } => (*why).to_owned(),
            Self::Refused { provider, why } => format!("{provider} refuses a sign-in: {why}"),
            Self::Unreachable { provider, why } => format!("{provider} cannot be reached: {why}"),
            Self::Untrusted { why, .. } | Self::Key { why } => why.clone(),
        };
        Refusal::invalid(why)
    }
}

impl SignIn {
    /// How people sign in; none if they cannot.
    pub fn of(callers: &Callers) -> Option<Self> {
        let (access, sessions) = callers.sessions()?;
        Some(Self { access, sessions })
    }

    /// Name and title of each provider.
    pub fn providers(&self) -> impl Iterator<Item = (&str, &str)> {
        let issuers = self.access.file.issuers.iter();
        issuers.filter_map(|issuer| {
            Some((issuer.name.as_str(), issuer.provider.as_ref()?.client.title.as_str()))
        })
    }

    fn provider(&self, name: &str) -> Result<(&Issuer, &Provider), SignInError> {
        let issuer = self.access.file.issuers.iter().find(|issuer| issuer.name == name);
        let found = issuer.and_then(|issuer| Some((issuer, issuer.provider.as_deref()?)));
        found.ok_or(SignInError::Unknown)
    }

    /// Sends a person to a provider, who comes back to `redirect_uri` and wants the page `wanted`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such provider, or if it does not answer.
    pub async fn begin(&self, name: &str, redirect_uri: &str, wanted: &str) -> Result<Begun, SignInError> {
        let (_, provider) = self.provider(name)?;
        let unreachable = |why: &str| SignInError::Unreachable {
            provider: provider.client.title.clone(),
            why: why.to_owned(),
        };
        let nonce = random_text().ok_or_else(|| unreachable("this machine has no random numbers"))?;
        let request = provider.authorization_request(redirect_uri, &nonce).await;
        let request = request.ok_or_else(|| unreachable("it has no valid description"))?;
        let attempt = Attempt {
            begun: since_1970().as_secs(),
            issuer: name.to_owned(),
            state: request.state,
            nonce,
            verifier: request.verifier,
            wanted: wanted_page(wanted).to_owned(),
        };
        let attempt = self.sessions.seal_attempt(&attempt);
        let attempt = attempt.ok_or_else(|| unreachable("the attempt cannot be sealed"))?;
        Ok(Begun { url: request.url, attempt })
    }

    /// Signs in a person who comes back from a provider. `attempt` is what [`Begun`] gave to the same browser.
    ///
    /// # Errors
    ///
    /// Fails unless the provider proves who the person is, and a rule is for that person.
    pub async fn finish(
        &self,
        name: &str,
        redirect_uri: &str,
        attempt: Option<&str>,
        answer: &Answer<'_>,
    ) -> Result<SignedIn, SignInError> {
        let (issuer, provider) = self.provider(name)?;
        let attempt = self.check(issuer, attempt, answer)?;
        let title = || provider.client.title.clone();
        let refused = |why: String| SignInError::Refused { provider: title(), why: shown(&why) };
        if let Some(error) = answer.error {
            let description = answer.error_description.map(|text| format!(" ({text})")).unwrap_or_default();
            return Err(refused(format!("{error}{description}")));
        }
        let code = answer.code.ok_or_else(|| refused("it sent no code".to_owned()))?;
        let exchanged = provider.exchange(redirect_uri, code.to_owned(), attempt.verifier).await;
        let token = exchanged.map_err(|error| match error {
            ExchangeError::Refused(why) => refused(why),
            ExchangeError::Unreachable(why) => SignInError::Unreachable { provider: title(), why },
        })?;
        let verified = issuer.verify_sign_in(&token, &provider.client.id, &attempt.nonce).await;
        let verified = verified.map_err(|refusal| {
            let why = refusal.detail().unwrap_or("its ID token is not valid").to_owned();
            SignInError::Untrusted { provider: title(), why }
        })?;
        let subject = shown(&verified.subject);
        let session = self.session_of(issuer, provider, verified);
        let caller = self.access.of_person(&session);
        let (caller, _) = caller.map_err(|_| SignInError::NoRule { provider: title(), subject })?;
        self.signed_in(&session, caller, attempt.wanted)
    }

    /// Signs in a person with an API key.
    ///
    /// # Errors
    ///
    /// Fails if the key is not accepted.
    pub fn with_key(&self, text: &str, wanted: &str) -> Result<SignedIn, SignInError> {
        let key = ApiKey::parse(text.trim());
        let key = key.ok_or_else(|| SignInError::Key { why: "it is not a complete API key".to_owned() })?;
        let session = Session::now(SessionProof::Key { hash: key.hash().to_string() });
        let found = self.access.of_person(&session);
        let (caller, _) = found.map_err(|refusal| SignInError::Key {
            why: refusal.detail().unwrap_or("the API key is not accepted").to_owned(),
        })?;
        self.signed_in(&session, caller, wanted_page(wanted).to_owned())
    }

    /// Checks that an answer is for an attempt that began in the same browser.
    fn check(
        &self,
        issuer: &Issuer,
        attempt: Option<&str>,
        answer: &Answer<'_>,
    ) -> Result<Attempt, SignInError> {
        let foreign = |why| SignInError::Foreign { why };
        let attempt = attempt.ok_or_else(|| foreign("a sign-in that did not begin in this browser"))?;
        let attempt = self.sessions.open_attempt(attempt);
        let attempt = attempt.ok_or_else(|| foreign("a forged beginning of a sign-in"))?;
        if !bool::from(attempt.state.as_bytes().ct_eq(answer.state.as_bytes())) {
            return Err(foreign("a sign-in with the state of another"));
        }
        let begun = Duration::from_secs(attempt.begun);
        if session_left(begun, ATTEMPT_LIFETIME, since_1970()).is_none() {
            return Err(foreign("a sign-in that took too long"));
        }
        if attempt.issuer != issuer.name || answer.issuer.is_some_and(|from| from != issuer.url) {
            return Err(foreign("a sign-in that another provider answers"));
        }
        Ok(attempt)
    }

    fn session_of(&self, issuer: &Issuer, provider: &Provider, verified: Verified) -> Session {
        let Verified { subject, claims, .. } = verified;
        let name = NAMES.iter().find_map(|claim| claims.get(*claim)?.first().filter(|name| !name.is_empty()));
        let shown = shown(name.unwrap_or(&subject));
        Session::now(SessionProof::Provider {
            issuer: issuer.name.clone(),
            url: issuer.url.clone(),
            client: provider.client.id.clone(),
            shown,
            subject,
            claims: self.access.file.rules.relevant(&issuer.name, claims),
        })
    }

    fn signed_in(
        &self,
        session: &Session,
        caller: Arc<Caller>,
        wanted: String,
    ) -> Result<SignedIn, SignInError> {
        let sealed = self.sessions.seal(session).ok_or(SignInError::TooLong)?;
        Ok(SignedIn { session: sealed, lifetime: self.access.file.session_lifetime, caller, wanted })
    }
}

/// A text of a provider, as far as it is shown.
fn shown(text: &str) -> String {
    text.chars().filter(|at| !at.is_control()).take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests;
