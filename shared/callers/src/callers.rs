//! The callers that a file of access rules knows.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use audit::Audit;
use bus::FarmClock;
use disk::Changing;
use listener::Usage;
use model::AuditProof;
use policy::{
    access::{Proof, Reach, Right, Rights},
    limits::CallerLimits,
    zones::{ZoneReach, Zones},
};
use quick_cache::sync::Cache;

use crate::{
    build_token::BuildTokens,
    caller::{Caller, of_build},
    credential::{Credential, Offered},
    file::{AccessFile, AccessFileError, KeyEntry},
    issuer::Issuer,
    key::KeyHash,
    limits::Uses,
    place::Place,
    refusal::Refusal,
    session::{InSession, Session, SessionProof, Sessions},
    token::claimed_issuer,
};

/// Maximum number of verified credentials that are remembered.
const REMEMBERED: usize = 10_000;

/// Finds out who calls. Cheap to clone.
#[derive(Clone)]
pub struct Callers {
    /// None: there are no access rules.
    known: Option<Arc<Known>>,
    audit: Audit,
    uses: Uses,
}

struct Known {
    path: PathBuf,
    settings: CallerSettings,
    access: Changing<Arc<Access>>,
}

/// What the settings say besides the file.
#[derive(Debug, Clone, Default)]
pub struct CallerSettings {
    /// Verifies the tokens of builds; none: they are not accepted.
    pub builds: Option<BuildTokens>,
    /// Opens the sessions of people; none: they cannot sign in.
    pub sessions: Option<Sessions>,
    pub zones: Zones,
    /// By which credentials of the farm expire: builds get theirs by it. None: the clock of this machine.
    pub clock: Option<FarmClock>,
}

impl CallerSettings {
    fn now(&self) -> SystemTime {
        self.clock.as_ref().map_or_else(SystemTime::now, |clock| clock.now().into())
    }
}

pub(crate) struct Access {
    pub(crate) file: AccessFile,
    pub(crate) settings: CallerSettings,
    /// Callers by the hash of their credential, and when it expires.
    verified: Cache<KeyHash, (Arc<Caller>, Option<SystemTime>)>,
}

impl Callers {
    /// The callers of a farm without access rules: each may do everything.
    pub fn anyone() -> Self {
        Self { known: None, audit: Audit::off(), uses: Uses::default() }
    }

    /// Reads a file of access rules. Changes of the file apply within a second.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be used.
    pub fn of_file(path: &Path, settings: CallerSettings) -> Result<Self, AccessFileError> {
        let access = Changing::new(vec![path.to_owned()], || {
            let file = read(path, &settings)?;
            Ok(Arc::new(Access::new(file, settings.clone())))
        })?;
        let known = Known { path: path.to_owned(), settings, access };
        Ok(Self { known: Some(Arc::new(known)), audit: Audit::off(), uses: Uses::default() })
    }

    /// The same callers; what they do, and what they are refused, is recorded for operators.
    #[must_use]
    pub fn with_audit(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }

    /// A call from an address: its route or method, and its path if that says more.
    pub fn place(&self, call: String, path: Option<String>, address: Option<IpAddr>) -> Arc<Place> {
        Place::new(self.audit.clone(), call, path, address)
    }

    /// Checks the text of access rules that a file will contain, and returns its API keys.
    ///
    /// # Errors
    ///
    /// Fails if gateways could not use it.
    pub fn check_rules(path: &Path, text: &str, zones: &Zones) -> Result<Vec<KeyEntry>, AccessFileError> {
        let file = AccessFile::parse(&path.display().to_string(), text, zones)?;
        Ok(file.keys.into_values().collect())
    }

    /// Whether callers must prove who they are.
    pub fn have_rules(&self) -> bool {
        self.known.is_some()
    }

    /// The rules, and what seals sessions; none if people cannot sign in.
    pub(crate) fn sessions(&self) -> Option<(Arc<Access>, Sessions)> {
        let known = self.known.as_ref()?;
        let sessions = known.settings.sessions.clone()?;
        Some((known.current(), sessions))
    }

    /// The caller of a call on a connection. It is recorded for operators that the caller was let in.
    ///
    /// # Errors
    ///
    /// Fails if its credentials are missing or not accepted, or if it makes too many calls.
    pub async fn admit(
        &self,
        offered: Offered<'_>,
        place: &Arc<Place>,
        connection: Option<&Usage>,
    ) -> Result<Arc<Caller>, Refusal> {
        let identity = self.identify(offered).await?;
        let limits = identity.rights.limits;
        let usage = (!limits.is_none()).then(|| self.uses.of(&identity.name, place.address(), limits));
        let caller = Caller { place: Some(Arc::clone(place)), usage, ..(*identity).clone() };
        if let Some(usage) = &caller.usage {
            usage.call(connection).map_err(|exceeded| caller.limited(exceeded))?;
        }
        if caller.is_ruled {
            place.granted(&caller.name, caller.proof);
        }
        Ok(Arc::new(caller))
    }

