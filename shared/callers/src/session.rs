//! Sessions of people who signed in on the pages. No server keeps them: the browser has each in a cookie, sealed.
//!
//! A session says who the person is, not what they may do: the access rules are asked at each call.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use credentials::{KeyFile, KeyFileError};
use model::hex;
use policy::sign_in::session_left;
use ring::{
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use serde::{Deserialize, Serialize};

use crate::sealing::{KeyMaterial, Sealer};

/// Maximum bytes of a sealed session: browsers keep no cookie of more than 4,096 bytes with its name and attributes.
pub(crate) const SEALED_MAX: usize = 3800;

/// Seals and opens sessions. Cheap to clone.
#[derive(Clone)]
pub struct Sessions(Arc<Keys>);

struct Keys {
    session: Sealer,
    attempt: Sealer,
    form: hmac::Key,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions")
    }
}

/// Who a person is, as a session says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// When the person signed in, in seconds since 1970.
    pub(crate) issued: u64,
    pub(crate) proof: SessionProof,
}

/// How the person proved it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SessionProof {
    /// By the API key with this hash.
    Key { hash: String },
    /// By a provider of `OpenID` Connect.
    Provider {
        /// Name of the issuer in the access rules.
        issuer: String,
        /// Its claim `iss`, and the client that it knows this farm as: another issuer may get the same name.
        url: String,
        client: String,
        subject: String,
        /// A name that the person recognises; it gives no rights.
        shown: String,
        /// The claims that decided about rights when the person signed in.
        claims: BTreeMap<String, Vec<String>>,
    },
}

/// An attempt to sign in, while the person is at the provider.
#[derive(Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// When it began, in seconds since 1970.
    pub(crate) begun: u64,
    pub(crate) issuer: String,
    pub(crate) state: String,
    pub(crate) nonce: String,
    pub(crate) verifier: String,
    /// The page that the person wanted.
    pub(crate) wanted: String,
}

/// What a caller with a session has besides its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InSession {
    /// A name that the person recognises.
    pub(crate) shown: String,
    /// What forms of its pages contain.
    pub(crate) form_token: FormToken,
}

/// Proves that a form comes from a page that was made for the same session. It has no readable `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FormToken(pub(crate) String);

impl fmt::Debug for FormToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FormToken")
    }
}

impl Sessions {
    /// Reads the key of a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is too short to be secret.
    pub fn of_file(path: &Path) -> Result<Self, KeyFileError> {
        let keys = Self::of(&KeyMaterial::of(&KeyFile::read(path)?.secret));
        keys.ok_or_else(|| KeyFileError::Unusable { path: path.display().to_string() })
    }

    /// With a key that no other process has: for commands that read access rules and open no session.
    pub fn unshared() -> Option<Self> {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).ok()?;
        Self::of(&KeyMaterial::of(&secret))
    }

    pub(crate) fn of(material: &KeyMaterial) -> Option<Self> {
        let (session, attempt) = (material.sealer("session")?, material.sealer("sign-in")?);
        Some(Self(Arc::new(Keys { session, attempt, form: material.signer("form")? })))
    }

    /// The sealed session; none if it is too long for a cookie.
    pub(crate) fn seal(&self, session: &Session) -> Option<String> {
        self.0.session.seal(session).filter(|sealed| sealed.len() <= SEALED_MAX)
    }

    /// The session of a cookie; none if this key did not seal it.
    pub(crate) fn open(&self, sealed: &str) -> Option<Session> {
        if sealed.len() > SEALED_MAX { None } else { self.0.session.open(sealed) }
    }

    pub(crate) fn seal_attempt(&self, attempt: &Attempt) -> Option<String> {
        self.0.attempt.seal(attempt)
    }

    pub(crate) fn open_attempt(&self, sealed: &str) -> Option<Attempt> {
        if sealed.len() > SEALED_MAX { None } else { self.0.attempt.open(sealed) }
    }

    /// What forms of the pages of a session contain.
    pub(crate) fn form_token(&self, sealed: &str) -> FormToken {
        FormToken(hex(hmac::sign(&self.0.form, sealed.as_bytes()).as_ref()))
    }
}

impl Session {
    pub(crate) fn now(proof: SessionProof) -> Self {
        Self { issued: since_1970().as_secs(), proof }
    }

    /// How long it still lasts; none if it has ended.
    pub(crate) fn left(&self, lifetime: Duration) -> Option<Duration> {
        session_left(Duration::from_secs(self.issued), lifetime, since_1970())
    }
}

/// The time since 1970 by the clock of this machine.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