    /// The caller with some credentials.
    ///
    /// # Errors
    ///
    /// Fails if its credentials are missing or not accepted.
    pub async fn identify(&self, offered: Offered<'_>) -> Result<Arc<Caller>, Refusal> {
        let Some(known) = &self.known else { return Ok(Caller::anyone()) };
        known.current().identify(offered).await
    }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.known.as_ref().map(|known| known.path.as_path());
        f.debug_tuple("Callers").field(&path).finish()
    }
}

impl Known {
    /// The rules now. A file that cannot be used changes nothing, and is reported once.
    fn current(&self) -> Arc<Access> {
        self.access.current(|earlier| match read(&self.path, &self.settings) {
            Ok(mut file) => {
                for issuer in &mut file.issuers {
                    earlier.file.issuers.iter().for_each(|earlier| issuer.take_over(earlier));
                }
                tracing::info!(path = %self.path.display(), "the access rules have changed");
                Some(Arc::new(Access::new(file, self.settings.clone())))
            }
            Err(error) => {
                let error = telemetry::error_chain(&error);
                tracing::error!(error, "cannot use the changed access rules: the earlier ones apply");
                None
            }
        })
    }
}

/// Reads rules that can be used with what the settings say.
fn read(path: &Path, settings: &CallerSettings) -> Result<AccessFile, AccessFileError> {
    let file = AccessFile::read(path, &settings.zones)?;
    if file.rules.0.is_empty() {
        return Err(AccessFileError::NoRules { path: path.display().to_string() });
    }
    match file.issuers.iter().find(|issuer| issuer.provider.is_some()) {
        Some(issuer) if settings.sessions.is_none() => Err(AccessFileError::NoSessionKey {
            path: path.display().to_string(),
            issuer: issuer.name.clone(),
        }),
        Some(_) | None => Ok(file),
    }
}

impl Access {
    fn new(file: AccessFile, settings: CallerSettings) -> Self {
        Self { file, settings, verified: Cache::new(REMEMBERED) }
    }

    async fn identify(&self, offered: Offered<'_>) -> Result<Arc<Caller>, Refusal> {
        let Some(credential) = offered.credential()? else {
            return self.without_credential(offered.certificate);
        };
        if let Credential::Build(token) = &credential {
            return self.of_build(token);
        }
        if let Credential::Session(sealed) = &credential {
            return self.of_session(sealed);
        }
        let hash = KeyHash::of(credential.secret());
        let now = match &credential {
            // The library that verifies them has the clock of this machine.
            Credential::Token(_) => SystemTime::now(),
            Credential::Key(_) | Credential::Build(_) | Credential::Session(_) => self.settings.now(),
        };
        if let Some((caller, expires)) = self.verified.get(&hash)
            && expires.is_none_or(|at| now < at)
        {
            return Ok(caller);
        }
        let (name, proof, expires) = self.verify(&credential, hash).await?;
        let caller = self.caller(&name, &proof)?;
        self.verified.insert(hash, (Arc::clone(&caller), expires));
        Ok(caller)
    }

    /// The caller with the token of a build: it runs actions in the group of the build while the build may run.
    fn of_build(&self, token: &str) -> Result<Arc<Caller>, Refusal> {
        let tokens = self.settings.builds.as_ref();
        let tokens =
            tokens.ok_or_else(|| Refusal::invalid("a token of a build, which this gateway cannot verify"))?;
        let verified = tokens.verify(token);
        let (build, expires) = verified.ok_or_else(|| Refusal::invalid("a forged token of a build"))?;
        if expires <= self.settings.now() {
            return Err(Refusal::invalid(format!("the token of build {build} has expired")));
        }
        let rights = [Right::Execute, Right::CacheRead, Right::BlobWrite].into();
        let groups = Reach::Listed([build.group.clone()].into());
        let zone = ZoneReach::Only(self.settings.zones.of_group(&build.group).unwrap_or_default());
        let limits = CallerLimits::default();
        let rights = Rights { rights, groups, priorities: [].into(), zone, limits };
        Ok(Caller::ruled(of_build(&build), AuditProof::Build, rights))
    }

    /// The person of a session. The rules are asked at each call: what is removed from them ends sessions, too.
    fn of_session(&self, sealed: &str) -> Result<Arc<Caller>, Refusal> {
        let sessions = self.settings.sessions.as_ref();
        let sessions =
            sessions.ok_or_else(|| Refusal::invalid("a session, which this server cannot open"))?;
        let session = sessions.open(sealed);
        let session =
            session.ok_or_else(|| Refusal::invalid("a forged session, or one of an earlier key"))?;
        if session.left(self.file.session_lifetime).is_none() {
            return Err(Refusal::invalid("the session has ended"));
        }
        let (caller, shown) = self.of_person(&session)?;
        let form_token = sessions.form_token(sealed);
        let session = Some(Arc::new(InSession { shown, form_token }));
        Ok(Arc::new(Caller { proof: AuditProof::Session, session, ..(*caller).clone() }))
    }

    /// The caller that a session is for, and a name that the person recognises.
    pub(crate) fn of_person(&self, session: &Session) -> Result<(Arc<Caller>, String), Refusal> {
        match &session.proof {
            SessionProof::Key { hash } => {
                let hash = hash.parse().map_err(|_| Refusal::invalid("a session without a key"))?;
                let (name, proof, _) = self.of_key(hash)?;
                Ok((self.caller(&name, &proof)?, name))
            }
            SessionProof::Provider { issuer, url, client, subject, shown, claims } => {
                let is_same = |it: &&Issuer| {
                    it.name == *issuer
                        && it.url == *url
                        && it.provider.as_ref().is_some_and(|provider| provider.client.id == *client)
                };
                let gone = || {
                    Refusal::invalid(format!("a session of {issuer}, which does not sign people in any more"))
                };
                let issuer = self.file.issuers.iter().find(is_same).ok_or_else(gone)?.name.clone();
                let name = format!("{issuer}:{subject}");
                let proof = Proof::Token { issuer, claims: claims.clone() };
                Ok((self.caller(&name, &proof)?, shown.clone()))
            }
        }
    }

    /// Name, proof and end of an API key.
    fn of_key(&self, hash: KeyHash) -> Result<(String, Proof, Option<SystemTime>), Refusal> {
        let key = self.file.keys.get(&hash);
        let key = key.ok_or_else(|| Refusal::invalid("an API key that is not listed"))?;
        if key.expires.is_some_and(|at| at <= self.settings.now()) {
            return Err(Refusal::invalid(format!("the API key {} has expired", key.name)));
        }
        let name = key.name.clone();
        Ok((format!("key:{name}"), Proof::Key { name }, key.expires))
    }

    fn without_credential(&self, certificate: &[String]) -> Result<Arc<Caller>, Refusal> {
        if let Some(first) = certificate.first() {
            let proof = Proof::Certificate { names: certificate.to_vec() };
            return self.caller(&format!("certificate:{first}"), &proof);
        }
        self.caller("", &Proof::Nothing).map_err(|_| Refusal::Missing)
    }

    async fn verify(
        &self,
        credential: &Credential,
        hash: KeyHash,
    ) -> Result<(String, Proof, Option<SystemTime>), Refusal> {
        match credential {
            Credential::Key(_) => self.of_key(hash),
            Credential::Build(_) | Credential::Session(_) => {
                Err(Refusal::invalid("the token of a build or a session is not a token of an issuer"))
            }
            Credential::Token(token) => {
                let claimed =
                    claimed_issuer(token).ok_or_else(|| Refusal::invalid("the token has no issuer"))?;
                let issuer = self.file.issuers.iter().find(|issuer| issuer.url == claimed);
                let issuer =
                    issuer.ok_or_else(|| Refusal::invalid("a token of an issuer that is not listed"))?;
                let verified = issuer.verify(token).await?;
                let name = format!("{}:{}", issuer.name, verified.subject);
                let proof = Proof::Token { issuer: issuer.name.clone(), claims: verified.claims };
                Ok((name, proof, Some(verified.expires)))
            }
        }
    }

    fn caller(&self, name: &str, proof: &Proof) -> Result<Arc<Caller>, Refusal> {
        let rights = self.file.rules.rights(proof);
        let rights = rights.ok_or_else(|| Refusal::invalid(format!("no access rule is for {name:?}")))?;
        // Names of subjects have any length and characters; builds and logs show them.
        let name = name.chars().filter(|at| !at.is_control()).take(200).collect();
        let how = match proof {
            Proof::Key { .. } => AuditProof::Key,
            Proof::Token { .. } => AuditProof::Token,
            Proof::Certificate { .. } => AuditProof::Certificate,
            Proof::Nothing => AuditProof::Nothing,
        };
        Ok(Caller::ruled(name, how, rights.clone()))
    }
}

#[cfg(test)]
mod tests;
